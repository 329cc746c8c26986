"""NVIDIA's Xid codes in what a source writes, and those of them that say that the hardware, or its driver, is lost.

Fatal are those for which NVIDIA's catalogue (of 2025-10-29, docs/how-to/faults.md) has the GPU reset at once, or the
machine restarted or looked at. The others end an application at most, are to be ignored, or are not decided there, and
say nothing about the node. Of 144 to 150, errors of NVLink, the driver's own line says which are not fatal.
"""

import re

FATAL = frozenset({46, 48, 54, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, *range(143, 152), 155, 156, 158})

#: `Xid 79`, `XID-79`, `NvidiaXID79Error`, `ErrorCode:79`, and the driver's own `Xid (PCI:0000:1b:00): 79`; but not its
#: `Xid (PCI:0000:1b:00): 145, RLW_REMAP Nonfatal`. Whatever may come between name and number has a limited length: the
#: text is a kubelet's, and without limits a search takes the square of its length.
_NAMED = re.compile(
    r"(?:xid|errorcode)\s{0,8}(?:\([^)]{0,64}\))?[\s:=_-]{0,8}(\d{1,3})(?!\d)(?!,\s{0,8}[\w/]{1,64}\s{1,8}nonfatal)",
    re.IGNORECASE,
)


def find_xids(text: str) -> frozenset[int]:
    """All codes that the text names, but for those of which it says that they are not fatal."""
    return frozenset(int(code) for code in _NAMED.findall(text))

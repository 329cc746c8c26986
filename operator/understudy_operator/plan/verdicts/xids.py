"""NVIDIA's Xid codes in the texts of sources, and the fatal ones: the hardware or its driver is lost.

Fatal are the codes for which NVIDIA's catalog (of 2025-10-29, docs/how-to/faults.md) demands an immediate reset of the
GPU, or a restart or inspection of the machine. The others at most end an application, are to be ignored, or are left
open there, and give no finding. For 144 to 150, errors of NVLink, the driver's own line marks those that are not fatal.
"""

import re

FATAL = frozenset({46, 48, 54, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, *range(143, 152), 155, 156, 158})

#: `Xid 79`, `XID-79`, `NvidiaXID79Error`, `ErrorCode:79`, and the driver's own `Xid (PCI:0000:1b:00): 79`; but not its
#: `Xid (PCI:0000:1b:00): 145, RLW_REMAP Nonfatal`. The text between name and number has a limited length: the input
#: comes from a kubelet, and without limits a search takes quadratic time.
_NAMED = re.compile(
    r"(?:xid|errorcode)\s{0,8}(?:\([^)]{0,64}\))?[\s:=_-]{0,8}(\d{1,3})(?!\d)(?!,\s{0,8}[\w/]{1,64}\s{1,8}nonfatal)",
    re.IGNORECASE,
)


def find_xids(text: str) -> frozenset[int]:
    """All codes that the text names, except those that it marks as nonfatal."""
    return frozenset(int(code) for code in _NAMED.findall(text))

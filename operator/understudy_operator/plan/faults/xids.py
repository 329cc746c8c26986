"""NVIDIA's Xid codes in what a source writes, and those of them that say that the hardware, or its driver, is lost.

The others (an illegal access, a reset channel, a row that was remapped, an error that was contained) end an
application at most, and say nothing about the node.
"""

import re

#: NVIDIA's catalogue: the GPU is to be reset, or the machine restarted or looked at.
FATAL = frozenset({46, 48, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, *range(143, 152), 155, 156, 158, 160})

#: `Xid 79`, `XID-79`, `NvidiaXID79Error`, `ErrorCode:79`, and the driver's own `Xid (PCI:0000:1b:00): 79`.
_NAMED = re.compile(r"(?:xid|errorcode)\s*(?:\([^)]*\))?[\s:=_-]*(\d{1,3})(?!\d)", re.IGNORECASE)


def named(text: str) -> frozenset[int]:
    """All codes that the text names."""
    return frozenset(int(code) for code in _NAMED.findall(text))

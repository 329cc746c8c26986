"""Kubernetes' quantities of memory, as numbers of bytes. Pure."""

import re
from decimal import Decimal

_SUFFIXES = {
    **{suffix: 1000**power for power, suffix in enumerate(("", "k", "M", "G", "T", "P", "E"))},
    **{suffix: 1024**power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}
_QUANTITY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{0,9})?)(?:([kMGTPE]|[KMGTPE]i)|[eE]([0-9]{1,2}))?")


def bytes_in(quantity: object) -> int | None:
    """The bytes of a quantity, such as 20Gi, 1.5G, 2e9 or the number 1024; None if it is none, or has another form."""
    match = _QUANTITY.fullmatch(str(quantity)) if isinstance(quantity, str | int) else None
    if match is None:
        return None
    number, suffix, exponent = match.groups()
    return int(Decimal(number) * (10 ** int(exponent) if exponent else _SUFFIXES[suffix or ""]))

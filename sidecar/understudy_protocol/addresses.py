"""Addresses of callers: which of them belong together.

Whoever has an IPv6 network of its own may call from each address of it, mostly of a /64. But pods and nodes that have
nothing in common may be in one /64, too. So limits count by address, and networks take turns before their addresses do.
"""

from functools import lru_cache
from ipaddress import AddressValueError, IPv6Address


def plain(address: str) -> str:
    """An IPv4 address as such, which a socket for both families shows as an IPv6 one."""
    return address.removeprefix("::ffff:") if "." in address else address


@lru_cache(maxsize=4096)
def network_of(address: str) -> str:
    """The /64 of an IPv6 address; anything else is its own."""
    if ":" not in address:
        return address
    try:
        return f"{int(IPv6Address(address)) >> 64:x}::/64"
    except AddressValueError:
        return address

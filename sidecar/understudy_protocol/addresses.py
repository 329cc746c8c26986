"""Addresses of callers, and the networks that they belong to.

A caller with an IPv6 network of its own can call from each address of that network, usually a /64. But unrelated pods
and nodes may share a /64, too. So limits count by address, and callers are served in turn by network, then by address.
"""

from functools import lru_cache
from ipaddress import AddressValueError, IPv6Address


def plain(address: str) -> str:
    """The plain IPv4 address, if a socket for both families shows it as an IPv6 address."""
    return address.removeprefix("::ffff:") if "." in address else address


@lru_cache(maxsize=4096)
def network_of(address: str) -> str:
    """The /64 of an IPv6 address; any other address unchanged."""
    if ":" not in address:
        return address
    try:
        return f"{int(IPv6Address(address)) >> 64:x}::/64"
    except AddressValueError:
        return address

"""Addresses of sidecars and of callers, and the networks that callers belong to.

The address of a sidecar is its IP. If it listens on another port than COORDINATOR_PORT, because its pod has
hostNetwork, the address is IP:PORT. Messages contain addresses, and only the edge that connects splits them.

A caller with an IPv6 network of its own can call from each address of that network, usually a /64. But unrelated pods
and nodes may share a /64, too. So limits count by address, and callers are served in turn by network, then by address.
"""

import re
from functools import lru_cache
from ipaddress import AddressValueError, IPv6Address

from understudy_protocol import pod

_WITH_PORT = re.compile(r"(?:\[([^\[\]]+)\]|([^:\[\]]+)):([0-9]{1,5})")
_MOST_PORT = 65535


def with_port(ip: str, port: int) -> str:
    """The address of the sidecar that listens there. "" if its IP is not known."""
    if not ip or port == pod.COORDINATOR_PORT:
        return ip
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def split_port(address: str) -> tuple[str, int]:
    """IP and port. Text that is no address, which a peer may send, is returned as an IP: no connection opens to it."""
    found = _WITH_PORT.fullmatch(address)
    if found is None or int(found[3]) > _MOST_PORT:
        return address, pod.COORDINATOR_PORT
    return found[1] or found[2], int(found[3])


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

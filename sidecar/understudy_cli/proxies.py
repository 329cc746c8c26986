"""The proxy for a server: the variables HTTPS_PROXY, HTTP_PROXY and NO_PROXY, as kubectl reads them. Pure.

Python's own rules differ: their NO_PROXY has neither ranges of addresses nor ports, and they use the proxy for servers
on this machine, too.
"""

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_PORTS = {"https": 443, "http": 80}


def proxy_of(server: str, env: Mapping[str, str]) -> str:
    """The URL of the proxy; "" if there is none. server: https://host:port[/path]. env: the environment variables."""
    parts = urlsplit(server)
    host, proxy = parts.hostname or "", _variable(env, f"{parts.scheme}_proxy")
    if not host or not proxy or _is_excluded(host, _port(server), _variable(env, "no_proxy")):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _variable(env: Mapping[str, str], name: str) -> str:
    return env.get(name.upper(), "") or env.get(name, "")


def _port(server: str) -> int | None:
    parts = urlsplit(server)
    try:
        return parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None  # the connection reports it


def _is_excluded(host: str, port: int | None, listed: str) -> bool:
    """Whether the server is on this machine, or NO_PROXY lists it."""
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    return any(_matches(entry.strip().lower(), host, address, port) for entry in listed.split(","))


def _matches(entry: str, host: str, address: Address | None, port: int | None) -> bool:
    """entry: *, an address, a range of addresses, or a domain, all but ranges also with a port."""
    if entry in ("", "*"):
        return entry == "*"
    if "/" in entry:
        return address is not None and _contains(entry, address)
    name, of_port = _split(entry)
    if of_port not in ("", str(port)):
        return False
    if (own := _address(name)) is not None:
        return own == address
    name = name.removeprefix("*") if name.startswith("*.") else name
    return host.endswith(name if name.startswith(".") else f".{name}") or host == name


def _contains(entry: str, address: Address) -> bool:
    try:
        return address in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False


def _split(entry: str) -> tuple[str, str]:
    """Host and port. An address of IPv6 with a port is in brackets."""
    if entry.startswith("["):
        host, _, port = entry[1:].partition("]")
        return host, port.removeprefix(":")
    if entry.count(":") != 1:
        return entry, ""
    host, _, port = entry.partition(":")
    return host, port


def _address(text: str) -> Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None

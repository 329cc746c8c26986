"""Identifies the process that listens at a port of this pod, by the kernel's data about its listening socket.

A restarted server listens with another socket, which has another inode. The kernel numbers inodes from the start again
after a boot, so the boot's id is part of the identity. Containers of a pod share its network, so this works from the
gateway's container.
"""

from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Optional
from urllib.parse import urlsplit

NOBODY = ""
PROC = Path("/proc")
_BOOT_ID = "sys/kernel/random/boot_id"
_TABLES = ("net/tcp", "net/tcp6")
_LISTEN = "0A"
_LOCAL_ADDRESS, _STATE, _INODE = 1, 3, 9  # columns


def address_of(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    if not parts.hostname:
        raise ValueError(f"engine: expected http://host:port of the server; got {url!r}")
    return parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


def listener_at(address: tuple[str, int], proc: Path = PROC) -> Optional[str]:
    """NOBODY if no process listens; None if that is unknown: the server is on another machine, or this is not Linux."""
    host, port = address
    if not _is_here(host):
        return None
    try:
        boot = (proc / _BOOT_ID).read_text().strip()
        inodes = {inode for table in _TABLES for inode in _listening(proc / table, port)}
    except OSError:
        return None
    return f"{boot}:{'+'.join(sorted(inodes))}" if inodes else NOBODY


def _is_here(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listening(table: Path, port: int) -> Iterator[str]:
    if not table.exists():
        return  # a kernel without IPv6
    with table.open() as lines:
        next(lines, None)  # the column headers
        yield from _inodes(lines, port)


def _inodes(lines: Iterable[str], port: int) -> Iterator[str]:
    for line in lines:
        columns = line.split()
        if columns[_STATE] != _LISTEN:
            return  # listening sockets come first, so thousands of connections need not be read
        if int(columns[_LOCAL_ADDRESS].rpartition(":")[2], 16) == port:
            yield columns[_INODE]

"""How the kernel detects a machine that does not respond: socket options, its errors, and its counters.

1 s × 3 of keepalive and a TCP_USER_TIMEOUT of 3 s on every membership connection: no cost in Python at any size. If the
training stalls too, the coordinator need not wait for these 3 s: `is_unreachable` counts the packets without an
acknowledgment. A kernel acknowledges packets even if its processes get no CPU time.
"""

import array
import asyncio
import contextlib
import errno
import fcntl
import os
import socket
import struct
import termios
from typing import NamedTuple, Protocol

KEEPALIVE_S = 1
KEEPALIVE_PROBES = 3
USER_TIMEOUT_MS = 3000

_SILENT = {errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH}


class SocketLike(Protocol):
    """A socket, or the view of one that a transport or a server exposes."""

    @property
    def family(self) -> int: ...
    @property
    def type(self) -> int: ...
    @property
    def proto(self) -> int: ...
    def fileno(self) -> int: ...


def watch_peer(shown: SocketLike) -> None:
    """Let the kernel end a connection, or all that a listener accepts, when the peer's machine stops responding."""
    sock = socket.socket(shown.family, shown.type, shown.proto, fileno=shown.fileno())
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
    sock.detach()  # the caller owns the file descriptor


def has_unread(transport: asyncio.Transport) -> bool:
    """Whether this process has not read all bytes from the peer yet: then the peer is not late."""
    unread = array.array("i", [0])
    with contextlib.suppress(OSError):  # it has just ended
        fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.FIONREAD, unread)
    return unread[0] > 0


class Unacknowledged(NamedTuple):
    """Of one connection: packets in a row that the peer's kernel has not acknowledged, and since when."""

    packets: int
    for_s: float  # since the last packet from the peer
    has_lost_packets: bool  # earlier: the network is not reliable


#: Packets in a row without an acknowledgment. In a network that loses packets, three are lost by chance too often.
UNREACHABLE_PACKETS = 3
UNREACHABLE_PACKETS_IF_LOSSY = 5
#: Usually longer than the pause of a virtual machine that moves to another host.
UNREACHABLE_S = 1.0


def is_unreachable(sock: SocketLike) -> bool:
    """Whether the peer's machine has no power or no network: a live one would have acknowledged a packet."""
    seen = unacknowledged(sock)
    needed = UNREACHABLE_PACKETS_IF_LOSSY if seen.has_lost_packets else UNREACHABLE_PACKETS
    return seen.packets >= needed and seen.for_s >= UNREACHABLE_S


def unacknowledged(shown: SocketLike) -> Unacknowledged:
    """The kernel's counters, from struct tcp_info (include/uapi/linux/tcp.h). Nothing for a socket that is closed."""
    sock = socket.socket(shown.family, shown.type, shown.proto, fileno=shown.fileno())
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:  # it has just ended
        return Unacknowledged(0, 0.0, has_lost_packets=False)
    finally:
        sock.detach()
    retransmits, probes = info[2], info[3]
    (in_flight,) = struct.unpack_from("=I", info, 24)
    (last_ack_ms,) = struct.unpack_from("=I", info, 56)
    (total_retransmits,) = struct.unpack_from("=I", info, 100)
    packets = probes + retransmits + (1 if in_flight else 0)
    return Unacknowledged(packets, last_ack_ms / 1000, has_lost_packets=total_retransmits > retransmits)


_TCP_INFO_BYTES = 104


def end_everywhere(transport: asyncio.Transport) -> None:
    """End a connection for every process that has its socket; a close here would end it only here."""
    ours = transport.get_extra_info("socket")
    duplicate = socket.socket(ours.family, ours.type, ours.proto, fileno=os.dup(ours.fileno()))
    with duplicate, contextlib.suppress(OSError):  # it has ended already
        duplicate.shutdown(socket.SHUT_RDWR)


def was_silent(error: BaseException | None) -> bool:
    """Whether a connection ended because the peer did not respond, rather than because its kernel closed it."""
    return isinstance(error, OSError) and error.errno in _SILENT

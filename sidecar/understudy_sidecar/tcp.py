"""How the kernel detects a machine that does not respond: socket options, its errors, and its counters.

1 s × 3 of keepalive and a TCP_USER_TIMEOUT of 3 s on every membership connection: no cost in Python at any size. If the
training stalls too, the coordinator need not wait for these 3 s: MachineCheck counts the packets without an
acknowledgment. A kernel acknowledges packets even if its processes get no CPU time.
"""

import array
import asyncio
import contextlib
import errno
import fcntl
import math
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


class Counters(NamedTuple):
    """Of one connection, from its kernel. in_flight: whether a packet waits for its acknowledgment."""

    in_flight: bool
    probes: int  # keepalives without an answer
    timeouts: int  # in a row, of the packet in flight
    retransmitted: int  # packets, since the connection exists
    sent: int  # packets with data, since the connection exists
    silent_s: float  # since the last packet from the peer
    sent_s: float  # since the last packet with data to the peer
    answer_s: float  # how long an acknowledgment takes at most, as the kernel estimates: RTT and four deviations


#: A machine counts as unreachable if this is the probability that all its packets were lost by chance.
BY_CHANCE = 1e-10
#: So many packets without a loss are assumed before the first: a young connection has sent too few to tell its share.
ASSUMED_PACKETS = 1000
#: With more packets, the kernel ends the connection before.
LEAST_PACKETS, MOST_PACKETS = 3, 6
#: Usually longer than the pause of a virtual machine that moves to another host.
UNREACHABLE_S = 1.0


class MachineCheck:
    """Whether a peer's machine has no power or no network, from the counters of its connection. Pure.

    A live machine acknowledges one of some packets in a row. In a network that loses packets, more are needed. Begin it
    when a packet was just sent. The kernel repeats it twice within half a second: first as its tail loss probe, which
    counts only as `retransmitted`. needed: packets, at least.
    """

    def __init__(self, seen: Counters, now: float, needed: int) -> None:
        self._retransmitted, self._since = seen.retransmitted, now
        self._needed = max(needed, needed_packets(seen.retransmitted, seen.sent))

    def is_unreachable(self, seen: Counters, now: float) -> bool:
        if now - seen.silent_s > self._since:  # it has sent a packet meanwhile
            self._retransmitted, self._since = seen.retransmitted, now
        repeated = max(seen.timeouts, seen.retransmitted - self._retransmitted)
        packets = seen.probes + (1 + repeated if seen.in_flight else 0)
        could_answer = seen.silent_s >= UNREACHABLE_S and seen.sent_s >= seen.answer_s
        return could_answer and packets >= self._needed


def needed_packets(retransmitted: int, sent: int) -> int:
    """How many packets in a row are not lost by chance, if so many of the sent ones had to be sent again."""
    if retransmitted <= 0:
        return LEAST_PACKETS
    share = min(retransmitted / (sent + ASSUMED_PACKETS), 0.5)
    return min(max(math.ceil(round(math.log(BY_CHANCE) / math.log(share), 6)), LEAST_PACKETS), MOST_PACKETS)


def counters(shown: SocketLike) -> Counters | None:
    """From struct tcp_info (include/uapi/linux/tcp.h). None for a connection that has just ended."""
    sock = socket.socket(shown.family, shown.type, shown.proto, fileno=shown.fileno())
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:
        return None
    finally:
        sock.detach()
    timeouts, probes = info[2], info[3]
    in_flight, sent_ms, silent_ms, rtt_us, deviation_us, retransmitted, sent = (
        struct.unpack_from("=I", info, offset)[0] for offset in (24, 44, 56, 68, 72, 100, 156)
    )
    answer_s = (rtt_us + 4 * deviation_us) / 1e6
    return Counters(in_flight > 0, probes, timeouts, retransmitted, sent, silent_ms / 1000, sent_ms / 1000, answer_s)


_TCP_INFO_BYTES = 160


def end_everywhere(transport: asyncio.Transport) -> None:
    """End a connection for every process that has its socket; a close here would end it only here."""
    ours = transport.get_extra_info("socket")
    duplicate = socket.socket(ours.family, ours.type, ours.proto, fileno=os.dup(ours.fileno()))
    with duplicate, contextlib.suppress(OSError):  # it has ended already
        duplicate.shutdown(socket.SHUT_RDWR)


def was_silent(error: BaseException | None) -> bool:
    """Whether a connection ended because the peer did not respond, rather than because its kernel closed it."""
    return isinstance(error, OSError) and error.errno in _SILENT

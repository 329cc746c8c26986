"""Socket options by which the kernel finds a silent peer, and what its errors mean.

1 s × 3 of keepalive and a TCP_USER_TIMEOUT of 3 s on every membership connection: no cost in Python at any size.
"""

import errno
import socket
from typing import Protocol

KEEPALIVE_S = 1
KEEPALIVE_PROBES = 3
USER_TIMEOUT_MS = 3000

_SILENT = {errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH}


class HasOptions(Protocol):
    """A socket, or what a transport shows of its own."""

    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...


def watch_peer(sock: HasOptions) -> None:
    """Let the kernel end this connection when the peer's machine stops answering."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)


def was_silent(error: BaseException | None) -> bool:
    """Whether a connection ended because nobody answered, rather than because the peer's kernel closed it."""
    return isinstance(error, OSError) and error.errno in _SILENT

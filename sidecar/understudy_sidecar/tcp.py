"""Socket options with which the kernel detects a silent peer, and the meaning of its errors.

1 s × 3 of keepalive and a TCP_USER_TIMEOUT of 3 s on every membership connection: no cost in Python at any size.
"""

import array
import asyncio
import contextlib
import errno
import fcntl
import os
import socket
import termios
from typing import Protocol

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


def end_everywhere(transport: asyncio.Transport) -> None:
    """End a connection for every process that has its socket; a close here would end it only here."""
    ours = transport.get_extra_info("socket")
    duplicate = socket.socket(ours.family, ours.type, ours.proto, fileno=os.dup(ours.fileno()))
    with duplicate, contextlib.suppress(OSError):  # it has ended already
        duplicate.shutdown(socket.SHUT_RDWR)


def was_silent(error: BaseException | None) -> bool:
    """Whether a connection ended because the peer did not respond, rather than because its kernel closed it."""
    return isinstance(error, OSError) and error.errno in _SILENT

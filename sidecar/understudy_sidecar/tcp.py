"""Socket options by which the kernel finds a silent peer, and what its errors mean.

1 s × 3 of keepalive and a TCP_USER_TIMEOUT of 3 s on every membership connection: no cost in Python at any size.
"""

import asyncio
import errno
import socket

KEEPALIVE_S = 1
KEEPALIVE_PROBES = 3
USER_TIMEOUT_MS = 3000

_SILENT = {errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH}


def watch_peer(sock: socket.socket | None) -> None:
    """Let the kernel end this connection when the peer's machine stops answering. None: it has ended already."""
    if sock is None:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)


class Ending(asyncio.Protocol):
    """Stands between a transport and its protocol, and keeps why the connection ended: aiohttp's own drops that."""

    def __init__(self, transport: asyncio.Transport, protocol: asyncio.Protocol) -> None:
        self.error: BaseException | None = None
        self._protocol = protocol
        self.data_received = protocol.data_received  # type: ignore[method-assign]
        self.eof_received = protocol.eof_received  # type: ignore[method-assign]
        self.pause_writing = protocol.pause_writing  # type: ignore[method-assign]
        self.resume_writing = protocol.resume_writing  # type: ignore[method-assign]
        transport.set_protocol(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.error = exc
        self._protocol.connection_lost(exc)  # type: ignore[arg-type]


def was_silent(error: BaseException | None) -> bool:
    """Whether a connection ended because nobody answered, rather than because the peer's kernel closed it."""
    return isinstance(error, OSError) and error.errno in _SILENT

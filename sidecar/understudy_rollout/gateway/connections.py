"""The connections of unauthenticated clients: their number, and the cost of each.

Rules:
- At most `most` connections are open. If one more arrives, the gateway closes some connections without a complete
  request. It takes the network that has the most of these, in this network the address with the most, and of this
  address the oldest. If the requests of all connections wait for the server, the new one is answered 503. A network is
  a /64 of IPv6, or one address.
- A connection takes at most about 480 KiB of memory: its unfinished header fields (MAX_FIELDS of FIELD_BYTES, stored
  twice), or one request and one answer, of which only small parts are buffered at once (bodies.py, proxy.py).
- A client that reads nothing for UNREAD_S loses its connection.
- A request that is not HTTP is answered 400, and not logged.
"""

import asyncio
import contextlib
import logging
import socket
from collections import Counter
from collections.abc import Iterator
from ipaddress import IPv6Address
from typing import Any, TypeVar

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

T = TypeVar("T")
MAX_CONNECTIONS = 2048
UNREAD_S = 60
MAX_FIELDS, FIELD_BYTES = 48, 4096
#: Limit for all header fields of a request together.
HEAD_BYTES = 16 << 10
#: Buffers of each connection: here, and in the kernel, whose pages count as the gateway's.
READ_BYTES = 16 << 10
_KERNEL_BYTES = 64 << 10
_BACKLOG = 1024
_ACCEPT_AGAIN_S = 0.1
#: An eviction closes one in this many of the permitted connections at once: the search for them takes a millisecond.
_EVICTED = 32
_CROWDED = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
    b"all connections of this gateway wait for the server (raise --most-connections)\n"
)


def _is_ours(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_log = logging.getLogger(__name__)
_log.addFilter(_is_ours)
#: For web.AppRunner.
OPTIONS: dict[str, Any] = {
    "access_log": None,
    "logger": _log,
    "handler_cancellation": True,
    "auto_decompress": False,
    "read_bufsize": READ_BYTES,
    "max_headers": MAX_FIELDS,
    "max_field_size": FIELD_BYTES,
}


class Connections:
    def __init__(self, most: int = MAX_CONNECTIONS) -> None:
        self._most = most
        self._handled: dict[asyncio.BaseProtocol, web.Request] = {}
        self._opening: set[asyncio.Task[None]] = set()
        self._server: web.Server
        self._listener: socket.socket

    @contextlib.contextmanager
    def handled(self, request: web.Request) -> Iterator[None]:
        """From the arrival of the whole request until the end of this block, its connection is not evicted."""
        self._handled[request.protocol] = request
        try:
            yield
        finally:
            self._handled.pop(request.protocol, None)

    def listen(self, server: web.Server, host: str, port: int) -> int:
        """The port (0 chooses a free one). host: "" is all addresses, of IPv4 and of IPv6."""
        self._server = server
        if not host and socket.has_dualstack_ipv6():
            listener = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG)
        else:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _KERNEL_BYTES)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _KERNEL_BYTES)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * UNREAD_S)
        self._listener = listener
        asyncio.get_running_loop().add_reader(listener, self._accept)
        return int(listener.getsockname()[1])

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()

    def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            accepted, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError:  # no file descriptor is free: retry once some connections have ended
            loop.remove_reader(self._listener)
            loop.call_later(_ACCEPT_AGAIN_S, self._accept_again)
            return
        accepted.setblocking(False)
        if len(self._server.connections) + len(self._opening) >= self._most and not self._evict():
            with accepted, contextlib.suppress(OSError):
                accepted.send(_CROWDED)
            return
        opening = loop.create_task(self._serve(accepted))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)

    def _accept_again(self) -> None:
        if self._listener.fileno() >= 0:  # else it is closed
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    async def _serve(self, accepted: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self._server, accepted)
        except OSError:
            accepted.close()

    def _evict(self) -> bool:
        """Return whether a connection is free now."""
        waiting: dict[str, list[asyncio.Transport]] = {}  # by address, the oldest first
        for protocol in self._server.connections:
            if not self._is_whole(protocol) and (transport := protocol.transport) is not None:
                address = str((transport.get_extra_info("peername") or ("",))[0])
                waiting.setdefault(address, []).append(transport)
        if not waiting:
            return False
        for transport in of_largest(waiting)[: max(1, self._most // _EVICTED)]:
            transport.abort()
        return True

    def _is_whole(self, protocol: asyncio.BaseProtocol) -> bool:
        request = self._handled.get(protocol)
        return request is not None and request.content.is_eof()


def of_largest(waiting: dict[str, list[T]]) -> list[T]:
    """waiting: by address. Return the entry of the address with the most, in the network with the most."""
    in_network: Counter[str] = Counter()
    for address, transports in waiting.items():
        in_network[network_of(address)] += len(transports)
    return waiting[max(waiting, key=lambda address: (in_network[network_of(address)], len(waiting[address])))]


def network_of(address: str) -> str:
    if ":" not in address:
        return address
    found = IPv6Address(address.partition("%")[0])
    return str(found.ipv4_mapped or int(found) >> 64)

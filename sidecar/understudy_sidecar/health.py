"""The probes: GET /started answers 200 as soon as this sidecar listens; GET /ready, for a pool's spares, answers 503
while the spare is not ready. And GET /metrics for Prometheus (metrics.py).

Any other path gets the answer of /started. A request that takes LIMIT_S or too many bytes gets none. The metrics are
calculated at most once in FRESH_S, for all callers.
"""

import asyncio
from collections.abc import Callable
from typing import cast

from understudy_protocol.frames import ProtocolError
from understudy_protocol.upgrade import take_head
from understudy_sidecar.clock import now
from understudy_sidecar.metrics import CONTENT_TYPE
from understudy_sidecar.waiting_connections import WaitingConnections

LIMIT_S = 5.0
FRESH_S = 0.2
#: In total, and from one address.
MAX_WAITING, MAX_WAITING_PER_ADDRESS = 256, 64
TEXT = "text/plain"
OK, UNREADY = "200 OK", "503 Service Unavailable"


async def listen(
    port: int,
    host: str | None = None,
    *,
    metrics: Callable[[], bytes] = lambda: b"",
    why_not_ready: Callable[[], str] = lambda: "",
) -> asyncio.Server:
    """why_not_ready: returns "" while the spare is ready."""
    waiting = WaitingConnections(MAX_WAITING, MAX_WAITING_PER_ADDRESS, LIMIT_S)
    loop = asyncio.get_running_loop()
    fresh = _CachedText(metrics)
    return await loop.create_server(lambda: _Request(waiting, fresh, why_not_ready), host, port)


class _CachedText:
    """A text that is calculated again after FRESH_S."""

    def __init__(self, calculate: Callable[[], bytes]) -> None:
        self._calculate = calculate
        self._until, self._text = 0.0, b""

    def __call__(self) -> bytes:
        if now() >= self._until:
            self._text = self._calculate()
            self._until = now() + FRESH_S
        return self._text


class _Request(asyncio.Protocol):
    def __init__(
        self, waiting: WaitingConnections, metrics: Callable[[], bytes], why_not_ready: Callable[[], str]
    ) -> None:
        self._waiting, self._metrics, self._why_not_ready = waiting, metrics, why_not_ready
        self.peer = "?"
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        address = transport.get_extra_info("peername")
        self.peer = str(address[0]) if address else "?"
        self._waiting.add(self)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._received += data
        try:
            head = take_head(self._received)
            if head is None:
                return
            self._transport.write(self._answer(head))
        except ProtocolError:
            pass
        self._received.clear()
        self._transport.close()

    def _answer(self, head: bytes) -> bytes:
        match head.split(b" ", 2)[1:2]:
            case [b"/metrics"]:
                return _answer(OK, CONTENT_TYPE, self._metrics())
            case [b"/ready"] if why_not := self._why_not_ready():
                return _answer(UNREADY, TEXT, why_not.encode(errors="replace"))
            case _:
                return _answer(OK, TEXT, b"ok")

    def connection_lost(self, exc: Exception | None) -> None:
        self._waiting.remove(self)

    def evict(self, reason: str) -> None:
        assert self._transport is not None
        self._transport.abort()


def _answer(status: str, content_type: str, body: bytes) -> bytes:
    fields = f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\nConnection: close"
    return f"HTTP/1.1 {status}\r\n{fields}\r\n\r\n".encode() + body

"""What the kubelet's probes ask: GET /started answers 200 as soon as this sidecar listens; GET /ready, which a pool's
spares are asked, 503 while one is not ready.

Nothing else is here to ask for, so every other head gets the first answer; one that takes LIMIT_S, or too many bytes,
none.
"""

import asyncio
from collections.abc import Callable
from typing import cast

from understudy_sidecar.frames import Broken
from understudy_sidecar.lobby import Lobby
from understudy_sidecar.tcp import has_unread
from understudy_sidecar.upgrade import take_head

LIMIT_S = 5.0
PLACES = 256
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
_READY = b"GET /ready "


def _unready(why: str) -> bytes:
    text = why.encode(errors="replace")
    head = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nConnection: close\r\n"
    return head + b"Content-Length: %d\r\n\r\n" % len(text) + text


async def listen(port: int, host: str | None = None, why_not_ready: Callable[[], str] = lambda: "") -> asyncio.Server:
    """why_not_ready: "" while it is."""
    lobby = Lobby(PLACES, LIMIT_S)
    return await asyncio.get_running_loop().create_server(lambda: _Question(lobby, why_not_ready), host, port)


class _Question(asyncio.Protocol):
    def __init__(self, lobby: Lobby, why_not_ready: Callable[[], str]) -> None:
        self._lobby, self._why_not_ready = lobby, why_not_ready
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._lobby.enter(self)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._received += data
        try:
            head = take_head(self._received)
            if head is None:
                return
            why_not = self._why_not_ready() if head.startswith(_READY) else ""
            self._transport.write(_unready(why_not) if why_not else _ANSWER)
        except Broken:
            pass
        self._received.clear()
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lobby.leave(self)

    def unread(self) -> bool:
        return self._transport is not None and has_unread(self._transport)

    def turn_out(self, reason: str) -> None:
        assert self._transport is not None
        self._transport.abort()

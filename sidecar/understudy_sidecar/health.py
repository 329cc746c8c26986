"""What the kubelet's startup probe asks: GET /started answers 200 as soon as this sidecar listens.

Nothing else is here to ask for, so every head gets the same answer; one that takes LIMIT_S, or too many bytes, none.
"""

import asyncio
from typing import cast

from understudy_sidecar.frames import Broken
from understudy_sidecar.lobby import Lobby
from understudy_sidecar.tcp import has_unread
from understudy_sidecar.upgrade import take_head

LIMIT_S = 5.0
PLACES = 256
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"


async def listen(port: int, host: str | None = None) -> asyncio.Server:
    lobby = Lobby(PLACES, LIMIT_S)
    return await asyncio.get_running_loop().create_server(lambda: _Question(lobby), host, port)


class _Question(asyncio.Protocol):
    def __init__(self, lobby: Lobby) -> None:
        self._lobby = lobby
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._lobby.enter(self)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._received += data
        try:
            if take_head(self._received) is None:
                return
            self._transport.write(_ANSWER)
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

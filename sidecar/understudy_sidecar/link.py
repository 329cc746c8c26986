"""One WebSocket with an outbox: state machines send without waiting, a task of the link's own writes.

A peer that reads too slowly fills its outbox and is hung up on: it may reconnect, and nobody else is held up.
"""

import asyncio
import logging
from typing import Any

import aiohttp
from aiohttp import web

from understudy_protocol import wire

OUTBOX = 256
log = logging.getLogger(__name__)

Socket = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


class Link:
    def __init__(self, number: int, socket: Socket, peer: str) -> None:
        self.number = number
        self.peer = peer
        self._socket = socket
        self._outbox: asyncio.Queue[str | None] = asyncio.Queue(OUTBOX)
        self._writer = asyncio.create_task(self._write(), name=f"link-{number}-writer")

    def send(self, message: Any) -> None:
        try:
            self._outbox.put_nowait(wire.encode(message))
        except asyncio.QueueFull:
            log.warning("%s reads too slowly: hung up on", self.peer)
            self._writer.cancel()

    def hangup(self) -> None:
        """Close after what is already in the outbox."""
        try:
            self._outbox.put_nowait(None)
        except asyncio.QueueFull:
            self._writer.cancel()

    async def done(self) -> None:
        """End the writer; call once, when the reader has ended."""
        self._writer.cancel()
        await asyncio.gather(self._writer, return_exceptions=True)

    async def flushed(self, limit_s: float) -> None:
        """Wait until the outbox is written, or the limit has passed."""
        self.hangup()
        await asyncio.wait({self._writer}, timeout=limit_s)

    async def _write(self) -> None:
        try:
            while (text := await self._outbox.get()) is not None:
                await self._socket.send_str(text)
        except (ConnectionError, RuntimeError, aiohttp.ClientError) as error:
            log.debug("%s: %s", self.peer, error)
        finally:
            # Not awaited to the peer's answer: a silent one would hold us up.
            await asyncio.shield(asyncio.wait_for(self._socket.close(), 1.0))

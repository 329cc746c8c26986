"""Detects that the server behind the gateway was restarted: by an open connection, and a check each second.

The kernel ends that connection as soon as the server's process ends, before another process can listen. So while the
connection is open, requests can reach only the known server. While it is closed, the gateway sends no request
(`connected`). Its end is handled in the event loop's callback, not in a task that it wakes: before that task ran, an
answer of a restarted server could arrive. If a server closes idle connections, the gateway reconnects.
"""

import asyncio
import logging
import socket
from typing import Callable, Optional

from understudy_rollout.gateway.listener import listener_at
from understudy_rollout.gateway.weights_file import engine_gone
from understudy_rollout.weights import WeightsLost

CHECK_EVERY_S = 1.0
SILENT_S = 3  # a server on a machine that has failed sends no FIN
log = logging.getLogger(__name__)


class EngineWatch:
    def __init__(
        self,
        address: tuple[str, int],
        sees: Callable[[Optional[str]], Optional[WeightsLost]],
        lost: Callable[[WeightsLost], None],
    ) -> None:
        self._address, self._on_listener, self._on_lost = address, sees, lost
        self._known = False  # a server was connected, and its end was not reported yet
        self._standing = asyncio.Event()
        self.connected = False

    def check(self) -> None:
        """Check the listening process. On return the consequences are done."""
        lost = self._on_listener(listener_at(self._address))
        if lost is not None:
            self._on_lost(lost)

    async def until_connected(self, limit_s: float = 2 * CHECK_EVERY_S) -> bool:
        try:
            await asyncio.wait_for(self._standing.wait(), limit_s)
        except (asyncio.TimeoutError, TimeoutError):
            return False
        return self.connected

    async def run(self) -> None:
        """Runs forever."""
        loop = asyncio.get_running_loop()
        short = 0  # number of consecutive short connections
        while True:
            since = loop.time()
            line = await self._connect()
            if line is None:
                await asyncio.sleep(CHECK_EVERY_S)
                continue
            try:
                while not line.ended.done():
                    await asyncio.wait({line.ended}, timeout=CHECK_EVERY_S)
                    self.check()
            finally:
                line.close()
            short = short + 1 if loop.time() < since + CHECK_EVERY_S else 0
            if short > 1:
                await asyncio.sleep(CHECK_EVERY_S)

    async def _connect(self) -> "Optional[_EngineConnection]":
        loop = asyncio.get_running_loop()
        try:
            transport, line = await loop.create_connection(lambda: _EngineConnection(self._ended), *self._address)
        except OSError as error:
            self._refused(str(error))
            return None
        if transport.get_extra_info("sockname") == transport.get_extra_info("peername"):
            transport.abort()  # if no process listens, the kernel may connect a socket to itself
            self._refused("no process listens")
            return None
        self._known = self.connected = True
        self._standing.set()
        self.check()  # another process than before may have answered
        return line

    def _ended(self) -> None:
        self.connected = False
        self._standing.clear()
        self.check()

    def _refused(self, why: str) -> None:
        """No process accepted the connection."""
        self.check()
        known, self._known = self._known, False
        if known and listener_at(self._address) is None:
            self._on_lost(WeightsLost(engine_gone(why)))


class _EngineConnection(asyncio.Protocol):
    """A connection over which no data is sent."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._has_reported = on_end
        self._transport: Optional[asyncio.BaseTransport] = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", 1), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", SILENT_S)):
            if hasattr(socket, option):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)

    def eof_received(self) -> None:
        self._end()

    def connection_lost(self, error: Optional[Exception]) -> None:
        self._end()

    def close(self) -> None:
        """Close it without a report."""
        self._has_reported = lambda: None
        if self._transport is not None:
            self._transport.close()

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
            self._has_reported()

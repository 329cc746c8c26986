"""Whether the server behind the gateway is the one that was there: a look each second, and a connection held open.

The kernel ends that connection in the moment in which the server's process ends, long before another one can listen. So
the weights are Lost before a request can meet a server that was started anew. Servers that hang up on idle connections
are connected to again.
"""

import asyncio
import logging
import socket
from typing import Callable, Optional

from understudy_rollout.gateway.keeper import gone
from understudy_rollout.gateway.listener import listener_at
from understudy_rollout.weights import Lost

LOOK_EVERY_S = 1.0
SILENT_S = 3  # a server elsewhere whose machine is gone sends no FIN
log = logging.getLogger(__name__)


class Watch:
    def __init__(
        self,
        address: tuple[str, int],
        sees: Callable[[Optional[str]], Optional[Lost]],
        lost: Callable[[Lost], None],
    ) -> None:
        self._address, self._sees, self._lost = address, sees, lost
        self._connected = False  # to a server whose end has not been told

    def look(self) -> None:
        """Who listens now; what follows is done when this returns."""
        lost = self._sees(listener_at(self._address))
        if lost is not None:
            self._lost(lost)

    def refused(self, why: str) -> None:
        """Nobody was there to take a connection."""
        self.look()
        if self._connected:
            self._connected = False
            if listener_at(self._address) is None:
                self._lost(Lost(gone(why)))

    async def run(self) -> None:
        """For ever."""
        loop = asyncio.get_running_loop()
        while True:
            self.look()
            since = loop.time()
            try:
                reader, writer = await asyncio.open_connection(*self._address)
            except OSError as error:
                self.refused(str(error))
                await asyncio.sleep(LOOK_EVERY_S)
                continue
            self._connected = True
            _notice_silence(writer)
            try:
                await self._until_ended(reader)
            finally:
                writer.close()
            self.look()
            if loop.time() < since + LOOK_EVERY_S and await self._listens():
                await asyncio.sleep(LOOK_EVERY_S)

    async def _until_ended(self, reader: asyncio.StreamReader) -> None:
        while True:
            try:
                if not await asyncio.wait_for(reader.read(1024), LOOK_EVERY_S):
                    return
            except (asyncio.TimeoutError, TimeoutError):
                self.look()
            except OSError:
                return

    async def _listens(self) -> bool:
        """Asked at once where a connection did not last: a second later another server could be there."""
        try:
            _, writer = await asyncio.open_connection(*self._address)
        except OSError as error:
            self.refused(str(error))
            return False
        writer.close()
        return True


def _notice_silence(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 1), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", SILENT_S)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)

"""One WebSocket from the operator to one sidecar: proves the job's key, then carries messages both ways.

What is said waits in an outbox, so that no pass of the operator waits for a sidecar that does not read.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import aiohttp
from yarl import URL

from understudy_protocol import compiled, handshake, observer, wire
from understudy_protocol import pod as names
from understudy_protocol.handshake import Caller, NotProven, Role

CONNECT_S = 3.0
CLOSE_S = 1.0
#: A ping so often, and half of that for its answer: they find a peer whose machine has gone without a word.
PING_S = 2.0
SNAPSHOT_BYTES = 64 * 1024 * 1024
#: What ends a line, and is no error of ours.
FAILURES = (aiohttp.ClientError, OSError, wire.WireError, NotProven, TimeoutError)

_HANDSHAKE = wire.message_types(handshake)
_OBSERVER = wire.message_types(observer)


class Line:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._outbox: asyncio.Queue[str] = asyncio.Queue()

    def say(self, message: object) -> None:
        self._outbox.put_nowait(wire.encode(message))

    async def said(self, limit_s: float) -> None:
        """Wait until all of it has gone to the kernel, or the limit is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._outbox.join()

    async def messages(self) -> AsyncIterator[object]:
        """What the sidecar tells, until the line ends."""
        async for frame in self._socket:
            if frame.type is not aiohttp.WSMsgType.TEXT:
                raise wire.WireError(f"expected a text frame, got {frame.type!r}")
            yield compiled.decode(frame.data, _OBSERVER)

    async def write(self) -> None:
        while True:
            await self._socket.send_str(await self._outbox.get())
            self._outbox.task_done()


@asynccontextmanager
async def open_line(session: aiohttp.ClientSession, ip: str, job_uid: str, key: bytes) -> AsyncIterator[Line]:
    """A line whose other side has proved the key. Raises one of FAILURES."""
    url = URL.build(scheme="http", host=ip, port=names.COORDINATOR_PORT, path=names.MEMBERSHIP_PATH)
    patience = aiohttp.ClientWSTimeout(ws_close=CLOSE_S)
    async with session.ws_connect(url, timeout=patience, heartbeat=PING_S, max_msg_size=SNAPSHOT_BYTES) as socket:
        async with asyncio.timeout(CONNECT_S):
            await _authenticate(socket, job_uid, key)
        line = Line(socket)
        writer = asyncio.create_task(line.write(), name=f"line {ip}")
        try:
            yield line
        finally:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)


async def _authenticate(socket: aiohttp.ClientWebSocketResponse, job_uid: str, key: bytes) -> None:
    caller = Caller(key, Role.OBSERVER, job_uid, secrets.token_hex(handshake.NONCE_BYTES))
    await socket.send_str(wire.encode(caller.hello))
    frame = await socket.receive()
    challenge = wire.decode(frame.data, _HANDSHAKE) if frame.type is aiohttp.WSMsgType.TEXT else None
    await socket.send_str(wire.encode(caller.answer(challenge)))

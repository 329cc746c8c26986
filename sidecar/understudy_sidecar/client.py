"""The member's connection to the coordinator: dials, proves the key, hands messages to and fro.

Dials until it works: at once, then after 50 ms, doubling to 1 s. A sidecar whose own office coordinates dials itself,
without the detour over the Service.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable
from typing import Any, cast

import aiohttp
from yarl import URL

from understudy_protocol import handshake, membership, pod, wire
from understudy_protocol.handshake import Caller, NotProven, Role
from understudy_sidecar.link import Link
from understudy_sidecar.server import FRAME_BYTES
from understudy_sidecar.tcp import watch_peer

CONNECT_S = 3.0
CLOSE_S = 1.0
FIRST_RETRY_S = 0.05
LONGEST_RETRY_S = 1.0

_MEMBERSHIP = wire.message_types(membership)
_HANDSHAKE = wire.message_types(handshake)
log = logging.getLogger(__name__)


class CoordinatorClient:
    """Callbacks: on_up() when linked and authenticated, on_message(message), on_down() when an up link has ended."""

    def __init__(
        self,
        address: Callable[[], tuple[str, int]],
        key: bytes,
        job_uid: str,
        on_up: Callable[[], None],
        on_message: Callable[[object], None],
        on_down: Callable[[], None],
    ) -> None:
        self._address, self._key, self._job_uid = address, key, job_uid
        self._on_up, self._on_message, self._on_down = on_up, on_message, on_down
        self._link: Link | None = None
        self._task: asyncio.Task[None] | None = None

    def dial(self) -> None:
        self._end_task()
        self._task = asyncio.create_task(self._run(), name="coordinator-client")

    def send(self, message: object) -> None:
        if self._link is not None:
            self._link.send(message)

    def hangup(self) -> None:
        """Close after what was sent; no on_down follows."""
        link, self._link = self._link, None
        if link is not None:
            link.hangup()
        else:
            self._end_task()

    async def flushed(self, limit_s: float) -> None:
        """Wait until all that was sent is written, then close."""
        if self._link is not None:
            await self._link.flushed(limit_s)

    def _end_task(self) -> None:
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    async def _run(self) -> None:
        delay = FIRST_RETRY_S
        said = ""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)) as session:
            while True:
                try:
                    await self._talk(session)
                    return
                except (aiohttp.ClientError, OSError, wire.WireError, NotProven, TimeoutError) as error:
                    if str(error) != said:
                        said = str(error)
                        log.info("no coordinator yet: %s", said or type(error).__name__)
                await asyncio.sleep(delay)
                delay = min(2 * delay, LONGEST_RETRY_S)

    async def _talk(self, session: aiohttp.ClientSession) -> None:
        """One connection, from its start to its end. Raises where it did not come to a link."""
        host, port = self._address()
        url = URL.build(scheme="http", host=host, port=port, path=pod.MEMBERSHIP_PATH)
        async with contextlib.AsyncExitStack() as stack:
            # The limit is on all of it: a frozen machine's kernel takes the call, and nobody answers.
            async with asyncio.timeout(CONNECT_S):
                socket = await stack.enter_async_context(
                    session.ws_connect(url, max_msg_size=FRAME_BYTES, timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_S))
                )
                watch_peer(cast(Any, socket.get_extra_info("socket")))
                await self._authenticate(socket)
            link = self._link = Link(0, socket, str(url))
            try:
                self._on_up()
                await self._listen(socket)
            except wire.WireError as error:
                log.warning("hangs up on the coordinator: %s", error)
            finally:
                await link.done()
                if self._link is link:
                    self._link = None
                    self._on_down()

    async def _listen(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for frame in socket:
            if frame.type is not aiohttp.WSMsgType.TEXT:
                raise wire.WireError(f"expected a text frame, got {frame.type.name}: {frame.data!r:.80}")
            message = wire.decode(frame.data, _MEMBERSHIP)
            if isinstance(message, wire.Unknown):
                log.info("the coordinator sent the unknown type %s: dropped", message.type[:64])
            else:
                self._on_message(message)

    async def _authenticate(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        caller = Caller(self._key, Role.MEMBER, self._job_uid, secrets.token_hex(handshake.NONCE_BYTES))
        await socket.send_str(wire.encode(caller.hello))
        await socket.send_str(wire.encode(caller.answer(await self._receive(socket))))

    async def _receive(self, socket: aiohttp.ClientWebSocketResponse) -> object:
        frame = await socket.receive()
        if frame.type is not aiohttp.WSMsgType.TEXT:
            raise NotProven("it hung up")
        return wire.decode(frame.data, _HANDSHAKE)

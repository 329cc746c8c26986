"""The sidecar's WebSocket server: members and the operator call here.

Rules: nothing is believed before both sides proved the job's key; a caller has HANDSHAKE_S for it. A frame is at most
FRAME_BYTES. What fails here ends one connection, and is logged once.
"""

import asyncio
import itertools
import logging
import secrets

from aiohttp import WSMsgType, web

from understudy_protocol import handshake, membership, observer, pod, wire
from understudy_protocol.handshake import Challenge, Hello, Prove, Role
from understudy_protocol.observer import Appoint, Refused
from understudy_sidecar.link import Link
from understudy_sidecar.office import Office
from understudy_sidecar.tcp import Ending, was_silent, watch_peer

FRAME_BYTES = 64 * 1024
HANDSHAKE_S = 5.0

_MEMBERSHIP = wire.message_types(membership)
_OBSERVER = wire.message_types(observer)
_HANDSHAKE = wire.message_types(handshake)
log = logging.getLogger(__name__)


class Rejected(Exception):
    """A caller that is turned away: the reason."""


class NotInOffice(Exception):
    """A member called a sidecar that does not coordinate: usual while an office is being taken; it calls again."""


class Server:
    def __init__(self, office: Office, key: bytes, job_uid: str) -> None:
        self._office, self._key, self._job_uid = office, key, job_uid
        self._numbers = itertools.count(1)

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get(pod.MEMBERSHIP_PATH, self._serve)
        return app

    async def _serve(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(max_msg_size=FRAME_BYTES, timeout=1.0)
        await socket.prepare(request)
        if request.transport is None:
            return socket  # it has ended already
        watch_peer(request.transport.get_extra_info("socket"))
        ending = Ending(request.transport, request.protocol)
        peer = str(request.remote)
        try:
            role = await asyncio.wait_for(self._authenticate(socket), HANDSHAKE_S)
            if role is Role.MEMBER:
                await self._member(socket, ending, peer)
            else:
                await self._observer(socket, peer)
        except NotInOffice:
            await socket.close(message=b"not in office")
        except (Rejected, wire.WireError, TimeoutError) as error:
            log.warning("turned away %s: %s", peer, str(error) or f"no handshake within {HANDSHAKE_S:g} s")
            await socket.close()
        return socket

    async def _authenticate(self, socket: web.WebSocketResponse) -> Role:
        hello = await _receive(socket, _HANDSHAKE)
        if not isinstance(hello, Hello):
            raise Rejected("the first message is not a Hello")
        if hello.job_uid != self._job_uid:
            raise Rejected(f"it belongs to job {hello.job_uid[:64]!r}, this is {self._job_uid}")
        if hello.role is Role.MEMBER and self._office.coordinator is None:
            raise NotInOffice
        nonce = secrets.token_hex(handshake.NONCE_BYTES)
        parts = (self._key, hello.role, hello.job_uid, hello.nonce, nonce)
        await socket.send_str(wire.encode(Challenge(nonce, handshake.server_proof(*parts))))
        prove = await _receive(socket, _HANDSHAKE)
        if not isinstance(prove, Prove) or not handshake.same(handshake.caller_proof(*parts), prove.proof):
            raise Rejected("it does not know the job's key")
        return hello.role

    async def _member(self, socket: web.WebSocketResponse, ending: Ending, peer: str) -> None:
        link = Link(next(self._numbers), socket, peer)
        self._office.add(link)
        try:
            async for frame in socket:
                if ending.error is not None:
                    break  # the connection broke: aiohttp tells it as a frame
                message = _decode(frame.data, _MEMBERSHIP)
                if isinstance(message, wire.Unknown):
                    log.info("%s sent a message of the unknown type %s: dropped", peer, message.type[:64])
                else:
                    self._office.received(link, message)
        finally:
            self._office.dropped(link, was_silent(ending.error))
            await link.done()

    async def _observer(self, socket: web.WebSocketResponse, peer: str) -> None:
        teller: asyncio.Task[None] | None = None
        self._office.observed(1)
        try:
            async for frame in socket:
                message = _decode(frame.data, _OBSERVER)
                if isinstance(message, Appoint):
                    self._office.appoint(message)
                if self._office.coordinator is None:
                    await socket.send_str(wire.encode(Refused("this sidecar is not in office")))
                elif teller is None:
                    teller = asyncio.create_task(self._tell(socket), name=f"observer {peer}")
        finally:
            self._office.observed(-1)
            if teller is not None:
                teller.cancel()
                await asyncio.gather(teller, return_exceptions=True)

    async def _tell(self, socket: web.WebSocketResponse) -> None:
        seen = -1
        while not socket.closed:
            seen = await self._office.changes(seen)
            snapshot = self._office.snapshot()
            if snapshot is not None:
                await socket.send_str(wire.encode(snapshot))


def _decode(data: object, known: "dict[str, type]") -> object:
    if not isinstance(data, str):
        raise wire.WireError("expected a text frame")
    return wire.decode(data, known)


async def _receive(socket: web.WebSocketResponse, known: "dict[str, type]") -> object:
    frame = await socket.receive()
    if frame.type is not WSMsgType.TEXT:
        raise Rejected("it ended the handshake")
    return _decode(frame.data, known)

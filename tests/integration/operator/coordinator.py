"""A sidecar that says what a test wants: the operator's side of the protocol, on a loopback address of its own."""

import asyncio
import secrets
from contextlib import suppress

from aiohttp import WSMsgType, web

from understudy_protocol import handshake, observer, wire
from understudy_protocol import pod as names
from understudy_protocol.handshake import Challenge, Hello, Prove, Role, caller_proof, server_proof
from understudy_protocol.observer import TO_SIDECAR, Appoint, Observe, Refused, Snapshot, Stepping

#: Turns of the event loop from a connection's acceptance until its server knows it; asyncio takes three.
ACCEPTANCE_TURNS = 10
_HANDSHAKE = wire.message_types(handshake)
_OBSERVER = wire.message_types(observer)


class FakeSidecar:
    """`ip` is what a test gives its pod. It is silent until it has something to tell."""

    def __init__(self) -> None:
        self.ip = loopback_address()
        self.heard: list[object] = []
        self.takes_office = True  # when it is appointed: it says so as soon as the test tells what
        self.callers = 0  # also those that proved nothing
        self.observers: set[web.WebSocketResponse] = set()
        self._key, self._job_uid = b"", ""
        self._newest: Snapshot | Refused | None = None
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None

    @property
    def appointments(self) -> list[Appoint]:
        return [message for message in self.heard if isinstance(message, Appoint)]

    async def start(self, key: bytes, job_uid: str) -> None:
        self._key, self._job_uid = key, job_uid
        app = web.Application()
        app.router.add_get(names.MEMBERSHIP_PATH, self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        assert self._runner.server is not None
        self._server = await loop.create_server(self._runner.server, self.ip, names.COORDINATOR_PORT)

    async def stop(self) -> None:
        if self._runner is None or self._server is None:
            return
        # The operator may still run, and call again. asyncio never closes a connection whose listener is closed between
        # its acceptance and the third turn after it.
        for listener in self._server.sockets:
            asyncio.get_running_loop().remove_reader(listener.fileno())
        for _ in range(ACCEPTANCE_TURNS):
            await asyncio.sleep(0)
        self._server.close()
        for socket in list(self.observers):
            await socket.close()
        await self._runner.cleanup()

    async def tell(self, message: Snapshot | Stepping | Refused) -> None:
        """To everybody who listens; and to whoever comes later, steps aside."""
        if not isinstance(message, Stepping):
            self._newest = message
        for socket in list(self.observers):
            with suppress(ConnectionError):
                await socket.send_str(wire.encode(message))

    async def _serve(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self.callers += 1
        await self._prove(socket)
        self.observers.add(socket)
        try:
            async for frame in socket:
                message = wire.decode(frame.data, _OBSERVER)
                assert isinstance(message, TO_SIDECAR)
                self.heard.append(message)
                if self._answers(message):
                    await socket.send_str(wire.encode(self._newest))
        finally:
            self.observers.discard(socket)
        return socket

    def _answers(self, message: object) -> bool:
        if isinstance(message, Appoint) and self.takes_office and isinstance(self._newest, Refused):
            return False
        return self._newest is not None and isinstance(message, Observe | Appoint)

    async def _prove(self, socket: web.WebSocketResponse) -> None:
        hello = await _receive(socket)
        assert isinstance(hello, Hello)
        assert (hello.role, hello.job_uid) == (Role.OBSERVER, self._job_uid)
        nonce = secrets.token_hex(handshake.NONCE_BYTES)
        parts = (self._key, hello.role, hello.job_uid, hello.nonce, nonce)
        await socket.send_str(wire.encode(Challenge(nonce, server_proof(*parts))))
        prove = await _receive(socket)
        assert prove == Prove(caller_proof(*parts)), "the operator does not know the key"


async def _receive(socket: web.WebSocketResponse) -> object:
    frame = await asyncio.wait_for(socket.receive(), 5)
    assert frame.type is WSMsgType.TEXT
    message: object = wire.decode(frame.data, _HANDSHAKE)
    return message


def loopback_address() -> str:
    """One that nobody else uses: all of 127.0.0.0/8 is this machine, and the port is the same for all."""
    return "127." + ".".join(str(2 + secrets.randbelow(250)) for _ in range(3))

"""A sidecar that reports whatever a test sends: the operator calls it at its own loopback address."""

import asyncio
import secrets
from contextlib import suppress

from aiohttp import web

from tests.sealed_socket import SealedSocket, receive_hello, seal
from understudy_operator.runtime.line import Keys
from understudy_protocol import compiled, observer, wire
from understudy_protocol import pod as names
from understudy_protocol.handshake import HandshakeCalled, Role
from understudy_protocol.noise import public_key
from understudy_protocol.observer import TO_SIDECAR, Appoint, Observe, Refused, Snapshot, Stepping

COORDINATOR_PORT = 8478

#: Iterations of the event loop from a connection's acceptance until its server knows it; asyncio needs three.
ACCEPTANCE_ATTEMPTS = 10
HANDSHAKE_S = 5.0
#: For tests in which no process of the operator runs.
KEYS = Keys(membership=bytes(range(32)), operator=bytes(range(32, 64)))
OPERATOR_PUBLIC = public_key(KEYS.operator)
_OBSERVER = wire.message_types(observer)


class FakeSidecar:
    """It stays silent until a test calls `report`. A test gives `ip` to the pod of this uid."""

    def __init__(self, pod_uid: str = "") -> None:
        self.ip, self.pod_uid = loopback_address(), pod_uid
        self.received: list[object] = []
        self.becomes_coordinator = True  # after its appointment, as soon as the test sends a report
        self.callers = 0  # including callers without the key
        self.observers: set[SealedSocket] = set()
        self._key, self._operator_key, self._job_uid = b"", b"", ""
        self._newest: Snapshot | Refused | None = None
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None

    @property
    def appointments(self) -> list[Appoint]:
        return [message for message in self.received if isinstance(message, Appoint)]

    async def start(self, key: bytes, operator_key: bytes, job_uid: str) -> None:
        """operator_key: the public half."""
        self._key, self._operator_key, self._job_uid = key, operator_key, job_uid
        app = web.Application()
        app.router.add_get(names.MEMBERSHIP_PATH, self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        assert self._runner.server is not None
        self._server = await loop.create_server(self._runner.server, self.ip, COORDINATOR_PORT)

    async def stop(self) -> None:
        if self._runner is None or self._server is None:
            return
        # The operator may still run, and call again. asyncio never closes a connection whose listener is closed between
        # its acceptance and the third iteration after it.
        for listener in self._server.sockets:
            asyncio.get_running_loop().remove_reader(listener.fileno())
        for _ in range(ACCEPTANCE_ATTEMPTS):
            await asyncio.sleep(0)
        self._server.close()
        for socket in list(self.observers):
            await socket.close()
        await self._runner.cleanup()

    async def report(self, message: Snapshot | Stepping | Refused) -> None:
        """Send the message to all observers, and unless it is a Stepping, to later ones."""
        if not isinstance(message, Stepping):
            self._newest = message
        for socket in list(self.observers):
            with suppress(ConnectionError):
                await socket.send(compiled.encode(message))

    async def _serve(self, request: web.Request) -> web.WebSocketResponse:
        websocket = web.WebSocketResponse()
        await websocket.prepare(request)
        self.callers += 1
        async with asyncio.timeout(HANDSHAKE_S):
            socket = await seal(websocket, self._called(), await receive_hello(websocket))
        self.observers.add(socket)
        try:
            while (text := await socket.receive()) is not None:
                message = compiled.decode(text, _OBSERVER)
                assert isinstance(message, TO_SIDECAR)
                self.received.append(message)
                if self._newest is not None and self._answers(message):
                    await socket.send(compiled.encode(self._newest))
        finally:
            self.observers.discard(socket)
        return websocket

    def _called(self) -> HandshakeCalled:
        return HandshakeCalled(self._key, Role.OBSERVER, self._job_uid, self.pod_uid, self.ip, self._operator_key)

    def _answers(self, message: object) -> bool:
        if isinstance(message, Appoint) and self.becomes_coordinator and isinstance(self._newest, Refused):
            return False
        return isinstance(message, Observe | Appoint)


def loopback_address() -> str:
    """An unused one: all of 127.0.0.0/8 is this machine, and the port is the same for all."""
    return "127." + ".".join(str(2 + secrets.randbelow(250)) for _ in range(3))

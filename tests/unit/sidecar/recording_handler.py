"""A real server on this machine, a handler that records its callers and their messages, and real callers.

The callers use aiohttp: another implementation of WebSocket than the server's own.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, cast

import aiohttp
import pytest

from tests.ports import free_port
from understudy_protocol import adoption, handshake, membership, observer, wire
from understudy_protocol import membership as m
from understudy_protocol.enums import NO_ROUND, WorkersState
from understudy_protocol.frames import Opcode, frame
from understudy_protocol.handshake import Call, HandshakeCaller, Role
from understudy_protocol.noise import public_key
from understudy_protocol.pod import MEMBERSHIP_PATH
from understudy_protocol.sessions import Session
from understudy_protocol.upgrade import request
from understudy_sidecar.link import Link
from understudy_sidecar.server import Server, SidecarIdentity

KEY, OTHER_KEY, JOB = bytes(range(32)), bytes(range(100, 132)), "job-uid"
#: The operator's private key, and another private key.
OPERATOR, OTHER_OPERATOR = bytes(range(32, 64)), bytes(range(64, 96))
#: The pod of the server, and the pod of the callers.
SERVER_POD, MEMBER_POD = "uid-of-the-coordinator", "uid-1"
KNOWN = {
    name: cls
    for module in (membership, observer, adoption, handshake)
    for name, cls in wire.message_types(module).items()
}
#: Seconds; less than the server's own limit of 5 s.
AT_ONCE_S = 4.0
WELCOME = m.Welcome(NO_ROUND, pod_uid=SERVER_POD)

#: Ports that healthy members report: each a different one.
PORTS = itertools.count(50_000)

MakeSocket = Callable[[Any], socket.socket]
Socket = aiohttp.ClientWebSocketResponse


def caller(
    role: Role = Role.MEMBER, key: bytes = KEY, job: str = JOB, pod_uid: str = MEMBER_POD, called: str = ""
) -> HandshakeCaller:
    """The caller's side of a handshake; in the operator's roles with the operator's key."""
    return HandshakeCaller(key, role, job, Call(pod_uid, called), None if role is Role.MEMBER else OPERATOR)


def text_frame(message: object) -> bytes:
    """A caller's frame with a message that is not encrypted."""
    return frame(Opcode.TEXT, wire.encode(message).encode(), masked=True)


#: A caller's first bytes. The Hello was made with the key: a caller without the key has recorded it.
HEAD, _ = request("x", 1, MEMBERSHIP_PATH)
HELLO = text_frame(caller().hello)


class SealedCaller:
    """A caller after its handshake: all messages are encrypted."""

    def __init__(self, socket: Socket, session: Session) -> None:
        self.socket, self._session = socket, session

    async def send(self, message: object) -> None:
        await self.send_text(wire.encode(message))

    async def send_text(self, text: str | bytes) -> None:
        await self.socket.send_bytes(self.sealed(text))

    async def receive(self, limit_s: float = 2.0) -> object:
        """The next message, decoded."""
        return wire.decode(await self.receive_text(limit_s), KNOWN)

    async def receive_text(self, limit_s: float = 2.0) -> bytes:
        """The next message. Raises EOFError if the peer ends the connection, and NotAuthentic."""
        received = await self.socket.receive(limit_s)
        if received.type is not aiohttp.WSMsgType.BINARY:
            raise EOFError(received.extra)
        return self._session.open(received.data)

    def sealed(self, text: str | bytes) -> bytes:
        """The next message, encrypted. The test has to send it, because both sides count messages."""
        return self._session.seal(text.encode() if isinstance(text, str) else text)

    def sealed_frame(self, text: str | bytes) -> bytes:
        """The same as a caller's frame."""
        return frame(Opcode.BINARY, self.sealed(text), masked=True)

    @property
    def transport(self) -> asyncio.Transport:
        """The transport under the WebSocket, for actions of no well-behaved caller."""
        connection = self.socket._response.connection
        assert connection is not None
        return cast(asyncio.Transport, connection.transport)


class RecordingHandler:
    """Answers each Join with WELCOME."""

    def __init__(self) -> None:
        self.links: list[Link] = []  # of members, in the order of their arrival
        self.messages: list[object] = []
        self.dropped_links: list[bool] = []  # silent?
        self.observers: list[Link] = []
        self.observer_messages: list[object] = []
        self.observers_gone = 0

    def add(self, link: Link) -> None:
        self.links.append(link)

    def on_message(self, link: Link, message: object) -> None:
        self.messages.append(message)
        if isinstance(message, m.Join):
            link.send(WELCOME)

    def on_dropped(self, link: Link, silent: bool) -> None:
        self.dropped_links.append(silent)

    def add_observer(self, link: Link) -> None:
        self.observers.append(link)

    def on_observer_message(self, link: Link, message: object) -> None:
        self.observer_messages.append(message)

    def on_observer_dropped(self, link: Link) -> None:
        self.observers_gone += 1


class ServedSidecar:
    def __init__(self, server: Server, handler: RecordingHandler, host: str, port: int) -> None:
        self.server, self.handler, self.host, self.port = server, handler, host, port
        self.url = f"http://{host}:{port}{MEMBERSHIP_PATH}"

    @asynccontextmanager
    async def upgraded(self, make_socket: MakeSocket | None = None) -> AsyncIterator[Socket]:
        """A caller that has not sent a message yet."""
        connector = aiohttp.TCPConnector(socket_factory=make_socket)
        async with aiohttp.ClientSession(connector=connector) as session, session.ws_connect(self.url) as link:
            yield link

    @asynccontextmanager
    async def calling(
        self, as_caller: HandshakeCaller | None = None, make_socket: MakeSocket | None = None
    ) -> AsyncIterator[SealedCaller]:
        """A caller that has completed the handshake; a member unless as_caller is set."""
        async with self.upgraded(make_socket) as link:
            sealed = await begin(link, as_caller or caller())
            assert sealed is not None, "the server has accepted the handshake"
            yield sealed

    @asynccontextmanager
    async def member(self) -> AsyncIterator[SealedCaller]:
        """A member that has joined, and was welcomed."""
        async with self.calling() as link:
            await link.send_text(join())
            assert await link.receive() == WELCOME
            yield link

    @contextmanager
    def dialed(self, source: str = "127.0.0.1") -> Iterator[socket.socket]:
        """A bare TCP connection."""
        with socket.create_connection((self.host, self.port), source_address=(source, 0)) as sock:
            sock.setblocking(False)
            yield sock


class HealthyMember:
    """A member that is connected while a test acts as other callers."""

    def __init__(self, served: ServedSidecar, link: SealedCaller) -> None:
        self._handler, self._link = served.handler, link
        self._there = served.handler.links[-1]

    async def assert_served(self, limit_s: float = AT_ONCE_S) -> None:
        """The server receives its message and answers at once, on the same connection as before."""
        number = next(PORTS)
        await self._link.send(m.Port(number))
        await until(lambda: m.Port(number) in self._handler.messages, limit_s)
        self._there.send(m.Heartbeat(number, NO_ROUND))
        assert await self._link.receive(limit_s) == m.Heartbeat(number, NO_ROUND)


@asynccontextmanager
async def serving(
    host: str = "127.0.0.1", port: int = 0, members: int = 0, *, with_port: bool = False
) -> AsyncIterator[ServedSidecar]:
    """with_port: its address has the port, as with hostNetwork."""
    handler = RecordingHandler()
    port = free_port() if with_port else port
    address = f"{host}:{port}" if with_port else host
    server = Server(handler, SidecarIdentity(SERVER_POD, address, public_key(OPERATOR)), KEY, JOB, members=members)
    taken = await server.listen(port, host)
    try:
        yield ServedSidecar(server, handler, host, taken)
    finally:
        await server.close(0.1)


async def begin(link: Socket, as_caller: HandshakeCaller, answered_by: str = SERVER_POD) -> SealedCaller | None:
    """The caller's side of the handshake; None if the server hangs up on the Hello."""
    await link.send_str(wire.encode(as_caller.hello))
    received = await link.receive(AT_ONCE_S)
    if received.type is not aiohttp.WSMsgType.TEXT:
        return None
    pod_uid, session = as_caller.finish(wire.decode(received.data, KNOWN))
    assert pod_uid == answered_by
    sealed = SealedCaller(link, session)
    await sealed.send_text("")
    return sealed


async def is_accepted(link: Socket, as_caller: HandshakeCaller) -> bool:
    """Whether the server continues with this caller after its handshake, and does not hang up."""
    try:
        sealed = await begin(link, as_caller)
    except handshake.NotProven:
        return False
    if sealed is None:
        return False
    await sealed.send_text("")  # which a sidecar answers with the same
    try:
        return await sealed.receive_text() == b""
    except EOFError:
        return False


def join(uid: str = MEMBER_POD) -> str:
    return wire.encode(m.Join(uid, uid, "node", "10.0.0.1", 0, NO_ROUND, None, WorkersState.IDLE, 4000))


async def until(holds: Callable[[], object], limit_s: float = 5.0) -> None:
    for _ in range(int(limit_s / 0.01)):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError


async def closed_by_server(link: Socket | SealedCaller) -> bool:
    frame = await (link.socket if isinstance(link, SealedCaller) else link).receive(AT_ONCE_S)
    return frame.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSING, aiohttp.WSMsgType.CLOSED)


async def ended(sock: socket.socket, limit_s: float = AT_ONCE_S) -> bytes:
    """The bytes that arrive on a bare connection until its end. Raises TimeoutError if it does not end."""
    loop, received = asyncio.get_running_loop(), b""
    async with asyncio.timeout(limit_s):
        try:
            while data := await loop.sock_recv(sock, 1 << 16):
                received += data
        except ConnectionError:
            pass
    return received


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]

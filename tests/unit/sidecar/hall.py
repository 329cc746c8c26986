"""A real server on this machine with a hall that writes down who came and what they said, and real callers for it.

The callers are aiohttp's: another implementation of WebSocket than the server's own.
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

from understudy_protocol import handshake, membership, observer, wire
from understudy_protocol import membership as m
from understudy_protocol.frames import Opcode, frame
from understudy_protocol.handshake import Challenge, Hello, Prove, Role
from understudy_protocol.pod import MEMBERSHIP_PATH
from understudy_protocol.upgrade import request
from understudy_protocol.words import NO_ROUND, WorkersState
from understudy_sidecar.link import Link
from understudy_sidecar.server import Server

KEY, JOB = b"the job's key", "job-uid"
KNOWN = {**wire.message_types(membership), **wire.message_types(observer), **wire.message_types(handshake)}

#: What a caller sends first, as bytes.
HEAD, _ = request("x", 1, MEMBERSHIP_PATH)
HELLO = frame(Opcode.TEXT, wire.encode(Hello(Role.MEMBER, JOB, "n")).encode(), masked=True)

#: Ports that healthy members report: each a different one.
PORTS = itertools.count(50_000)

MakeSocket = Callable[[Any], socket.socket]
Socket = aiohttp.ClientWebSocketResponse


class RecordingHall:
    """Answers each Join with a Welcome."""

    def __init__(self) -> None:
        self.links: list[Link] = []  # of members, by their arrival
        self.messages: list[object] = []
        self.ends: list[bool] = []  # silent?
        self.observers: list[Link] = []
        self.questions: list[object] = []
        self.observers_gone = 0

    def add(self, link: Link) -> None:
        self.links.append(link)

    def received(self, link: Link, message: object) -> None:
        self.messages.append(message)
        if isinstance(message, m.Join):
            link.send(m.Welcome(NO_ROUND))

    def dropped(self, link: Link, silent: bool) -> None:
        self.ends.append(silent)

    def observer(self, link: Link) -> None:
        self.observers.append(link)

    def asked(self, link: Link, message: object) -> None:
        self.questions.append(message)

    def observer_gone(self, link: Link) -> None:
        self.observers_gone += 1


class Served:
    def __init__(self, server: Server, hall: RecordingHall, host: str, port: int) -> None:
        self.server, self.hall, self.host, self.port = server, hall, host, port
        self.url = f"http://{host}:{port}{MEMBERSHIP_PATH}"

    @asynccontextmanager
    async def upgraded(self, make_socket: MakeSocket | None = None) -> AsyncIterator[Socket]:
        """A caller that has said nothing yet."""
        connector = aiohttp.TCPConnector(socket_factory=make_socket)
        async with aiohttp.ClientSession(connector=connector) as session, session.ws_connect(self.url) as link:
            yield link

    @asynccontextmanager
    async def calling(
        self, role: Role = Role.MEMBER, key: bytes = KEY, job: str = JOB, make_socket: MakeSocket | None = None
    ) -> AsyncIterator[Socket]:
        """A caller that is through the handshake (or as far as it was let)."""
        async with self.upgraded(make_socket) as link:
            challenge = await challenged(link, role, job)
            if challenge is not None:
                assert challenge.proof == handshake.server_proof(KEY, role, job, "n", challenge.nonce)
                await link.send_str(wire.encode(Prove(handshake.caller_proof(key, role, job, "n", challenge.nonce))))
            yield link

    @asynccontextmanager
    async def member(self) -> AsyncIterator[Socket]:
        """A member that has joined, and was welcomed."""
        async with self.calling() as link:
            await link.send_str(join())
            assert isinstance(await heard(link), m.Welcome)
            yield link

    @contextmanager
    def dialed(self, source: str = "127.0.0.1") -> Iterator[socket.socket]:
        """A bare TCP connection."""
        with socket.create_connection((self.host, self.port), source_address=(source, 0)) as sock:
            sock.setblocking(False)
            yield sock


class Healthy:
    """A member next to those that a test is about."""

    def __init__(self, served: Served, link: Socket) -> None:
        self._hall, self._link = served.hall, link
        self._there = served.hall.links[-1]

    async def assert_served(self, limit_s: float = 1.0) -> None:
        """It is heard and answered at once, on the connection that it has had all the time."""
        number = next(PORTS)
        await self._link.send_str(wire.encode(m.Port(number)))
        await until(lambda: m.Port(number) in self._hall.messages, limit_s)
        self._there.send(m.Heartbeat(number, NO_ROUND))
        assert await heard(self._link, limit_s) == m.Heartbeat(number, NO_ROUND)


@asynccontextmanager
async def serving(host: str = "127.0.0.1", port: int = 0, members: int = 0) -> AsyncIterator[Served]:
    hall = RecordingHall()
    server = Server(hall, KEY, JOB, members=members)
    taken = await server.listen(port, host)
    try:
        yield Served(server, hall, host, taken)
    finally:
        await server.close(0.1)


async def challenged(link: Socket, role: Role = Role.MEMBER, job: str = JOB) -> Challenge | None:
    """Says Hello; the Challenge, or None where it was turned away."""
    await link.send_str(wire.encode(Hello(role, job, "n")))
    frame = await link.receive(2.0)
    if frame.type is not aiohttp.WSMsgType.TEXT:
        return None
    challenge = wire.decode(frame.data, KNOWN)
    assert isinstance(challenge, Challenge)
    return challenge


def join(uid: str = "uid-1") -> str:
    return wire.encode(m.Join(uid, uid, "node", "10.0.0.1", 0, NO_ROUND, None, WorkersState.IDLE, 4000))


async def heard(link: Socket, limit_s: float = 2.0) -> object:
    return wire.decode((await link.receive(limit_s)).data, KNOWN)


async def until(holds: Callable[[], object], limit_s: float = 5.0) -> None:
    for _ in range(int(limit_s / 0.01)):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError


async def closed_by_server(link: Socket) -> bool:
    frame = await link.receive(2.0)
    return frame.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSING, aiohttp.WSMsgType.CLOSED)


async def ended(sock: socket.socket, limit_s: float = 2.0) -> bytes:
    """What came over a bare connection until its end. Raises TimeoutError where it does not end."""
    loop, received = asyncio.get_running_loop(), b""
    async with asyncio.timeout(limit_s):
        try:
            while data := await loop.sock_recv(sock, 1 << 16):
                received += data
        except ConnectionError:
            pass
    return received


def transport(link: Socket) -> asyncio.Transport:
    """What is under a WebSocket of aiohttp's, for what no well-behaved caller does."""
    connection = link._response.connection
    assert connection is not None
    return cast(asyncio.Transport, connection.transport)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]

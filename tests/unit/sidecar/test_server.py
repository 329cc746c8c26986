"""The sidecar's server and client over real connections: who is let in, what ends a connection, what its end means."""

from __future__ import annotations

import asyncio
import socket
import struct
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.unit.sidecar.silent_network import HERE, cable
from understudy_protocol import handshake, membership, observer, wire
from understudy_protocol import membership as m
from understudy_protocol.handshake import Challenge, Hello, Prove, Role
from understudy_protocol.observer import Appoint, Refused, Snapshot
from understudy_protocol.pod import MEMBERSHIP_PATH, JobShape
from understudy_protocol.words import NO_ROUND, WorkersState
from understudy_sidecar import client as client_module
from understudy_sidecar.client import CoordinatorClient
from understudy_sidecar.membership.events import CoordinatorEvent, Dropped, Received
from understudy_sidecar.office import Office
from understudy_sidecar.server import FRAME_BYTES, Server

KEY, JOB = b"the job's key", "job-uid"
SHAPE = JobShape(JOB, "ns", "job", 2, 1, 10, 3600.0)
KNOWN = {**wire.message_types(membership), **wire.message_types(observer), **wire.message_types(handshake)}


MakeSocket = Callable[[Any], socket.socket]


class RecordingOffice(Office):
    """An office, and what came into it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(SHAPE, "uid-0", folder, lambda: None)
        self.events: list[CoordinatorEvent] = []

    def handle(self, event: CoordinatorEvent) -> None:
        self.events.append(event)
        super().handle(event)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


class Served:
    def __init__(self, office: RecordingOffice, host: str, port: int) -> None:
        self.office, self.port = office, port
        self.url = f"http://{host}:{port}{MEMBERSHIP_PATH}"

    @asynccontextmanager
    async def calling(
        self, role: Role = Role.MEMBER, key: bytes = KEY, job: str = JOB, make_socket: MakeSocket | None = None
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """A caller that is through the handshake (or as far as it was let)."""
        connector = aiohttp.TCPConnector(socket_factory=make_socket)
        async with aiohttp.ClientSession(connector=connector) as session, session.ws_connect(self.url) as link:
            await link.send_str(wire.encode(Hello(role, job, "n")))
            frame = await link.receive(2.0)
            if frame.type is aiohttp.WSMsgType.TEXT:
                challenge = wire.decode(frame.data, KNOWN)
                assert isinstance(challenge, Challenge)
                assert challenge.proof == handshake.server_proof(KEY, role, job, "n", challenge.nonce)
                await link.send_str(wire.encode(Prove(handshake.caller_proof(key, role, job, "n", challenge.nonce))))
            yield link


@asynccontextmanager
async def serving(folder: Path, host: str) -> AsyncIterator[Served]:
    office = RecordingOffice(folder)
    runner = web.AppRunner(Server(office, KEY, JOB).app(), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, host, 0).start()
    try:
        yield Served(office, host, runner.addresses[0][1])
    finally:
        await runner.cleanup()


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path, "127.0.0.1") as it:
        yield it


@pytest.fixture
async def in_office(served: Served) -> Served:
    served.office.appoint(Appoint(1, -1, {}))
    return served


def join(uid: str = "uid-1") -> str:
    return wire.encode(m.Join(uid, uid, "node", "10.0.0.1", 0, NO_ROUND, None, WorkersState.IDLE, 4000))


async def until(holds: Callable[[], object], limit_s: float = 5.0) -> None:
    for _ in range(int(limit_s / 0.01)):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError


async def closed_by_server(link: aiohttp.ClientWebSocketResponse) -> bool:
    frame = await link.receive(2.0)
    return frame.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSING, aiohttp.WSMsgType.CLOSED)


# Who is let in


async def test_a_member_that_knows_the_key_is_heard(in_office: Served) -> None:
    async with in_office.calling() as link:
        await link.send_str(join())
        frame = await link.receive(2.0)
        assert isinstance(wire.decode(frame.data, KNOWN), m.Welcome)


@pytest.mark.parametrize("wrong", [{"key": b"another"}, {"job": "another"}], ids=["key", "job"])
@pytest.mark.parametrize("role", list(Role))
async def test_one_that_does_not_is_turned_away(in_office: Served, role: Role, wrong: dict[str, Any]) -> None:
    async with in_office.calling(role, **wrong) as link:
        assert await closed_by_server(link)
    assert in_office.office.of(Received) == []


async def test_without_an_office_a_member_is_turned_away(served: Served) -> None:
    async with served.calling() as link:
        assert link.closed or await closed_by_server(link)


async def test_the_first_message_must_be_a_hello(in_office: Served) -> None:
    async with aiohttp.ClientSession() as session, session.ws_connect(in_office.url) as link:
        await link.send_str(join())
        assert await closed_by_server(link)
    assert in_office.office.of(Received) == []


# What ends a connection, and only that one


@pytest.mark.parametrize(
    "garbage",
    ["no json", '{"type":"Ack"}', '{"type":"Port","master_port":"x"}', b"binary", "x" * (FRAME_BYTES + 1)],
    ids=["no-json", "field-missing", "field-wrong", "binary", "too-long"],
)
async def test_a_garbage_frame_ends_its_own_connection(in_office: Served, garbage: str | bytes) -> None:
    async with in_office.calling() as good, in_office.calling() as bad:
        await good.send_str(join("uid-good"))
        await bad.send_str(join("uid-bad"))
        await bad.receive(2.0)
        await (bad.send_bytes(garbage) if isinstance(garbage, bytes) else bad.send_str(garbage))
        assert await closed_by_server(bad)
        await until(lambda: in_office.office.of(Dropped))
        await good.send_str(wire.encode(m.Port(4001)))
        await until(lambda: any(x.message == m.Port(4001) for x in in_office.office.of(Received)))
        assert len(in_office.office.of(Dropped)) == 1


async def test_a_message_of_an_unknown_type_is_dropped(in_office: Served) -> None:
    async with in_office.calling() as link:
        await link.send_str(join())
        await link.send_str('{"v":2,"type":"FromTheFuture","x":1}')
        await link.send_str(wire.encode(m.Port(4001)))
        await until(lambda: len(in_office.office.of(Received)) == 2)


# Observers


async def test_an_observer_is_refused_and_then_appoints(served: Served) -> None:
    async with served.calling(Role.OBSERVER) as link:
        await link.send_str(wire.encode(Appoint(0, -1, {})))
        assert isinstance(wire.decode((await link.receive(2.0)).data, KNOWN), Refused)
        await link.send_str(wire.encode(Appoint(1, 4, {"InPlace": 2})))
        snapshot = wire.decode((await link.receive(2.0)).data, KNOWN)
        assert isinstance(snapshot, Snapshot)
        assert (snapshot.token.epoch, snapshot.token.round) == (1, 4)
        assert snapshot.recoveries_by_strategy["InPlace"] == 2


async def test_an_observer_hears_of_changes(in_office: Served) -> None:
    async with in_office.calling(Role.OBSERVER) as watching, in_office.calling() as member:
        await watching.send_str(wire.encode(Appoint(1, -1, {})))
        await watching.receive(2.0)
        await member.send_str(join())
        snapshot = wire.decode((await watching.receive(2.0)).data, KNOWN)
        assert [x.pod_uid for x in snapshot.members] == ["uid-1"]


async def test_the_coordinator_knows_whether_it_is_watched(in_office: Served) -> None:
    coordinator = in_office.office.coordinator
    assert coordinator is not None
    async with in_office.calling(Role.OBSERVER):
        await until(lambda: in_office.office._observers == 1)
    await until(lambda: in_office.office._observers == 0)


# The client


class Calls:
    """What a client calls back."""

    def __init__(self, address: Callable[[], tuple[str, int]]) -> None:
        self.ups = self.downs = 0
        self.messages: list[object] = []
        self.client = CoordinatorClient(address, KEY, JOB, self._up, self.messages.append, self._down)

    def _up(self) -> None:
        self.ups += 1

    def _down(self) -> None:
        self.downs += 1


@asynccontextmanager
async def dialing(address: Callable[[], tuple[str, int]]) -> AsyncIterator[Calls]:
    calls = Calls(address)
    calls.client.dial()
    yield calls
    calls.client.hangup()
    calls.client.hangup()
    await asyncio.sleep(0.05)


async def test_a_client_dials_until_an_office_is_there(served: Served) -> None:
    async with dialing(lambda: ("127.0.0.1", served.port)) as calls:
        await asyncio.sleep(0.2)
        assert calls.ups == 0
        served.office.appoint(Appoint(1, -1, {}))
        await until(lambda: calls.ups)
        calls.client.send(wire.decode(join(), KNOWN))
        await until(lambda: calls.messages)


async def test_a_client_gives_up_on_whoever_takes_the_call_and_says_nothing(
    in_office: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the kernel of a frozen machine does: the successor would never have been called."""
    monkeypatch.setattr(client_module, "CONNECT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        addresses = [mute.getsockname(), ("127.0.0.1", in_office.port)]
        async with dialing(lambda: addresses.pop(0) if len(addresses) > 1 else addresses[0]) as calls:
            await until(lambda: calls.ups)


async def test_a_client_hears_that_its_link_has_ended(in_office: Served) -> None:
    async with dialing(lambda: ("127.0.0.1", in_office.port)) as calls:
        await until(lambda: calls.ups)
        await until(lambda: in_office.office._links)
        next(iter(in_office.office._links.values())).hangup()
        await until(lambda: calls.downs)
    assert (calls.ups, calls.downs) == (1, 1)


@pytest.mark.parametrize("frame", ["no json", "x" * (FRAME_BYTES + 1)], ids=["no-json", "too-long"])
async def test_a_garbage_frame_of_the_coordinator_ends_the_link_once(in_office: Served, frame: str) -> None:
    async with dialing(lambda: ("127.0.0.1", in_office.port)) as calls:
        await until(lambda: calls.ups)
        await until(lambda: in_office.office._links)
        await next(iter(in_office.office._links.values()))._socket.send_str(frame)
        await until(lambda: calls.downs)
        await asyncio.sleep(0.3)
        assert (calls.ups, calls.downs) == (1, 1)  # the member dials again, not the client by itself


# What a connection's end means


def abort(link: aiohttp.ClientWebSocketResponse) -> None:
    """FIN, without the WebSocket's goodbye: as a killed process leaves it."""
    connection = link._response.connection
    assert connection is not None
    assert connection.transport is not None
    connection.transport.abort()


def reset(link: aiohttp.ClientWebSocketResponse) -> None:
    """RST: as a kernel answers that does not know the connection any more."""
    link.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    abort(link)


@pytest.mark.parametrize("end", [abort, reset])
async def test_a_peer_whose_kernel_ends_the_connection_was_not_silent(
    in_office: Served, end: Callable[[aiohttp.ClientWebSocketResponse], None]
) -> None:
    async with in_office.calling() as link:
        await link.send_str(join())
        await until(lambda: in_office.office.of(Received))
        end(link)
        await until(lambda: in_office.office.of(Dropped))
    assert [x.silent for x in in_office.office.of(Dropped)] == [False]


async def test_a_peer_that_says_goodbye_was_not_silent(in_office: Served) -> None:
    async with in_office.calling() as link:
        await link.send_str(join())
    await until(lambda: in_office.office.of(Dropped))
    assert [x.silent for x in in_office.office.of(Dropped)] == [False]


async def test_a_peer_behind_a_pulled_cable_was_silent(tmp_path: Path) -> None:
    """Takes the 3 s of the kernel's own limits (see tcp.py)."""
    try:
        with cable() as far:
            async with serving(tmp_path, HERE) as served:
                served.office.appoint(Appoint(1, -1, {}))
                async with served.calling(make_socket=lambda _: nonblocking(far.socket())) as link:
                    await link.send_str(join())
                    await until(lambda: served.office.of(Received))
                    far.pull()
                    await until(lambda: served.office.of(Dropped), limit_s=6.0)
                    abort(link)
                assert [x.silent for x in served.office.of(Dropped)] == [True]
    except (PermissionError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespace here: {error}")


def nonblocking(made: socket.socket) -> socket.socket:
    made.setblocking(False)
    return made

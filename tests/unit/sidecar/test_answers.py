"""Peers that a member calls: another implementation, a slow coordinator, a frozen one, an impostor, or no sidecar."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace

import aiohttp
import pytest
from aiohttp import web

from tests.sealed_socket import SealedSocket, receive_hello, seal
from tests.unit.sidecar.calling import answering, at, dialing
from tests.unit.sidecar.recording_handler import (
    JOB,
    KEY,
    KNOWN,
    OTHER_KEY,
    SERVER_POD,
    WELCOME,
    ServedSidecar,
    caller,
    ended,
    until,
)
from tests.unit.tcp_server import tcp_server
from understudy_protocol import membership as m
from understudy_protocol import wire
from understudy_protocol.enums import NO_CONFIG, CloseReason, Term
from understudy_protocol.handshake import Answer, HandshakeCalled, Hello, Role
from understudy_protocol.pod import MEMBERSHIP_PATH
from understudy_protocol.upgrade import accept as accept_upgrade
from understudy_sidecar import client as client_module
from understudy_sidecar.client import Address
from understudy_sidecar.membership import calling

NO_KEY = "it does not know the job's key"


async def accept(link: web.WebSocketResponse) -> SealedSocket:
    """The handshake of a sidecar with the job's key."""
    return await seal(link, HandshakeCalled(KEY, Role.MEMBER, JOB, SERVER_POD, "127.0.0.1"), await receive_hello(link))


async def coordinator(link: web.WebSocketResponse) -> None:
    """A coordinator that knows the key, and welcomes each member."""
    sealed = await accept(link)
    assert isinstance(wire.decode(await sealed.receive() or b"", KNOWN), m.Join)
    await link.ping(b"there?")
    await sealed.send(wire.encode(WELCOME).encode())
    assert (await link.receive()).type is aiohttp.WSMsgType.CLOSE


def made_up() -> Answer:
    """The answer of an impostor with a key of its own."""
    return HandshakeCalled(OTHER_KEY, Role.MEMBER, JOB, SERVER_POD, "127.0.0.1").answer(caller(key=OTHER_KEY).hello)[0]


@pytest.mark.attack("C1", "poses as a coordinator without the key", before="refused, too")
async def test_a_coordinator_that_does_not_know_the_key_is_not_believed(
    served: ServedSidecar, caplog: pytest.LogCaptureFixture
) -> None:
    """An impostor at the coordinator's address receives only a Hello, which opens no session elsewhere."""
    caplog.set_level("INFO")
    received: list[object] = []

    async def impostor(link: web.WebSocketResponse) -> None:
        received.append(wire.decode(await link.receive_str(), KNOWN))
        await link.send_str(wire.encode(made_up()))
        async for frame in link:
            received.append(frame)

    async with answering(impostor) as address, dialing(address, at(served)) as calls:
        await until(lambda: calls.ups)
        assert calls.ups == ["127.0.0.1"]
        await until(lambda: received)
        assert [type(x) for x in received] == [Hello]
        assert [text.partition(": ")[2] for text in caplog.messages] == [f"{address.host}:{address.port}: {NO_KEY}"]


async def test_a_peer_that_answers_a_hello_with_a_hello_is_refused(
    served: ServedSidecar, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def mirror(link: web.WebSocketResponse) -> None:
        await link.send_str(await link.receive_str())
        await link.receive()

    async with answering(mirror) as address, dialing(address, at(served)) as calls:
        await until(lambda: calls.ups)
        assert caplog.messages == [
            f"no coordinator found yet: {address.host}:{address.port}: expected an Answer to the Hello"
        ]


async def test_a_pod_with_the_key_can_act_as_the_coordinator_of_a_member_that_calls_it() -> None:
    """A limit that docs/explanation/security.md states."""

    async def thief(link: web.WebSocketResponse) -> None:
        sealed = await accept(link)
        await sealed.receive()
        await sealed.send(wire.encode(WELCOME).encode())
        await sealed.send(wire.encode(m.Close(CloseReason.FAILED, "by the thief")).encode())
        await link.receive()

    async with answering(thief) as address, dialing(address) as calls:
        await until(lambda: calls.messages == [WELCOME, m.Close(CloseReason.FAILED, "by the thief")])


@pytest.mark.attack(
    "C2", "a pod that welcomes a member, or asks for its vote, as another pod", before="the member believed it"
)
@pytest.mark.parametrize(
    "message",
    [replace(WELCOME, pod_uid="uid-of-another-pod"), m.RequestVote(Term(7, 2), NO_CONFIG, "uid-of-another-pod")],
    ids=["Welcome", "RequestVote"],
)
async def test_a_pod_cannot_welcome_or_ask_for_a_vote_as_another_pod(message: object) -> None:
    # given a pod that knows the key, and that has answered the handshake as itself
    async def impostor(link: web.WebSocketResponse) -> None:
        sealed = await accept(link)
        await sealed.receive()
        # when it sends a message in the name of another pod
        await sealed.send(wire.encode(message).encode())
        await link.receive()

    # then the member ignores the message and hangs up
    async with answering(impostor) as address, dialing(address) as calls:
        await until(lambda: calls.downs)
        assert (len(calls.ups), calls.downs, calls.messages) == (1, 1, [])


async def test_another_implementation_of_websocket_is_understood() -> None:
    async with answering(coordinator) as address, dialing(address) as calls:
        await until(lambda: calls.messages == [WELCOME])
        await calls.client.flushed(1.0)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 404 Not Found\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: x\r\n\r\n",
        b"\x00" * 5000,
        b"",
    ],
    ids=["refused", "another-key", "garbage", "nothing"],
)
async def test_a_server_that_is_no_sidecar_is_skipped(served: ServedSidecar, answer: bytes) -> None:
    received: list[bytes] = []

    async def answering_so(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.write_eof()
        received.append(await reader.read())
        writer.close()

    async with tcp_server(answering_so) as address, dialing(Address(*address), at(served)) as calls:
        await until(lambda: calls.ups)
        assert calls.downs == 0
        assert not any(sent.startswith(b"\x81") for sent in received)  # no text message: not even a Hello


@pytest.mark.attack("D1", "an address that answers each call in another way", before="a line of the log for each call")
async def test_an_address_whose_answers_differ_fills_no_log(
    served: ServedSidecar, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(calling, "LONGEST_PAUSE_S", 0.01)
    calls_of_a_member = 0

    async def answering_differently(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal calls_of_a_member
        await reader.readuntil(b"\r\n\r\n")
        calls_of_a_member += 1
        writer.write(b"HTTP/1.1 %d No\r\n\r\n" % calls_of_a_member)
        writer.close()

    # given an address with another number in each answer
    async with tcp_server(answering_differently) as address, dialing(Address(*address)):
        # when a member has called it 50 times
        await until(lambda: calls_of_a_member >= 50)
    # then the log has five lines
    assert len(caplog.messages) == 5
    assert caplog.messages[-1].endswith("(further failures of this address are not logged)")


async def test_a_server_that_accepts_the_call_and_sends_nothing_is_left(
    served: ServedSidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel of a frozen machine accepts calls. Without a timeout the successor would never be called."""
    monkeypatch.setattr(client_module, "ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        async with dialing(Address(*mute.getsockname()), at(served)) as calls:
            await until(lambda: calls.ups)
            with mute.accept()[0] as taken:
                taken.setblocking(False)
                assert (await ended(taken)).startswith(b"GET ")  # and the member hangs up


@pytest.mark.attack("D1", "an address that answers as late as it may", before="left after the same time")
async def test_an_address_that_answers_late_delays_a_member_by_7_s_at_most(served: ServedSidecar) -> None:
    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(2.5)
        writer.write(accept_upgrade(head[:-4], MEMBERSHIP_PATH))
        await reader.read()
        writer.close()

    # given an address that answers the request after 2.5 s, and the Hello never
    began = asyncio.get_running_loop().time()
    # when a member calls this address first
    async with tcp_server(late) as address, dialing(Address(*address), at(served)) as calls:
        await until(lambda: calls.ups, 10.0)
    # then it gives up 3 s after the answer, and calls the next address
    assert 5.5 <= asyncio.get_running_loop().time() - began < 7.0


async def test_a_machine_that_does_not_answer_is_left_sooner(
    served: ServedSidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "TCP_S", 0.1)
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = [socket.socket() for _ in range(4)]  # the kernel drops further calls as if a cable were pulled
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        started = asyncio.get_running_loop().time()
        async with dialing(Address(*full.getsockname()), at(served)) as calls:
            await until(lambda: calls.ups)
        assert 0.1 <= asyncio.get_running_loop().time() - started < 1.0
        assert [
            task for task in asyncio.all_tasks() if task.get_name() == "call"
        ] == []  # nor does the first call continue
        for filler in fillers:
            filler.close()


async def test_a_server_that_answers_step_by_step_may_take_longer_in_total(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that ten thousand members call at once answers slowly."""
    monkeypatch.setattr(client_module, "TCP_S", 0.1)
    monkeypatch.setattr(client_module, "ANSWER_S", 0.3)

    async def slow(link: web.WebSocketResponse) -> None:
        await asyncio.sleep(0.2)
        await coordinator(link)

    async def prepared(request: web.Request) -> None:
        await asyncio.sleep(0.2)

    async with answering(slow, prepared) as address, dialing(address) as calls:
        await until(lambda: calls.ups)


async def test_a_server_whose_answer_was_not_read_yet_is_not_left(
    served: ServedSidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This happens after a freeze of this process, or when it has too much to do."""
    monkeypatch.setattr(client_module, "ANSWER_S", 0.3)
    loop = asyncio.get_running_loop()

    async def too_busy_to_read(_request: web.Request) -> None:
        dialing = calls.client._dialing
        assert dialing is not None
        assert dialing._call is not None
        transport = dialing._call.transport
        transport.pause_reading()
        loop.call_later(0.4, transport.resume_reading)

    async with answering(coordinator, too_busy_to_read) as address, dialing(address, at(served)) as calls:
        await until(lambda: calls.ups)
        assert served.handler.links == []


async def test_a_timer_that_fires_late_gives_the_peer_the_same_time_again(
    served: ServedSidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This happens after a freeze of this process."""
    monkeypatch.setattr(client_module, "ANSWER_S", 0.1)
    monkeypatch.setattr(client_module, "LATE_TIMER_S", -1.0)  # all timers fire late
    limits: list[int] = []  # by port, of the address that was given more time
    allow = client_module.ClientLink._allow

    def allowed(call: client_module.ClientLink, limit_s: float) -> None:
        limits.append(call._port)
        allow(call, limit_s)

    monkeypatch.setattr(client_module.ClientLink, "_allow", allowed)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        async with dialing(Address(*mute.getsockname()), at(served)) as calls:
            # two limits are regular: to connect, and to answer
            await until(lambda: len(limits) == 5)
            assert limits == [mute.getsockname()[1]] * 5
            assert calls.ups == []
            monkeypatch.setattr(client_module, "LATE_TIMER_S", 1.0)
            await until(lambda: calls.ups)

"""Callers without the job's key, or with the wrong one of the keys: a sidecar refuses them.

During each attack a healthy member is connected, and the server has to answer it before, after and (if the attack takes
long) meanwhile.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import resource
import socket
import time
from collections.abc import Iterator

import aiohttp
import pytest

from tests.unit.sidecar.recording_handler import (
    AT_ONCE_S,
    HEAD,
    HELLO,
    JOB,
    KEY,
    KNOWN,
    MEMBER_POD,
    OPERATOR,
    OTHER_KEY,
    OTHER_OPERATOR,
    SERVER_POD,
    WELCOME,
    HealthyMember,
    ServedSidecar,
    Socket,
    caller,
    closed_by_server,
    ended,
    is_accepted,
    join,
    serving,
    until,
    warnings,
)
from understudy_protocol import handshake, wire
from understudy_protocol import membership as m
from understudy_protocol.handshake import Answer, Call, HandshakeCalled, HandshakeCaller, Hello, Role
from understudy_protocol.noise import Initiator, Responder, public_key
from understudy_sidecar import server as server_module
from understudy_sidecar.waiting_connections import WaitingConnections

NO_KEY = "it does not know the job's key"
RECORDED = caller().hello
pytestmark = pytest.mark.usefixtures("healthy", "many_files")


@pytest.fixture
def many_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture
def short_handshake(served: ServedSidecar) -> None:
    served.server.waiting_connections = WaitingConnections(512, 128, 0.3)


def waits(served: ServedSidecar, sock: socket.socket) -> bool:
    """Whether the server has this connection, and has not closed it."""
    addresses = (caller.transport.get_extra_info("peername") for caller in served.server.callers)
    return sock.getsockname() in addresses


# Without the key


async def sent_without_the_key(link: Socket, as_caller: HandshakeCaller) -> bool:
    """Whether the server hangs up on a caller that continues after the Answer, which the caller cannot decrypt."""
    await link.send_str(wire.encode(as_caller.hello))
    assert isinstance(wire.decode((await link.receive(AT_ONCE_S)).data, KNOWN), Answer)
    await link.send_bytes(bytes(16))
    return await closed_by_server(link)


@pytest.mark.attack("C1", "a caller that joins a job without its key", before="refused, too")
async def test_a_wrong_key_is_refused_and_logged_once(served: ServedSidecar, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(20):
        async with served.upgraded() as link:
            assert await sent_without_the_key(link, caller(key=OTHER_KEY))
    assert warnings(caplog) == [f"127.0.0.1 was rejected: {NO_KEY}"]
    assert len(served.handler.links) == 1


@pytest.mark.parametrize("called", ["127.0.0.2", "", "127.0.0.1"])
async def test_a_sidecar_refuses_a_handshake_that_was_made_for_another_address(
    served: ServedSidecar, called: str
) -> None:
    async with served.upgraded() as link:
        assert await is_accepted(link, caller(called=called)) == (called != "127.0.0.2")


@pytest.mark.parametrize("first", [b"", bytes(16), bytes(200)], ids=["empty", "a-tag", "long"])
async def test_a_recorded_hello_opens_no_session(served: ServedSidecar, first: bytes) -> None:
    async with served.upgraded() as link:
        await link.send_str(wire.encode(RECORDED))
        assert (await link.receive(AT_ONCE_S)).type is aiohttp.WSMsgType.TEXT  # an Answer that the caller cannot read
        await link.send_bytes(first)
        assert await closed_by_server(link)
    assert len(served.handler.links) == 1


@pytest.mark.attack("C2", "a member that calls as the operator", before="the membership key was enough")
@pytest.mark.parametrize("operator", [OTHER_OPERATOR, None], ids=["with-a-key-of-its-own", "without-one"])
async def test_the_membership_key_does_not_prove_that_a_caller_is_the_operator(
    served: ServedSidecar, operator: bytes | None
) -> None:
    # given a caller that knows the membership key
    member = HandshakeCaller(KEY, Role.OBSERVER, JOB, Call("", served.host), operator)
    # then a sidecar does not accept it as the operator
    async with served.upgraded() as link:
        assert not await is_accepted(link, member)
    assert served.handler.observers == []


@pytest.mark.attack(
    "C2", "a member that calls as the operator, and knows its public key", before="the membership key was enough"
)
async def test_the_membership_key_and_the_operators_public_key_do_not_prove_that_a_caller_is_the_operator(
    served: ServedSidecar,
) -> None:
    # given a caller whose Hello names the operator's public key, as each sidecar knows it
    forger = HandshakeCaller(KEY, Role.OBSERVER, JOB, Call("", served.host), OTHER_OPERATOR)
    called = HandshakeCalled(KEY, Role.OBSERVER, JOB, SERVER_POD, served.host, public_key(OPERATOR))
    assert isinstance(forger._side, Initiator)
    assert isinstance(called._side, Responder)
    forger._side._transcript = called._side._begun.copy()
    opening = forger._side.opening(json.dumps(["", served.host]).encode())
    hello = Hello(Role.OBSERVER, JOB, base64.b64encode(opening).decode())
    async with served.upgraded() as link:
        # when a sidecar answers it
        await link.send_str(wire.encode(hello))
        answer = wire.decode((await link.receive(AT_ONCE_S)).data, KNOWN)
        # then the caller has no session: it cannot decrypt the answer, and cannot continue
        with pytest.raises(handshake.NotProven):
            forger.finish(answer)
        await link.send_bytes(bytes(16))
        assert await closed_by_server(link)
    assert served.handler.observers == []


@pytest.mark.attack("C2", "a member that joins as another pod than in its handshake", before="it was welcomed")
async def test_a_member_cannot_join_as_another_pod_than_in_its_handshake(
    served: ServedSidecar, caplog: pytest.LogCaptureFixture
) -> None:
    async with served.calling() as link:
        before = list(served.handler.messages)
        await link.send_text(join("uid-2"))
        assert await closed_by_server(link)
    assert served.handler.messages == before
    assert warnings(caplog) == ["127.0.0.1 was rejected: it joins as pod 'uid-2', but is pod 'uid-1'"]


async def test_a_caller_with_the_key_can_join_as_any_pod(served: ServedSidecar) -> None:
    """A limit that docs/explanation/security.md states."""
    async with served.member(), served.calling(caller(pod_uid=MEMBER_POD)) as thief:
        await thief.send_text(join(MEMBER_POD))
        assert await thief.receive() == WELCOME


@pytest.mark.attack("C1", "a caller that sends something else than a Hello first", before="refused, too")
@pytest.mark.parametrize(
    "first",
    [wire.encode(Answer("AAAA")), join(), '{"type":"FromTheFuture"}', ""],
    ids=["Answer", "Join", "unknown", "empty"],
)
async def test_the_first_message_must_be_a_hello(served: ServedSidecar, first: str) -> None:
    async with served.upgraded() as link:
        await link.send_str(first)
        assert await closed_by_server(link)
    assert len(served.handler.links) == 1


async def test_the_first_message_of_a_session_must_be_empty(served: ServedSidecar) -> None:
    async with served.upgraded() as link:
        member = caller()
        await link.send_str(wire.encode(member.hello))
        _, session = member.finish(wire.decode((await link.receive(AT_ONCE_S)).data, KNOWN))
        await link.send_bytes(session.seal(join().encode()))
        assert await closed_by_server(link)
    assert len(served.handler.links) == 1


@pytest.mark.attack("C1", "a caller that asks a sidecar of which job it is", before="refused, too")
async def test_a_caller_of_another_job_does_not_learn_the_uid_of_this_one(served: ServedSidecar) -> None:
    async with served.upgraded() as link:
        await link.send_str(wire.encode(caller(job="another-job").hello))
        answer = await link.receive()
    assert answer.type is aiohttp.WSMsgType.CLOSE
    assert "another-job" in str(answer.extra)
    assert JOB not in str(answer.extra)
    assert len(served.handler.links) == 1


# Half-open connections


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET /v1/mem", HEAD, HEAD + HELLO[:1], HEAD + HELLO[:9], HEAD + HELLO],
    ids=["nothing", "half-a-head", "a-head", "half-a-header", "half-a-frame", "a-hello"],
)
@pytest.mark.usefixtures("short_handshake")
async def test_a_caller_that_falls_silent_is_disconnected(
    served: ServedSidecar, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with served.dialed() as first, served.dialed() as second:
        for sock in (first, second):
            sock.sendall(sent)
            await ended(sock)
    assert warnings(caplog) == ["127.0.0.1 was rejected: it did not prove the job's key within 0.3 s"]
    await until(lambda: len(served.server.callers) == 1)


@pytest.mark.usefixtures("short_handshake")
async def test_a_caller_that_sends_a_byte_now_and_then_has_no_more_time_than_others(served: ServedSidecar) -> None:
    with served.dialed() as sock:
        end = asyncio.create_task(ended(sock))
        with contextlib.suppress(ConnectionError):
            for byte in itertools.cycle(b"x"):
                sock.send(bytes([byte]))
                await asyncio.sleep(0.02)
                if end.done():
                    break
        await end


@pytest.mark.usefixtures("short_handshake")
async def test_a_freeze_of_this_sidecar_evicts_no_caller(
    served: ServedSidecar, caplog: pytest.LogCaptureFixture
) -> None:
    async with served.calling() as link:
        time.sleep(1.0)  # noqa: ASYNC251 - nothing runs meanwhile, for three times as long as a caller may take
        await link.send_text(join())
        assert await link.receive() == WELCOME
    assert warnings(caplog) == []


@pytest.mark.parametrize(("members", "stay"), [(0, 128), (64, 256), (10_000, 1000)])
async def test_of_a_thousand_idle_connections_as_many_stay_as_the_job_may_need_and_members_get_in(
    members: int, stay: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "HANDSHAKE_S", 3600.0)  # idle connections are closed only for others
    async with serving(members=members) as served:
        with contextlib.ExitStack() as idle:
            for _ in range(1000):
                newest = idle.enter_context(served.dialed())
            await until(lambda: waits(served, newest))
            assert len(served.server.waiting_connections) == stay
            async with asyncio.timeout(30), served.member() as link:
                await link.send(m.Port(4001))
                await until(lambda: m.Port(4001) in served.handler.messages)
            assert waits(served, newest)


async def test_connections_of_many_addresses_evict_each_other_and_none_of_a_member(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as served:
        with served.dialed("127.0.1.1") as member, contextlib.ExitStack() as idle:
            member.sendall(HEAD)  # its handshake has begun, before all that follow
            for number in range(1200):
                newest = idle.enter_context(served.dialed(f"127.0.0.{number % 6 + 2}"))
            await until(lambda: waits(served, newest))
            assert len(served.server.waiting_connections) == 512
            assert waits(served, member)
    assert {text.split(": ", 1)[1] for text in warnings(caplog)} == {
        "512 connections are waiting for a handshake, most of them from its address"
    }


async def test_members_stay_when_the_files_run_out_and_can_join_when_files_are_free_again(
    served: ServedSidecar, healthy: HealthyMember
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as idle:
        sockets = [idle.enter_context(socket.socket()) for _ in range(40)]
        highest = max(sock.fileno() for sock in sockets)
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 10, hard))
        for sock in sockets:
            sock.connect((served.host, served.port))
        for _ in range(5):
            await healthy.assert_served()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    async with asyncio.timeout(30), served.member():
        pass


async def test_strangers_take_no_files_from_members(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_module, "RESERVED_FILES", resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 50)
    monkeypatch.setattr(server_module, "HANDSHAKE_S", 3600.0)  # no connection is closed because it is idle
    async with serving() as served:
        with contextlib.ExitStack() as idle:
            for _ in range(200):
                idle.enter_context(served.dialed())
            async with asyncio.timeout(30), served.member(), served.member():
                await until(lambda: len(served.server.callers) <= 50)
    expected = "127.0.0.1 was rejected: no more files can be opened, and it has proved no key yet"
    assert warnings(caplog) == [expected]


async def test_a_scanner_fills_no_log(served: ServedSidecar, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(1000):
        with served.dialed() as sock:
            sock.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")  # the first bytes of TLS
            await ended(sock)
    assert len(warnings(caplog)) == 1
    with served.dialed("127.0.0.2") as sock:
        sock.sendall(b"SSH-2.0-scanner\r\n\r\n")
        await ended(sock)
    assert [text.split(":")[0] for text in warnings(caplog)] == [
        "127.0.0.1 was rejected",
        "127.0.0.2 was rejected",
    ]

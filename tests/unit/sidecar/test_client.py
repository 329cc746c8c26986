"""The member's calls to its coordinator: whom it dials and when, what it makes of an answer, and how a link ends."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from tests.unit.sidecar.hall import JOB, KEY, KNOWN, Served, ended, join, serving, until
from understudy_protocol import handshake, wire
from understudy_protocol import membership as m
from understudy_protocol.handshake import Challenge, Hello, Prove
from understudy_protocol.pod import MEMBERSHIP_PATH
from understudy_protocol.words import NO_ELECTORATE, NO_ROUND
from understudy_sidecar import client as client_module
from understudy_sidecar.client import MESSAGE_BYTES, Address, CoordinatorClient


class Calls:
    """A client, and what it called back."""

    def __init__(self, key: bytes = KEY) -> None:
        self.ups: list[str] = []
        self.downs = 0
        self.messages: list[object] = []
        self.sockets: list[int | None] = []
        self.client = CoordinatorClient(key, JOB, self._up, self.messages.append, self._down, self.sockets.append)

    def _up(self, host: str) -> None:
        self.ups.append(host)
        self.client.send(wire.decode(join(), KNOWN))

    def _down(self) -> None:
        self.downs += 1


@asynccontextmanager
async def dialing(*addresses: Address, key: bytes = KEY) -> AsyncIterator[Calls]:
    calls = Calls(key)
    calls.client.dial(addresses)
    yield calls
    calls.client.close()
    calls.client.close()
    await asyncio.sleep(0.01)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving() as it:
        yield it


def at(served: Served) -> Address:
    return served.host, served.port


def refusing() -> Address:
    """A port at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        return host, port


# Whom it dials, and when


async def test_a_client_joins_and_is_welcomed(served: Served) -> None:
    async with dialing(at(served)) as calls:
        await until(lambda: calls.messages)
        assert calls.ups == ["127.0.0.1"]
        assert calls.messages == [m.Welcome(NO_ROUND)]
        assert calls.downs == 0


async def test_addresses_are_tried_in_their_order(served: Served) -> None:
    async with serving("127.0.0.2") as second, dialing(refusing(), at(second), at(served)) as calls:
        await until(lambda: calls.ups)
        assert calls.ups == ["127.0.0.2"]
        assert served.hall.links == []


async def test_one_that_takes_the_call_and_says_nothing_is_given_up(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the kernel of a frozen machine does: the successor would never have been called."""
    monkeypatch.setattr(client_module, "ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        async with dialing(mute.getsockname(), at(served)) as calls:
            await until(lambda: calls.ups)


async def test_one_whose_machine_answers_nothing_is_given_up_sooner(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "TCP_S", 0.1)
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = [socket.socket() for _ in range(4)]  # the kernel drops further calls as a pulled cable does
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        started = asyncio.get_running_loop().time()
        async with dialing(full.getsockname(), at(served)) as calls:
            await until(lambda: calls.ups)
        assert 0.1 <= asyncio.get_running_loop().time() - started < 1.0
        for filler in fillers:
            filler.close()


async def test_it_comes_round_again_and_waits_longer_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "LONGEST_RETRY_S", 0.2)
    times: list[float] = []

    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        times.append(time.monotonic())
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server, dialing(server.sockets[0].getsockname()):
        await until(lambda: len(times) >= 6)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert [gap > 0.9 * least for gap, least in zip(gaps, (0.05, 0.1, 0.2, 0.2, 0.2), strict=False)] == [True] * 5
    assert gaps[4] < 0.39  # doubled no further


async def test_an_address_that_is_none_is_passed_over(served: Served) -> None:
    async with dialing(("no..name", 1), ("127.0.0.1", 99_999), ("", 0), at(served)) as calls:
        await until(lambda: calls.ups)


async def test_a_new_dial_replaces_the_one_under_way(served: Served) -> None:
    async with dialing(refusing()) as calls:
        await asyncio.sleep(0.02)
        calls.client.dial((at(served),))
        await until(lambda: calls.ups)


async def test_a_new_dial_replaces_a_link_that_is_up(served: Served) -> None:
    async with serving("127.0.0.2") as second, dialing(at(served)) as calls:
        await until(lambda: calls.messages)
        calls.client.dial((at(second),))
        await until(lambda: len(calls.ups) == 2)
        await until(lambda: served.hall.ends == [False])
        assert calls.downs == 0
        assert [fd is None for fd in calls.sockets] == [False, True, False]


async def test_after_close_nothing_is_dialed(served: Served) -> None:
    async with dialing(refusing(), at(served)) as calls:
        calls.client.close()
        await asyncio.sleep(0.1)
        assert calls.ups == []


# How a link ends


async def test_it_hears_that_its_link_has_ended_and_does_not_dial_by_itself(served: Served) -> None:
    async with dialing(at(served)) as calls:
        await until(lambda: calls.messages)
        served.hall.links[0].hangup()
        await until(lambda: calls.downs)
        await asyncio.sleep(0.2)
        assert (len(calls.ups), calls.downs) == (1, 1)
        assert calls.sockets[-1] is None


async def test_after_a_hangup_it_hears_nothing_more(served: Served) -> None:
    async with dialing(at(served)) as calls:
        await until(lambda: calls.messages)
        calls.client.hangup()
        await until(lambda: served.hall.ends == [False])
        assert calls.downs == 0
        assert calls.sockets[-1] is None


async def test_a_hangup_within_on_up_ends_the_link(served: Served) -> None:
    calls = Calls()
    calls.client._on_up = lambda host: calls.client.hangup()  # the member's machine may have no launcher any more
    calls.client.dial((at(served),))
    await until(lambda: served.hall.ends == [False])
    await asyncio.sleep(0.1)
    assert calls.downs == 0


async def test_what_was_sent_last_arrives(served: Served) -> None:
    async with dialing(at(served)) as calls:
        await until(lambda: calls.messages)
        calls.client.send(m.CloseAck())
        await calls.client.flushed(1.0)
        await until(lambda: served.hall.messages[-1] == m.CloseAck())


@pytest.mark.parametrize("by_coordinator", [True, False], ids=["coordinator", "member"])
async def test_a_duplicate_of_the_socket_keeps_no_link_alive_that_was_ended(
    served: Served, by_coordinator: bool
) -> None:
    """The launcher holds one, so that the end of the sidecar's process alone is none."""
    async with dialing(at(served)) as calls:
        await until(lambda: calls.messages)
        (fd,) = calls.sockets
        assert fd is not None
        duplicate = socket.socket(fileno=os.dup(fd))
        duplicate.setblocking(False)
        try:
            if by_coordinator:
                served.hall.links[0].cut()
            else:
                calls.client.hangup()
            await until(lambda: served.hall.ends == [False], limit_s=1.0)
            await ended(duplicate, limit_s=1.0)
            with pytest.raises(OSError, match=r"pipe|reset|not connected"):
                duplicate.send(b"x")
        finally:
            duplicate.close()


@pytest.mark.parametrize(
    "text", ["no json", '{"type":"Assign"}', "x" * (MESSAGE_BYTES + 1)], ids=["no-json", "field-missing", "too-long"]
)
async def test_garbage_of_the_coordinator_ends_the_link_once(served: Served, text: str) -> None:
    async with dialing(at(served)) as calls:
        await until(lambda: calls.messages)
        served.hall.links[0].send_text(text)
        await until(lambda: calls.downs)
        await asyncio.sleep(0.1)
        assert (len(calls.ups), calls.downs) == (1, 1)


async def test_an_heirs_electorate_may_be_as_long_as_ten_thousand_members_need(served: Served) -> None:
    uids = tuple(f"0b2dfb52-5b4b-4a9a-9a1f-{number:012d}" for number in range(10_500))
    estate = m.Estate(NO_ELECTORATE, voters=uids, former_voters=uids, holder="", charges=(), recoveries_by_strategy={})
    async with dialing(at(served)) as calls:
        await until(lambda: calls.messages)
        served.hall.links[0].send(estate)
        await until(lambda: len(calls.messages) == 2)
        assert calls.messages[1] == estate


async def test_a_message_of_an_unknown_type_is_dropped(served: Served) -> None:
    async with dialing(at(served)) as calls:
        await until(lambda: calls.messages)
        served.hall.links[0].send_text('{"v":3,"type":"FromTheFuture"}')
        served.hall.links[0].send(m.Welcome(NO_ROUND))
        await until(lambda: len(calls.messages) == 2)


# Who answers


async def test_a_coordinator_that_does_not_know_the_key_is_not_told_a_proof(served: Served) -> None:
    """Whoever took the coordinator's address learns nothing with which it could pass for a member."""
    heard: list[object] = []

    async def impostor(link: web.WebSocketResponse) -> None:
        heard.append(wire.decode(await link.receive_str(), KNOWN))
        await link.send_str(wire.encode(Challenge("nonce", "0" * 64)))
        async for frame in link:
            heard.append(frame)

    async with answering(impostor) as address, dialing(address, at(served)) as calls:
        await until(lambda: calls.ups)
        assert calls.ups == ["127.0.0.1"]
        await until(lambda: heard)
        assert [type(x) for x in heard] == [Hello]


async def test_another_implementation_of_websocket_is_understood(served: Served) -> None:
    async def coordinator(link: web.WebSocketResponse) -> None:
        hello = wire.decode(await link.receive_str(), KNOWN)
        parts = (KEY, hello.role, hello.job_uid, hello.nonce, "nonce")
        await link.send_str(wire.encode(Challenge("nonce", handshake.server_proof(*parts))))
        assert wire.decode(await link.receive_str(), KNOWN) == Prove(handshake.caller_proof(*parts))
        assert isinstance(wire.decode(await link.receive_str(), KNOWN), m.Join)
        await link.ping(b"there?")
        await link.send_str(wire.encode(m.Welcome(NO_ROUND)))
        assert (await link.receive()).type is aiohttp.WSMsgType.CLOSE

    async with answering(coordinator) as address, dialing(address) as calls:
        await until(lambda: calls.messages == [m.Welcome(NO_ROUND)])
        await calls.client.flushed(1.0)


@asynccontextmanager
async def answering(talk: Callable[[web.WebSocketResponse], Awaitable[None]]) -> AsyncIterator[Address]:
    """A WebSocket server of aiohttp's."""

    async def serve(request: web.Request) -> web.WebSocketResponse:
        link = web.WebSocketResponse()
        await link.prepare(request)
        await talk(link)
        return link

    app = web.Application()
    app.router.add_get(MEMBERSHIP_PATH, serve)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        host, port = runner.addresses[0]
        yield host, port
    finally:
        await runner.cleanup()


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
async def test_one_that_is_no_sidecar_is_passed_over(served: Served, answer: bytes) -> None:
    async def answering_so(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(answering_so, "127.0.0.1", 0)
    async with server, dialing(server.sockets[0].getsockname(), at(served)) as calls:
        await until(lambda: calls.ups)
        assert calls.downs == 0

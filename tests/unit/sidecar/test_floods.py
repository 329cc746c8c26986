"""Attacks of callers without the key on a sidecar that coordinates: the limits of their cost, and no member is lost.

How long they keep the event loop busy depends on the machine: `make bench-hostile` measures it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.unit.sidecar.calling import at, dialing
from tests.unit.sidecar.recording_handler import (
    HEAD,
    HELLO,
    HealthyMember,
    ServedSidecar,
    ended,
    serving,
    until,
    warnings,
)
from tests.unit.tcp_server import tcp_server
from understudy_protocol.frames import Opcode, frame
from understudy_protocol.pod import MEMBERSHIP_PATH
from understudy_protocol.upgrade import accept
from understudy_sidecar import client as client_module
from understudy_sidecar.client import Address

PING = frame(Opcode.PING, b"", masked=True)
PONG = frame(Opcode.PONG, b"", masked=True)
UNPROVEN_BYTES = 1024


@pytest.fixture
async def served() -> AsyncIterator[ServedSidecar]:
    """A server of a job of 64 members."""
    async with serving(members=64) as it:
        yield it


async def answered(sock: socket.socket) -> bytes:
    """The bytes that the server answers, until it sends nothing for a moment."""
    received = b""
    with contextlib.suppress(TimeoutError, ConnectionError):
        while data := await asyncio.wait_for(asyncio.get_running_loop().sock_recv(sock, 1 << 16), 0.3):
            received += data
    return received


@pytest.mark.attack("D1", "PINGs before the proof of the key", before="each was answered, without limit")
@pytest.mark.parametrize("control", [PING, PONG], ids=["ping", "pong"])
async def test_control_frames_of_a_caller_without_a_proof_are_not_answered(
    served: ServedSidecar, control: bytes
) -> None:
    with served.dialed() as sock:
        sock.sendall(HEAD + control * 50)
        answer = await answered(sock)
    assert answer.startswith(b"HTTP/1.1 101 ")
    assert answer.endswith(b"\r\n\r\n"), "nothing after the head"


@pytest.mark.attack("D1", "a flood before the proof of the key", before="4 KiB and endless frames were read")
@pytest.mark.parametrize(
    "flood",
    [PING, PONG, frame(Opcode.TEXT, b"{", masked=True), bytes([1, 0x80, 0, 0, 0, 0]), b"x", b"\r"],
    ids=["pings", "pongs", "messages", "empty-fragments", "noise", "line-ends"],
)
@pytest.mark.parametrize("begun", [b"", HEAD, HEAD + HELLO], ids=["from-the-start", "after-the-head", "after-a-hello"])
async def test_a_flood_ends_its_connection_after_a_kibibyte(served: ServedSidecar, begun: bytes, flood: bytes) -> None:
    with served.dialed() as sock:
        sock.sendall(begun + flood * (UNPROVEN_BYTES // len(flood) + 1))
        await ended(sock)
    await until(lambda: not served.server.callers)


@pytest.mark.attack("D1", "PINGs that extend the deadline of the handshake", before="the connection stayed forever")
async def test_no_message_of_a_caller_extends_its_time(served: ServedSidecar, caplog: pytest.LogCaptureFixture) -> None:
    # given a caller that always has unread bytes
    with served.dialed() as sock:
        sock.sendall(HEAD)
        await until(lambda: served.server.callers)
        (caller,) = served.server.callers
        await answered(sock)
        caller.transport.pause_reading()
        sock.sendall(PING)
        # when its time is over
        for _ in range(5):
            served.server.waiting_connections._on_time()
        # then the server closes the connection all the same
        await ended(sock)
    assert warnings(caplog) == ["127.0.0.1 was rejected: it did not prove the job's key within 5 s"]


@pytest.mark.attack("D1", "a dialed address that sends without end", before="the member answered, and waited there")
async def test_a_member_leaves_an_address_that_sends_without_end(
    served: ServedSidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it has proved the key, a server may send no more than a caller. The member does not wait for its time."""
    monkeypatch.setattr(client_module, "ANSWER_S", 3600.0)
    received = bytearray()

    async def read(reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(4096):
                received.extend(data)

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(accept((await reader.readuntil(b"\r\n\r\n"))[:-4], MEMBERSHIP_PATH))
        reading = asyncio.create_task(read(reader))
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(frame(Opcode.PING, b"", masked=False) * 100)
                await writer.drain()
                await asyncio.sleep(0)  # drain() alone does not let others run while the kernel takes all
        writer.close()
        await reading

    async with tcp_server(flood) as address, dialing(Address(*address), at(served)) as calls:
        await until(lambda: calls.ups)
        assert len(received) < UNPROVEN_BYTES, "a Hello at most, and no PONG"


@pytest.mark.attack("D1", "a dialed address that always has something unread", before="its time began again and again")
async def test_a_member_extends_the_time_of_an_address_once(
    served: ServedSidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "ANSWER_S", 0.1)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        call = calls.client._dialing
        assert call is not None
        assert call._call is not None
        call._call.transport.pause_reading()  # so that some bytes are always unread
        writer.write(b"HTTP/1.1 101 ")
        await reader.read()
        writer.close()

    async with tcp_server(accept) as address, dialing(Address(*address), at(served)) as calls:
        await until(lambda: calls.ups)


@pytest.mark.attack("D1", "connections that are reset", before="a line of the log each")
async def test_connections_that_are_reset_fill_no_log(served: ServedSidecar, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    for _ in range(50):
        with served.dialed() as sock:
            sock.sendall(HEAD)
            await answered_once(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    await until(lambda: not served.server.callers)
    assert len(caplog.records) <= 1


async def answered_once(sock: socket.socket) -> bytes:
    return await asyncio.get_running_loop().sock_recv(sock, 1 << 16)


# 500 at once

FLOOD, NOISE = HEAD + PING * 2000, os.urandom(20_000)
Attack = Callable[[socket.socket], Awaitable[None]]


async def flood(sock: socket.socket) -> None:
    await asyncio.get_running_loop().sock_sendall(sock, FLOOD)


async def slow(sock: socket.socket) -> None:
    for byte in itertools.cycle(HEAD):
        sock.send(bytes([byte]))
        await asyncio.sleep(0.05)


async def silent(sock: socket.socket) -> None:
    await ended(sock, 60)


async def half_open(sock: socket.socket) -> None:
    sock.sendall(HEAD + HELLO[:9])
    await ended(sock, 60)


async def never_reading(sock: socket.socket) -> None:
    sock.sendall(HEAD + HELLO)
    await asyncio.sleep(60)


async def noise(sock: socket.socket) -> None:
    await asyncio.get_running_loop().sock_sendall(sock, NOISE)


KINDS: tuple[Attack, ...] = (flood, slow, silent, half_open, never_reading, noise)
MEMBERS, HOSTILE, ROUNDS = 64, 500, 2


@pytest.mark.attack(
    "D1", "500 hostile connections of six kinds, 64 members", before="20 stopped the coordinator's loop for 7.8 s"
)
async def test_five_hundred_hostile_connections_cost_no_member(served: ServedSidecar) -> None:
    opened: list[Attack] = []

    async def attack(kind: Attack, source: str) -> None:
        """Each replaces a connection that was closed, again and again."""
        loop = asyncio.get_running_loop()
        while True:
            with socket.socket() as sock, contextlib.suppress(OSError):
                sock.setblocking(False)
                sock.bind((source, 0))
                await loop.sock_connect(sock, (served.host, served.port))
                opened.append(kind)
                await kind(sock)
            await asyncio.sleep(0.1)

    async with contextlib.AsyncExitStack() as stack:
        # given 64 members
        members = []
        for _ in range(MEMBERS):
            link = await stack.enter_async_context(served.member())
            members.append(HealthyMember(served, link))
        # when 500 hostile connections come from ten addresses
        kinds = itertools.cycle(KINDS)
        hostile = [asyncio.create_task(attack(next(kinds), f"127.0.1.{x % 10 + 1}")) for x in range(HOSTILE)]
        await until(lambda: len(opened) >= HOSTILE, 40.0)
        # then the server answers each member again and again, and another member can join
        for _ in range(ROUNDS):
            await asyncio.gather(*(member.assert_served(limit_s=20.0) for member in members))
        async with served.member():
            pass
        # and the limits hold
        waiting = [caller for caller in served.server.callers if caller not in served.handler.links]
        assert len(waiting) <= 768
        assert max(len(caller._received) for caller in waiting) <= UNPROVEN_BYTES
        assert max(caller.unsent() for caller in waiting) <= UNPROVEN_BYTES
        await until(lambda: served.handler.dropped_links)
        assert served.handler.dropped_links == [False], "only the member that came last has left"
        for task in hostile:
            task.cancel()
        await asyncio.gather(*hostile, return_exceptions=True)

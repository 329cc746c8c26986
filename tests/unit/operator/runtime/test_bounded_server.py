"""A server with unknown callers: real sockets, addresses of 127.0.0.0/8, no TLS.

`good` is an address that sends requests like a kubelet or an API server; all others are hostile.
"""

import asyncio
import contextlib
import os
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from aiohttp import web

from understudy_operator.runtime import bounded_server, fair_semaphore
from understudy_operator.runtime.bounded_server import BoundedServer, Drop, ServerLimits

GOOD, HOSTILE = "127.0.0.1", "127.0.0.66"
#: The webhook's, except for the longest body.
WEBHOOKS = ServerLimits(body=1000)
SMALL = ServerLimits(slots=8, per_address=4, waiting=32, body=200_000, request_s=0.5, body_s=0.5, idle_s=20.0)


class Served:
    def __init__(self, server: BoundedServer, dropped: "Counter[Drop]", responded: "Counter[int]") -> None:
        self.server, self.dropped, self.responses = server, dropped, responded

    async def connect(self, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.server.port, local_addr=(address, 0))

    async def ask(self, address: str = GOOD, body: bytes = b"good") -> str:
        """The status line of the answer to a request on a new connection; "" if there is none."""
        reader, writer = await self.connect(address)
        with contextlib.closing(writer):
            writer.write(head(len(body)) + body)
            return (await reader.readline()).decode().strip()


def head(length: int, *lines: str) -> bytes:
    return "\r\n".join(["POST / HTTP/1.1", "Host: x", f"Content-Length: {length}", *lines, "", ""]).encode()


@asynccontextmanager
async def serving(limits: ServerLimits = SMALL) -> AsyncIterator[Served]:
    dropped, responses = Counter[Drop](), Counter[int]()

    def answer(_: web.BaseRequest, body: bytes) -> web.Response:
        responses[len(body)] += 1
        return web.Response(text="ok")

    server = BoundedServer(answer, limits, on_drop=lambda reason: dropped.update([reason]))
    await server.listen(0)
    try:
        yield Served(server, dropped, responses)
    finally:
        await server.close()


async def ended(reader: asyncio.StreamReader) -> bool:
    """Whether the server closes the connection in time."""
    async with asyncio.timeout(5):
        with contextlib.suppress(ConnectionError):
            while await reader.read(4096):
                pass
    return True


async def test_a_request_is_answered_and_its_connection_is_kept_for_the_next_one() -> None:
    async with serving() as served:
        reader, writer = await served.connect(GOOD)
        for _ in range(3):
            writer.write(head(4) + b"good")
            answer = await reader.readuntil(b"ok")
            assert answer.startswith(b"HTTP/1.1 200")
        writer.close()
        assert served.responses == {4: 3}


@pytest.mark.parametrize("sends", ["nothing", "half a request line", "headers without an end", "half a body"])
async def test_a_connection_without_a_whole_request_ends_in_time(sends: str) -> None:
    sent = {
        "nothing": b"",
        "half a request line": b"POST / HT",
        "headers without an end": b"POST / HTTP/1.1\r\nHost: x\r\n",
        "half a body": head(100) + b"x" * 50,
    }[sends]
    async with serving() as served:
        reader, writer = await served.connect(HOSTILE)
        writer.write(sent)
        assert await ended(reader)
        writer.close()
        assert served.dropped[Drop.SLOW] == 1
        assert served.responses == {}


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (head(200_001), "413"),
        (head(10**18), "413"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", "411"),
        (head(100, "Content-Encoding: gzip"), "411"),
    ],
    ids=["a byte too much", "an exabyte", "no length", "compressed"],
)
async def test_a_body_that_is_too_large_is_refused_before_it_is_sent(request_head: bytes, status: str) -> None:
    async with serving() as served:
        reader, writer = await served.connect(HOSTILE)
        writer.write(request_head)
        async with asyncio.timeout(5):
            line = await reader.readline()
        assert line.split()[1].decode() == status
        assert await ended(reader)
        writer.close()
        assert served.dropped == {Drop.TOO_LARGE: 1}


async def test_the_largest_body_is_read() -> None:
    async with serving() as served:
        assert await served.ask(body=b"x" * 200_000) == "HTTP/1.1 200 OK"
        assert served.responses == {200_000: 1}


async def test_an_address_with_all_slots_does_not_delay_another_one() -> None:
    # given two hostile addresses with all slots, and more connections that wait
    async with serving(ServerLimits(slots=8, per_address=4, waiting=32, body=1000, request_s=30.0)) as served:
        hostile = [await served.connect(address) for address in ("127.0.0.66", "127.0.0.67") for _ in range(20)]
        # when another address sends a request, then the server answers at once, and does not wait for `request_s`
        began = time.monotonic()
        for _ in range(10):
            assert await served.ask() == "HTTP/1.1 200 OK"
        assert time.monotonic() - began < 15.0
        assert served.dropped[Drop.CROWDED] >= 1
        for _, writer in hostile:
            writer.close()


@asynccontextmanager
async def held_by(served: Served, addresses: list[str], each: int, sends: bytes = b"") -> AsyncIterator[None]:
    """Each address has so many connections that send this and nothing else, and reopens one that is closed."""

    async def hold(address: str) -> None:
        while True:
            reader, writer = await served.connect(address)
            with contextlib.closing(writer), contextlib.suppress(ConnectionError):
                writer.write(sends)
                await reader.read()

    holding = [asyncio.create_task(hold(address)) for address in addresses for _ in range(each)]
    expected = min(WEBHOOKS.slots, len(addresses) * min(each, WEBHOOKS.per_address))
    async with asyncio.timeout(60):
        while served.server._slots.taken.total() < expected:  # noqa: ASYNC110 (nothing reports it)
            await asyncio.sleep(0.01)
    try:
        yield
    finally:
        for task in holding:
            task.cancel()
        await asyncio.gather(*holding, return_exceptions=True)


def hostile_addresses(count: int) -> list[str]:
    return [f"127.0.2.{number}" for number in range(1, count + 1)]


@pytest.mark.attack("D2", "31 addresses have 8 silent connections each", before="the others waited for a slot")
async def test_31_addresses_with_all_slots_do_not_delay_another_one() -> None:
    limits = replace(WEBHOOKS, request_s=30.0)
    async with serving(limits) as served, held_by(served, hostile_addresses(31), each=8):
        began = time.monotonic()
        for _ in range(10):
            assert await served.ask() == "HTTP/1.1 200 OK"
        assert time.monotonic() - began < 15.0


async def test_32_addresses_with_all_slots_delay_another_one() -> None:
    """A limit that docs/explanation/security.md states."""
    async with serving(replace(WEBHOOKS, request_s=1.0)) as served, held_by(served, hostile_addresses(32), each=1):
        began = time.monotonic()
        assert await served.ask() == "HTTP/1.1 200 OK"
        assert time.monotonic() - began > 0.5


async def test_connections_of_the_same_address_delay_it() -> None:
    """A limit that docs/explanation/security.md states."""
    async with serving(replace(WEBHOOKS, request_s=1.0)) as served, held_by(served, [GOOD], each=8):
        began = time.monotonic()
        assert await served.ask() == "HTTP/1.1 200 OK"
        assert time.monotonic() - began > 0.5


@pytest.mark.attack(
    "D2",
    "31 addresses send a part of a large body on 8 connections each",
    before="a large body of another address waited for one of each of them: 13 s",
)
async def test_half_sent_large_bodies_of_31_addresses_delay_the_large_body_of_another_one_by_one_of_them() -> None:
    # given an address whose large bodies arrive at once, and then the others
    limits, large = replace(WEBHOOKS, body=200_000, body_s=2.0), b"x" * 150_000
    half = head(len(large)) + b"x" * 1000
    async with serving(limits) as served:
        assert await served.ask(body=large) == "HTTP/1.1 200 OK"
        async with held_by(served, hostile_addresses(31), each=8, sends=half):
            for _ in range(3):
                began = time.monotonic()
                assert await served.ask(body=large) == "HTTP/1.1 200 OK"
                assert time.monotonic() - began < 8.0  # all of them would take 15 s


async def test_half_sent_large_bodies_of_31_addresses_delay_the_first_large_body_of_another_one() -> None:
    """A limit that docs/explanation/security.md states."""
    limits, large = replace(WEBHOOKS, body=200_000, body_s=0.5), b"x" * 150_000
    half = head(len(large)) + b"x" * 1000
    async with serving(limits) as served, held_by(served, hostile_addresses(31), each=8, sends=half):
        began = time.monotonic()
        assert await served.ask(body=large) == "HTTP/1.1 200 OK"
        assert 1.0 < time.monotonic() - began < 31 / 4 * 0.5 + 5.0


@pytest.mark.attack("D2", "all slots are taken by addresses of one IPv6 network", before="others waited for their time")
async def test_a_network_with_all_slots_does_not_delay_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    # given hostile addresses of one network, with one slot each
    for module in (bounded_server, fair_semaphore):
        monkeypatch.setattr(module, "network_of", lambda address: address if address == GOOD else "theirs")
    async with serving(replace(SMALL, request_s=30.0)) as served:
        hostile = [await served.connect(f"127.0.2.{number}") for number in range(1, 9)]
        # then the server answers another network at once
        async with asyncio.timeout(5):
            assert await served.ask() == "HTTP/1.1 200 OK"
        for _, writer in hostile:
            writer.close()


async def test_ipv6_and_ipv4_are_answered() -> None:
    async with serving() as served:
        for host in ("::1", "127.0.0.1"):
            reader, writer = await asyncio.open_connection(host, served.server.port)
            writer.write(head(4) + b"good")
            assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
            writer.close()


async def test_a_connection_with_a_request_that_is_answered_is_not_closed_for_another_address() -> None:
    # given an address with a connection that has just been answered, and with fewer slots than others
    async with serving(ServerLimits(slots=4, per_address=3, waiting=32, body=1000, request_s=30.0)) as served:
        reader, writer = await served.connect(GOOD)
        writer.write(head(4) + b"good")
        await reader.readuntil(b"ok")
        # when a hostile address takes the other slots, and another one needs one
        hostile = [await served.connect(address) for address in (HOSTILE, HOSTILE, HOSTILE, "127.0.0.67")]
        assert await served.ask("127.0.0.68") == "HTTP/1.1 200 OK"
        # then the server closes hostile connections
        writer.write(head(4) + b"good")
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        for _, each in (*hostile, (reader, writer)):
            each.close()


async def test_connections_beyond_all_limits_are_closed_and_use_no_file_descriptors_of_others() -> None:
    async with serving(replace(SMALL, request_s=30.0)) as served:
        hostile = [await served.connect(HOSTILE) for _ in range(100)]
        async with asyncio.timeout(5):
            while served.dropped[Drop.CROWDED] < 64:  # noqa: ASYNC110 (nothing reports it)
                await asyncio.sleep(0.01)
        assert await served.ask() == "HTTP/1.1 200 OK"
        # 4 slots of the address and 32 waiting connections
        assert served.dropped[Drop.CROWDED] == 100 - 4 - 32
        for _, writer in hostile:
            writer.close()


async def test_large_bodies_of_one_address_do_not_delay_the_large_body_of_another_one() -> None:
    # given an address with as many half-sent large bodies as it may send, and others that wait for them
    limits = ServerLimits(
        slots=16, per_address=8, large_bodies=3, large_bodies_per_address=2, body=200_000, body_s=30.0
    )
    async with serving(limits) as served:
        hostile = [await served.connect(HOSTILE) for _ in range(8)]
        for _, writer in hostile:
            writer.write(head(150_000) + b"x" * 1000)
        # then another address can send one
        async with asyncio.timeout(5):
            assert await served.ask(body=b"x" * 150_000) == "HTTP/1.1 200 OK"
        for _, writer in hostile:
            writer.close()


async def test_a_waiting_sender_fills_only_a_small_kernel_buffer() -> None:
    # given a connection that waits for a slot
    async with serving(ServerLimits(slots=2, per_address=1, waiting=32, body=1000, request_s=30.0)) as served:
        first = await served.connect(HOSTILE)
        second = socket.create_connection(("127.0.0.1", served.server.port), source_address=(HOSTILE, 0))
        second.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        second.setblocking(False)
        # when it sends as much as it can
        sent = 0
        accepted = True
        while accepted:
            accepted = False
            with contextlib.suppress(BlockingIOError):
                while sent < 300_000:
                    sent += second.send(os.urandom(65536))
                    accepted = True
            assert await served.ask() == "HTTP/1.1 200 OK"  # the server has had time to read
        # then it has sent no more than its own buffer and the server's
        assert 1000 < sent < 300_000
        second.close()
        first[1].close()


async def test_closing_ends_all_connections() -> None:
    async with serving() as served:
        connections = [await served.connect(HOSTILE) for _ in range(20)]
        await asyncio.sleep(0)
    assert all([await ended(reader) for reader, _ in connections])
    for _, writer in connections:
        writer.close()

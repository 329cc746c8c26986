"""Clients of a gateway without a token: the real process, in front of a server that reads and drops each body."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from benchmarks.machine import Usage
from tests.cluster.paths import CHECKOUT
from tests.unit.rollout.guarded import Guarded, guarded, until
from tests.unit.virtual_time import in_virtual_time
from understudy_rollout.gateway.connections import of_largest
from understudy_rollout.gateway.flights import Policy

TOKEN = "secret"
MIB = 1 << 20
CALLERS = 24
#: The container of a gateway has a limit of 1 GiB.
MOST_MB = 100
BLOCK = bytes(256 * 1024)
LARGE_ANSWER = bytes(24 * MIB)


@dataclass
class Process:
    pid: int
    port: int
    client: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def peak_mb(self) -> float:
        return Usage.of(self.pid).peak_rss_mb

    async def ask(self, body: bytes = b"{}", **options: object) -> tuple[int, str]:
        post = self.client.post(self.url + "/generate", data=body, **options)  # type: ignore[arg-type]
        async with asyncio.timeout(10), post as response:
            return response.status, await response.text()


async def generate(request: web.Request) -> web.StreamResponse:
    """Returns the number of received bytes."""
    received = 0
    async for block in request.content.iter_any():
        received += len(block)
    if request.query_string == "large":
        return web.Response(body=LARGE_ANSWER)
    return web.Response(text=f"{received} bytes")


@asynccontextmanager
async def gateway(folder: Path, *options: str) -> AsyncIterator[Process]:
    app = web.Application(client_max_size=0)
    app.router.add_route("*", "/{path:.*}", generate)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.01, auto_decompress=False)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    token = folder / "token"
    token.write_text(TOKEN)
    words = ["-m", "understudy_rollout.gateway", "--engine", f"http://127.0.0.1:{runner.addresses[0][1]}"]
    words += ["--port", "0", "--token-file", str(token), "--state-file", str(folder / "weights.json")]
    env = os.environ | {"PYTHONPATH": str(CHECKOUT / "sidecar")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, "--initial-version", "v0", *options, env=env, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        async with aiohttp.ClientSession() as client:
            async with asyncio.timeout(60):
                listening = re.search(rb"listening on port (\d+)", await process.stderr.readline())
                assert listening is not None
                reading = asyncio.ensure_future(process.stderr.read())
                site = Process(process.pid, int(listening[1]), client)
                while (await site.ask())[0] != 200:
                    pass
            yield site
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await reading
        await runner.cleanup()


async def upload(port: int, head: bytes, block: bytes, blocks: int) -> None:
    """Ends when there is an answer, or everything is sent; it does not read the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = asyncio.ensure_future(reader.readline())
    try:
        writer.write(head)
        for _ in range(blocks):
            writer.write(block)
            async with asyncio.timeout(10):
                await writer.drain()
            if answer.done():
                break
    except (OSError, TimeoutError):
        pass
    finally:
        answer.cancel()
        writer.transport.abort()


def post(fields: str, path: str = "/generate", method: str = "POST") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\n{fields}\r\n\r\n".encode()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


ENDLESS = f"Content-Length: {40 * MIB}"
UPLOADS = {
    "a long body": (post(ENDLESS), BLOCK, 48),
    "a body without end": (post("Transfer-Encoding: chunked"), chunk(BLOCK), 48),
    "a body of a request that only reads": (post(ENDLESS, "/metrics", "GET"), BLOCK, 48),
    "a compressed body": (
        post(f"Content-Encoding: gzip\r\nContent-Length: {len(gzip.compress(bytes(64 * MIB)))}"),
        gzip.compress(bytes(64 * MIB)),
        1,
    ),
    "a body to a route that is not for clients": (post(ENDLESS, "/update_weights"), BLOCK, 48),
    "a body with a wrong token": (
        post(ENDLESS + "\r\nProxy-Authorization: Bearer x", "/understudy/v1/engine/x"),
        BLOCK,
        120,
    ),
    "large fields": (b"POST /generate HTTP/1.1\r\n", b"x-a: " + b"a" * 8000 + b"\r\n", 127),
}


@pytest.mark.parametrize("what", UPLOADS)
@pytest.mark.attack(
    "D2",
    "24 uploads at once to a gateway of rollouts, without the token",
    before="the gateway kept them: 48 of 40 MiB took 2 GB, of a limit of 512 MiB",
)
async def test_uploads_without_a_token_take_little_memory_and_requests_are_answered(
    what: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    async with gateway(tmp_path) as site:
        uploads = [asyncio.ensure_future(upload(site.port, *UPLOADS[what])) for _ in range(CALLERS)]
        # when a client sends requests in the meantime
        answers = [await site.ask() for _ in range(5)]
        await asyncio.wait(uploads)
        # then they are answered, and later ones too
        assert [*answers, await site.ask()] == [(200, "2 bytes")] * 6
        record_property("now", f"at most {MOST_MB} MB")
        assert site.peak_mb < MOST_MB


@pytest.mark.attack(
    "D2", "asks a server for large answers through its gateway, and reads none", before="the gateway kept them whole"
)
async def test_answers_that_are_not_read_take_little_memory(tmp_path: Path) -> None:
    async with gateway(tmp_path) as site:
        # given clients that read the first line of answers of 24 MiB
        asked = [await asyncio.open_connection("127.0.0.1", site.port, limit=1024) for _ in range(CALLERS)]
        for _, writer in asked:
            writer.write(post("Content-Length: 2", "/generate?large") + b"{}")
        async with asyncio.timeout(30):
            assert {await reader.readline() for reader, _ in asked} == {b"HTTP/1.1 200 OK\r\n"}
        # then others are answered, and an answer that is read is complete
        assert await site.ask() == (200, "2 bytes")
        reader, writer = asked[0]
        await reader.readuntil(b"\r\n\r\n")
        async with asyncio.timeout(30):
            assert len(await reader.readexactly(24 * MIB)) == 24 * MIB
        assert site.peak_mb < MOST_MB
        for _, writer in asked:
            writer.transport.abort()


async def unfinished_fields(port: int) -> asyncio.StreamWriter:
    """As many header fields as a request may have, each as long as it may be, and no end."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /generate HTTP/1.1\r\n" + b"".join(b"x-%d: " % x + b"a" * 4000 + b"\r\n" for x in range(47)))
    await writer.drain()
    return writer


async def unread_answer(port: int) -> asyncio.StreamWriter:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    writer.write(post("Content-Length: 2", "/generate?large") + b"{}")
    await reader.readline()
    return writer


async def unfinished_body(port: int) -> asyncio.StreamWriter:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(post(ENDLESS) + bytes(256 << 10))
    await writer.drain()
    return writer


def kernel_mb(pid: int) -> float:
    """The bytes in the kernel's buffers of a process's connections; 0.0 on a machine without ss."""
    if shutil.which("ss") is None:
        return 0.0
    listed = subprocess.run(["ss", "-tmnpH", "--oneline"], capture_output=True, text=True, check=True).stdout
    own = [line for line in listed.splitlines() if f"pid={pid}," in line]
    return sum(int(x) for line in own for x in re.findall(r"[(,][rw](\d+)", line)) / (1 << 20)


@pytest.mark.parametrize("open_one", [unfinished_fields, unread_answer, unfinished_body])
@pytest.mark.attack(
    "D2",
    "200 connections that take as much memory of a gateway as possible",
    before="an answer that no client read took 3.5 MB: 2,048 of them took 7 times the limit of the container",
)
async def test_a_connection_takes_at_most_480_kib(
    open_one: Callable[[int], Awaitable[asyncio.StreamWriter]],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    async with gateway(tmp_path) as site:
        before = site.peak_mb
        async with asyncio.timeout(60):
            opened = [await open_one(site.port) for _ in range(200)]
        assert await site.ask() == (200, "2 bytes")
        each_kib = (site.peak_mb - before + kernel_mb(site.pid)) * 1024 / 200
        record_property("now", f"{each_kib:.0f} KiB")
        # 2,048 of them, and 50 MiB, are the limit of the container: 1 GiB
        assert each_kib < 480
        for writer in opened:
            writer.transport.abort()
        await asyncio.sleep(0)  # the transports close their sockets


@pytest.mark.parametrize("size", [1 << 10, 300 << 10, 40 * MIB])
async def test_small_buffers_to_the_server_do_not_stall_a_body_or_an_answer(size: int, tmp_path: Path) -> None:
    async with gateway(tmp_path) as site:
        async with asyncio.timeout(5.0):
            async with site.client.post(site.url + "/generate", data=io.BytesIO(bytes(size))) as answer:
                assert await answer.text() == f"{size} bytes"
            async with site.client.post(site.url + "/generate?large", data=b"{}") as answer:
                assert len(await answer.read()) == 24 * MIB


BEGINNINGS = {
    "nothing": b"",
    "a part of a head": b"POST /gen",
    "a part of a small body": post("Content-Length: 9") + b"{",
    "a part of a large body": post(ENDLESS) + b"{",
}


@pytest.mark.parametrize("what", BEGINNINGS)
@pytest.mark.attack("D2", "connections to a gateway beyond their number that send no whole request", before="no limit")
async def test_connections_without_a_complete_request_block_no_client(what: str, tmp_path: Path) -> None:
    async with gateway(tmp_path, "--most-connections", "100") as site:
        theirs = ("127.0.0.2", 0)
        opened = [await asyncio.open_connection("127.0.0.1", site.port, local_addr=theirs) for _ in range(150)]
        for _, writer in opened:
            writer.write(BEGINNINGS[what])
        assert [await site.ask() for _ in range(20)] == [(200, "2 bytes")] * 20
        assert len(os.listdir(f"/proc/{site.pid}/fd")) < 250  # each has at most one more, to the server
        for _, writer in opened:
            writer.transport.abort()


@pytest.mark.attack("D2", "connections to a gateway from many addresses of one IPv6 network", before="no limit")
def test_the_address_with_most_connections_in_the_network_with_most_loses_one() -> None:
    theirs = {f"fd00:0:0:2::{number}": [f"theirs-{number}"] for number in range(20)}
    ours = {"fd00:0:0:1::5": ["ours", "ours"], "::ffff:10.0.0.1": ["ours", "ours", "ours"]}
    assert of_largest({**ours, **theirs}) == ["theirs-0"]
    flood = {"fd00:0:0:1::6": ["flood"] * 3}
    assert of_largest({**ours, **flood}) == ["flood"] * 3


# Its answers, in virtual time ----------------------------------------------------------------------------------------


async def answer_to(site: Guarded, method: str, path: str, **options: Any) -> tuple[int, str]:
    async with site.client.request(method, site.url + path, **options) as response:
        return response.status, await response.text()


async def in_parts(size: int) -> AsyncIterator[bytes]:
    for _ in range(size >> 14):
        yield b"x" * (1 << 14)


@in_virtual_time
async def test_a_large_body_is_forwarded_with_the_clients_content_length() -> None:
    async with guarded() as site:
        # given a body of 1 MiB, the limit here
        body = b"x" * ((1 << 20) - 4) + b"last"
        async with site.client.post(site.url + "/tokenize", data=body) as response:
            assert await response.text() == "1048576 None 1048576"
            assert response.headers["X-Body-Ends-With"] == "last"
        # and one without a Content-Length
        assert await answer_to(site, "POST", "/tokenize", data=in_parts(1 << 19)) == (200, "None chunked 524288")
        assert await answer_to(site, "POST", "/tokenize", data=b"{}") == (200, "2 None 2")
        assert await answer_to(site, "POST", "/tokenize") == (200, "0 None 0")


@in_virtual_time
async def test_a_request_that_is_too_large_is_rejected_with_the_reason() -> None:
    async with guarded() as site:
        most = "the body has more than 1048576 bytes (raise --most-body of the gateway)\n"
        assert await answer_to(site, "POST", "/tokenize", data=io.BytesIO(bytes((1 << 20) + 1))) == (413, most)
        assert await answer_to(site, "POST", "/tokenize", data=in_parts((1 << 20) + (1 << 14))) == (413, most)
        assert await answer_to(site, "GET", "/metrics", data=b"x") == (413, "GET requests may have no body here\n")
        fields = {f"X-{number}": "x" * 3000 for number in range(6)}
        many = "the header fields of the request have more than 16384 bytes\n"
        assert await answer_to(site, "POST", "/tokenize", headers=fields) == (431, many)


@pytest.mark.attack("D2", "sends data to a gateway that is not HTTP", before="a traceback was logged for each request")
@in_virtual_time
async def test_a_request_that_is_not_http_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with guarded() as site:
        for sent in (b"POST /generate HTTP/1.1\r\nx y z\r\n\r\n", b"\x16\x03\x01\0\xa5" * 9, b"GET / HTTP/9\r\n\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
            writer.write(sent + b"\r\n\r\n")
            assert (await reader.readline()).split(b" ")[1] == b"400"
            writer.close()
        assert [record.getMessage() for record in caplog.records if record.levelname != "INFO"] == []


@pytest.mark.attack(
    "D2", "sends a token to a gateway that is not UTF-8", before="a traceback was logged for each request"
)
@in_virtual_time
async def test_a_token_that_is_not_utf_8_is_rejected_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with guarded() as site:
        for head in (b"POST /understudy/v1/weights/close", b"GET /understudy/v1/engine/health"):
            for field in (b"Authorization", b"Proxy-Authorization"):
                reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
                writer.write(head + b" HTTP/1.1\r\nHost: x\r\n" + field + b": Bearer \xff\r\n\r\n")
                assert (await reader.readline()).split(b" ")[1] == b"401"
                writer.close()
        assert [record.getMessage() for record in caplog.records if record.levelname != "INFO"] == []


@pytest.mark.parametrize("length", [9, 1 << 20])
@in_virtual_time
async def test_a_body_that_does_not_arrive_within_30_s_ends_its_connection(length: int) -> None:
    async with guarded() as site:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(post(f"Content-Length: {length}", "/tokenize") + b"{")
        before = asyncio.get_running_loop().time()
        assert await ended(reader)
        assert 30 <= asyncio.get_running_loop().time() - before < 31
        writer.close()


async def ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


@in_virtual_time
async def test_a_slow_body_does_not_delay_an_update() -> None:
    async with guarded(policy=Policy.WAIT) as site:
        _, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(post("Content-Length: 9") + b"{")
        async with asyncio.timeout(1):
            await site.close()
        writer.close()


@in_virtual_time
async def test_requests_that_wait_for_the_server_are_not_evicted_and_others_get_503() -> None:
    async with guarded(most_connections=3) as site:
        # given the maximum of requests that wait for the server, and an idle connection that the third one replaces
        site.server.waits = True
        _, idle = await asyncio.open_connection("127.0.0.1", site.port)
        asked = [site.ask() for _ in range(3)]
        await until(lambda: site.server.running == 3)
        # then one more is answered 503 at once
        crowded = "all connections of this gateway wait for the server (raise --most-connections)\n"
        assert await answer_to(site, "POST", "/generate", json={}) == (503, crowded)
        # and the waiting ones get their answers
        for _ in range(3):
            site.server.go_on.release()
        assert [(await each).status for each in asked] == [200] * 3
        idle.close()

"""The answers to the kubelet's probes, which no other caller can prevent."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator

import aiohttp
import pytest

from tests.unit.sidecar.recording_handler import ended
from understudy_sidecar import health

Address = tuple[str, int]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection is closed because it is idle."""
    monkeypatch.setattr(health, "LIMIT_S", 3600.0)


@pytest.fixture
async def address() -> AsyncIterator[Address]:
    server = await health.listen(0, "127.0.0.1")
    yield server.sockets[0].getsockname()
    server.close()


async def test_a_probe_is_answered(address: Address) -> None:
    async with aiohttp.ClientSession() as session:
        for _ in range(2):
            async with session.get(f"http://127.0.0.1:{address[1]}/started") as response:
                assert (response.status, await response.text()) == (200, "ok")


@pytest.mark.usefixtures("patient")
async def test_a_probe_is_answered_past_many_idle_connections(address: Address) -> None:
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as idle:
        for _ in range(300):
            sock = idle.enter_context(socket.socket())
            sock.setblocking(False)
            await loop.sock_connect(sock, address)
        async with asyncio.timeout(30):
            await test_a_probe_is_answered(address)


@pytest.mark.attack("D1", "asks for metrics without end", before="each request calculated all metrics again")
async def test_a_caller_that_asks_without_end_has_the_metrics_calculated_five_times_a_second_at_most() -> None:
    calculated: list[float] = []

    def text() -> bytes:
        calculated.append(time.monotonic())
        return b"understudy 1\n"

    server = await health.listen(0, "127.0.0.1", metrics=text)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/metrics"
    began = time.monotonic()
    with contextlib.closing(server):
        async with aiohttp.ClientSession() as session:
            for _ in range(100):
                async with session.get(url) as response:
                    assert await response.read() == b"understudy 1\n"
        seconds = time.monotonic() - began
    assert len(calculated) <= 1 + seconds / 0.2


@pytest.mark.parametrize("sent", [b"", b"GET /started HTTP/1.1\r\n"])
async def test_a_caller_that_sends_no_request_is_disconnected(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "LIMIT_S", 0.1)
    server = await health.listen(0, "127.0.0.1")
    with socket.create_connection(server.sockets[0].getsockname()) as sock:
        sock.setblocking(False)
        sock.sendall(sent)
        assert await ended(sock) == b""
    server.close()


async def test_an_endless_head_is_not_kept(address: Address) -> None:
    with socket.create_connection(address) as sock:
        sock.setblocking(False)
        sock.sendall(b"GET /started HTTP/1.1\r\nX: " + b"x" * 5000)
        assert await ended(sock) == b""

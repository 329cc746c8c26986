"""The server answers a kubelet and a Prometheus, and no other caller can prevent it."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from tests.unit.sidecar.test_strangers import many_files
from understudy_operator.runtime import probe_server
from understudy_operator.runtime.probe_server import ProbeServer, Reply

__all__ = ["many_files"]  # a fixture

HEAD = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
async def port() -> AsyncIterator[int]:
    server = ProbeServer(lambda path: Reply(f"you asked for {path}".encode()))
    yield await server.listen(0)
    await server.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection is closed because it is idle."""
    monkeypatch.setattr(probe_server, "HEAD_S", 3600.0)


async def ask(port: int, head: bytes = HEAD, address: str = "127.0.0.1") -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    with contextlib.closing(writer):
        writer.write(head)
        return await reader.read()


async def connected(port: int, address: str) -> socket.socket:
    made = socket.socket()
    made.setblocking(False)
    with contextlib.ExitStack() as stack:
        stack.callback(made.close)
        made.bind((address, 0))
        await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", port))
        stack.pop_all()
    return made


async def test_a_probe_is_answered(port: int) -> None:
    answer = await ask(port)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\nyou asked for /healthz")


async def test_a_probe_is_answered_on_ipv6_too(port: int) -> None:
    reader, writer = await asyncio.open_connection("::1", port)
    with contextlib.closing(writer):
        writer.write(HEAD)
        assert (await reader.readline()) == b"HTTP/1.1 200 OK\r\n"


async def test_nothing_but_get_is_answered(port: int) -> None:
    assert (await ask(port, b"POST /healthz HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 405 ")


@pytest.mark.attack(
    "D2",
    "up to 1,500 pods connect to the port for probes, send nothing, and connect again when they are closed",
    before="100 of them had the kubelet refused at each probe: operator and webhook were restarted again and again",
)
@pytest.mark.parametrize("addresses", [200, 1500])
@pytest.mark.usefixtures("many_files")
async def test_a_kubelet_is_answered_while_many_addresses_connect_and_send_nothing(port: int, addresses: int) -> None:
    # given addresses, each with a silent connection that it reopens whenever it is closed
    connects, all_connected = 0, asyncio.Event()

    async def hold(address: str) -> None:
        nonlocal connects
        while True:
            with contextlib.suppress(OSError), await connected(port, address) as kept:
                connects += 1
                if connects == addresses:
                    all_connected.set()
                await asyncio.get_running_loop().sock_recv(kept, 1)

    holding = [
        asyncio.create_task(hold(f"127.0.{2 + number // 100}.{1 + number % 100}")) for number in range(addresses)
    ]
    async with asyncio.timeout(60):
        await all_connected.wait()
    # when a kubelet asks five times, then each answer arrives long before the probe's timeout of 10 s
    for _ in range(5):
        async with asyncio.timeout(5.0):
            assert (await ask(port)).startswith(b"HTTP/1.1 200 OK")
    for task in holding:
        task.cancel()
    await asyncio.gather(*holding, return_exceptions=True)


@pytest.mark.usefixtures("patient")
async def test_connections_beyond_the_limit_close_the_oldest(port: int) -> None:
    # given the maximum number of silent connections, each from another address
    with contextlib.ExitStack() as stack:
        kept = [
            stack.enter_context(await connected(port, f"127.0.{2 + number // 100}.{1 + number % 100}"))
            for number in range(256)
        ]
        # when one more is opened, then only the first one is closed
        stack.enter_context(await connected(port, "127.0.9.1"))
        async with asyncio.timeout(30):
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.get_running_loop().sock_recv(kept[0], 1) == b""
        with pytest.raises(BlockingIOError):
            kept[1].recv(1)


async def test_connections_of_one_address_beyond_its_limit_close_its_own(port: int) -> None:
    with contextlib.ExitStack() as stack:
        other = stack.enter_context(await connected(port, "127.0.9.1"))
        for _ in range(70):
            stack.enter_context(await connected(port, "127.0.2.1"))
        assert (await ask(port)).startswith(b"HTTP/1.1 200 OK")
        with pytest.raises(BlockingIOError):
            other.recv(1)


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\n"], ids=["nothing", "half a head"])
async def test_a_connection_without_a_whole_head_is_closed_after_2_s(port: int, sent: bytes) -> None:
    loop = asyncio.get_running_loop()
    with await connected(port, "127.0.0.1") as kept:
        await loop.sock_sendall(kept, sent)
        began = loop.time()
        async with asyncio.timeout(5.0):
            with contextlib.suppress(ConnectionResetError):
                assert await loop.sock_recv(kept, 1) == b""
        assert loop.time() - began > 1.5


@pytest.mark.usefixtures("patient")
async def test_an_endless_head_is_not_kept(port: int) -> None:
    loop = asyncio.get_running_loop()
    with await connected(port, "127.0.0.1") as kept:
        with contextlib.suppress(ConnectionError):
            await loop.sock_sendall(kept, b"GET / HTTP/1.1\r\nX: " + b"x" * 5000)
        async with asyncio.timeout(30):
            with contextlib.suppress(ConnectionResetError):
                assert await loop.sock_recv(kept, 1) == b""

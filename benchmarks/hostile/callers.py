"""A child process that simulates many hostile callers: six kinds, none of which knows the job's key.

A closed connection is replaced after a moment, so the requested number of connections stays open or is being opened.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
from collections import Counter
from collections.abc import Awaitable, Callable

from benchmarks.child import Answer, run, serve
from benchmarks.machine import take_open_files
from benchmarks.rendezvous import job
from understudy_protocol import pod, wire
from understudy_protocol.frames import Opcode, frame
from understudy_protocol.handshake import Call, HandshakeCaller, Role
from understudy_protocol.upgrade import request

PAUSE_S = 0.01
FLOOD = frame(Opcode.PING, b"", masked=True) * 40_000
NOISE = os.urandom(1 << 18)
HEAD, _ = request("x", pod.COORDINATOR_PORT, pod.MEMBERSHIP_PATH)
#: A recorded Hello of a member. Of all messages without the key it costs the sidecar most, because it is answered.
RECORDED = HandshakeCaller(job.KEY, Role.MEMBER, job.UID, Call("member", "")).hello
HELLO = frame(Opcode.TEXT, wire.encode(RECORDED).encode(), masked=True)


async def flood(sock: socket.socket) -> None:
    """Endless PINGs, as fast as the sidecar accepts them."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, HEAD)
    while True:
        await loop.sock_sendall(sock, FLOOD)


async def slow(sock: socket.socket) -> None:
    """A byte every 0.1 s."""
    for byte in HEAD[:-1]:
        await asyncio.get_running_loop().sock_sendall(sock, bytes([byte]))
        await asyncio.sleep(0.1)


async def silent(sock: socket.socket) -> None:
    """No bytes at all."""
    await _until_its_end(sock)


async def half_open(sock: socket.socket) -> None:
    """Half of a first message."""
    await asyncio.get_running_loop().sock_sendall(sock, HEAD + HELLO[: len(HELLO) // 2])
    await _until_its_end(sock)


async def never_reading(sock: socket.socket) -> None:
    """Send a recorded Hello and do not read its answer: a new connection for each."""
    await asyncio.get_running_loop().sock_sendall(sock, HEAD + HELLO)
    await asyncio.sleep(1.0)


async def noise(sock: socket.socket) -> None:
    """Random bytes, as fast as the sidecar accepts them."""
    while True:
        await asyncio.get_running_loop().sock_sendall(sock, NOISE)


async def _until_its_end(sock: socket.socket) -> None:
    while await asyncio.get_running_loop().sock_recv(sock, 4096):
        pass


KINDS: tuple[Callable[[socket.socket], Awaitable[None]], ...] = (flood, slow, silent, half_open, never_reading, noise)


class Callers:
    def __init__(self) -> None:
        self._opened = Counter[str]()
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self, host: str, sources: list[str], connections: int) -> Answer:
        """Open so many connections, from these addresses and of each kind in turns."""
        visits = zip(range(connections), itertools.cycle(KINDS), itertools.cycle(sources), strict=False)
        self._tasks = [asyncio.create_task(self._call(host, kind, source)) for _, kind, source in visits]
        return {}

    async def opened(self) -> Answer:
        """The number of connections so far, by kind."""
        return dict(self._opened)

    async def _call(self, host: str, kind: Callable[[socket.socket], Awaitable[None]], source: str) -> None:
        while True:
            with socket.socket() as sock, contextlib.suppress(OSError):
                sock.setblocking(False)
                sock.bind((source, 0))
                await asyncio.get_running_loop().sock_connect(sock, (host, pod.COORDINATOR_PORT))
                self._opened[kind.__name__] += 1
                await kind(sock)
            await asyncio.sleep(PAUSE_S)


async def _main() -> None:
    callers = Callers()
    await serve({"begin": callers.begin, "opened": callers.opened})


if __name__ == "__main__":
    take_open_files()
    run(_main())

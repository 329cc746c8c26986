"""A relay between a real member and a real coordinator: it sees each WebSocket frame, and knows no key."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from enum import Enum

from tests.unit.tcp_server import tcp_server
from understudy_protocol.frames import Frames, Opcode, frame
from understudy_sidecar.client import Address

Frame = tuple[int, bytes]


class To(Enum):
    """The direction of a frame: to the side that was called, or to the caller."""

    SIDECAR = "to the sidecar"
    CALLER = "to the caller"

    @property
    def back(self) -> To:
        return To.CALLER if self is To.SIDECAR else To.SIDECAR


class Relay:
    """seen: all frames. received: all bytes. pass_on: the frames to send instead of a frame; the frame itself by
    default.
    """

    def __init__(self, target: Address) -> None:
        self._target = target
        self.address = target
        self.seen: dict[To, list[Frame]] = {to: [] for to in To}
        self.received: dict[To, bytes] = dict.fromkeys(To, b"")
        self.pass_on: Callable[[To, Frame], list[Frame]] = lambda _, each: [each]
        self._writers: dict[To, asyncio.StreamWriter] = {}

    def send(self, to: To, opcode: int, payload: bytes) -> None:
        self._writers[to].write(frame(opcode, payload, masked=to is To.SIDECAR))

    def cut(self) -> None:
        """End both connections at once."""
        for writer in self._writers.values():
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            sidecar, to_sidecar = await asyncio.open_connection(*self._target[:2])
            self._writers = {To.SIDECAR: to_sidecar, To.CALLER: writer}
            await asyncio.gather(self._relay(To.SIDECAR, reader), self._relay(To.CALLER, sidecar))

    async def _relay(self, to: To, reader: asyncio.StreamReader) -> None:
        received = bytearray()
        frames = Frames(received, masked=to is To.SIDECAR, limit=1 << 24)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            self._forward(to, await reader.readuntil(b"\r\n\r\n"))
            while data := await reader.read(1 << 16):
                self.received[to] += data
                received += data
                while (taken := frames.take()) is not None:
                    if taken[0] == Opcode.TEXT:  # the Hello, or the Answer: all later messages are binary
                        frames.message = Opcode.BINARY
                    self.seen[to].append(taken)
                    for opcode, payload in self.pass_on(to, taken):
                        self.send(to, opcode, payload)
        self._writers[to].close()

    def _forward(self, to: To, head: bytes) -> None:
        self.received[to] += head
        self._writers[to].write(head)


@asynccontextmanager
async def relayed(target: Address, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[Relay]:
    relay = Relay(target)
    async with tcp_server(relay.serve, host, port) as address:
        relay.address = Address(*address)
        yield relay

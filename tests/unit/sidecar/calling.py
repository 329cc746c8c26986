"""A real client with a record of its callbacks, and servers for it that are no sidecars."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from tests.unit.sidecar.recording_handler import JOB, KEY, KNOWN, MEMBER_POD, ServedSidecar, join
from understudy_protocol import wire
from understudy_protocol.pod import MEMBERSHIP_PATH
from understudy_sidecar.client import Address, CoordinatorClient


class Calls:
    """A client, and the callbacks that it made."""

    def __init__(self, key: bytes = KEY) -> None:
        self.ups: list[str] = []
        self.downs = self.unreachable = 0
        self.messages: list[object] = []
        self.sockets: list[int | None] = []
        self.client = CoordinatorClient(
            key, JOB, MEMBER_POD, self._up, self.messages.append, self._down, self.sockets.append, self._unreachable
        )

    def _up(self, host: str) -> None:
        self.ups.append(host)
        self.client.send(wire.decode(join(), KNOWN))

    def _down(self, _silent: bool) -> None:
        self.downs += 1

    def _unreachable(self) -> None:
        self.unreachable += 1


@asynccontextmanager
async def dialing(*addresses: Address, key: bytes = KEY) -> AsyncIterator[Calls]:
    calls = Calls(key)
    calls.client.dial(addresses)
    yield calls
    calls.client.hangup()
    calls.client.hangup()
    await asyncio.sleep(0.01)


def at(served: ServedSidecar) -> Address:
    return Address(served.host, served.port)


def refusing() -> Address:
    """A port on which no process listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return Address(*listener.getsockname())


async def at_once(_request: web.Request) -> None:
    pass


@asynccontextmanager
async def answering(
    talk: Callable[[web.WebSocketResponse], Awaitable[None]], before: Callable[[web.Request], Awaitable[None]] = at_once
) -> AsyncIterator[Address]:
    """A WebSocket server of aiohttp."""

    async def serve(request: web.Request) -> web.WebSocketResponse:
        await before(request)
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
        yield Address(*runner.addresses[0])
    finally:
        await runner.cleanup()

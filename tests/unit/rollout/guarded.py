"""A gateway in front of a server whose answers are its version: real HTTP; either of them can be restarted."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from understudy_rollout.gateway import Gateway
from understudy_rollout.gateway.app import WEIGHTS, GatewayApp
from understudy_rollout.gateway.connections import OPTIONS
from understudy_rollout.gateway.flights import InFlightRequests, Policy
from understudy_rollout.gateway.listener import address_of, listener_at
from understudy_rollout.gateway.proxy import Proxy
from understudy_rollout.gateway.weights_file import open_weights_file
from understudy_rollout.weights import Fence

NO_FENCE = (0, 0, 0)

TOKEN = "secret"


@dataclass
class Server:
    """An inference server whose answers are its version, one token each time that the test lets it continue."""

    version: str = "v0"
    tokens: int = 1
    go_on: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    waits: bool = False
    running: int = 0
    broke_off: int = 0
    controls: list[tuple[str, Any]] = field(default_factory=list)  # calls of trainers, with their bodies
    seen: list[tuple[str | None, str, str | None]] = field(default_factory=list)  # their headers and query
    runner: web.AppRunner | None = None
    port: int = 0

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.running += 1
        try:
            if not body.get("stream"):
                await self._token()
                return web.json_response({"text": self.version})
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            for _ in range(self.tokens):
                await response.write(self.version.encode() + b" ")
                await self._token()
            return response
        except asyncio.CancelledError:
            self.broke_off += 1
            raise
        finally:
            self.running -= 1

    async def _token(self) -> None:
        if self.waits:
            await self.go_on.acquire()

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post("/generate", self.generate)
        app.router.add_post("/update_weights", self.generate)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/control/{call}", self._control)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        self.runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.01)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", self.port).start()
        self.port = self.runner.addresses[0][1]

    async def stop(self) -> None:
        if self.runner is not None:
            await self.runner.cleanup()
            self.runner = None

    async def restart(self, version: str) -> None:
        """At once: a check each second does not notice that it was down."""
        await self.stop()
        self.version = version
        await self.start()

    async def _control(self, request: web.Request) -> web.Response:
        """A trainer's call. Receiving a bucket takes the time of a token."""
        call = request.match_info["call"]
        self.controls.append((call, json.loads(await request.read() or b"null")))
        headers = request.headers
        self.seen.append((headers.get("Authorization"), request.query_string, headers.get("Proxy-Authorization")))
        if call == "refuse":
            return web.Response(status=409, text="occupied")
        if call == "break-off":
            assert request.transport is not None
            request.transport.abort()
        if call == "receive":
            self.running += 1
            try:
                await self._token()
            finally:
                self.running -= 1
        return web.Response()

    async def _tokenize(self, request: web.Request) -> web.Response:
        """The request as received: the client's Content-Length, the transfer encoding, and the number of bytes."""
        headers, body = request.headers, await request.read()
        return web.Response(
            text=f"{headers.get('Content-Length')} {headers.get('Transfer-Encoding')} {len(body)}",
            headers={"X-Body-Ends-With": body[-4:].decode("latin-1")},
        )

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        """The first 1,000 of 100,000 bytes. Then the server breaks off."""
        response = web.StreamResponse(headers={"Content-Length": "100000"})
        await response.prepare(request)
        await response.write(b"x" * 1000)
        assert request.transport is not None
        request.transport.abort()
        return response

    async def _health(self, request: web.Request) -> web.Response:
        """Like SGLang's: it generates a token."""
        self.running += 1
        try:
            await self._token()
        finally:
            self.running -= 1
        return web.Response(text="well")


@dataclass
class Guarded:
    server: Server
    client: aiohttp.ClientSession
    file: Path
    initial_version: str = ""
    policy: Policy = Policy.ABORT
    most_connections: int = 2048
    runner: web.AppRunner | None = None
    port: int = 0
    url: str = ""

    def __post_init__(self) -> None:
        self.admission = Gateway("http://127.0.0.1:1", TOKEN)

    async def start(self) -> None:
        engine = f"http://127.0.0.1:{self.server.port}"
        keeper = open_weights_file(self.file, listener_at(address_of(engine)), self.initial_version)
        self.app = GatewayApp(
            InFlightRequests(keeper, self.policy), Proxy(engine), TOKEN, (), 1 << 20, self.most_connections
        )
        self.runner = web.AppRunner(self.app.application(), shutdown_timeout=0.01, **OPTIONS)
        await self.runner.setup()
        assert self.runner.server is not None
        self.port = self.app.connections.listen(self.runner.server, "127.0.0.1", self.port)
        self.url = f"http://127.0.0.1:{self.port}"
        self.admission = Gateway(self.url, TOKEN)

    async def stop(self) -> None:
        """As if killed: only the stored state survives."""
        if self.runner is not None:
            self.app.connections.close()
            await self.runner.cleanup()
            self.runner = None

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    def ask(self, *, stream: bool = False) -> asyncio.Task[aiohttp.ClientResponse]:
        async def post() -> aiohttp.ClientResponse:
            response = await self.client.post(self.url + "/generate", json={"prompt": "x", "stream": stream})
            if not stream:
                await response.read()
            return response

        return asyncio.ensure_future(post())

    def probe(self) -> asyncio.Task[tuple[int, str]]:
        async def get() -> tuple[int, str]:
            async with self.client.get(self.url + "/health") as response:
                return response.status, await response.text()

        return asyncio.ensure_future(get())

    async def state(self) -> dict[str, object]:
        async with self.client.get(self.url + WEIGHTS) as response:
            fields: dict[str, object] = await response.json()
            return fields

    async def close(self, update: str = "u", version: str = "v1", fence: Fence = NO_FENCE) -> None:
        await self.admission.close(update, version, fence)


@asynccontextmanager
async def guarded(
    version: str = "v0", policy: Policy = Policy.ABORT, most_connections: int = 2048
) -> AsyncIterator[Guarded]:
    server = Server()
    await server.start()
    with tempfile.TemporaryDirectory() as folder:
        async with aiohttp.ClientSession() as client:
            site = Guarded(server, client, Path(folder) / "weights.json", version, policy, most_connections)
            await site.start()
            try:
                yield site
            finally:
                await site.stop()
                await server.stop()


async def until(fulfilled: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if fulfilled():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came true")

"""Servers that speak the protocols of engines, each in front of a model of an engine: real HTTP, scripted faults.

Like the real ones, a server handles one request after the other, each to its end, even if its client has gone. An error
fault is answered with a status, a reset or a kill ends the connections, and a killed server no longer listens.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from tests.unit.rollout.model import ModelEngine
from understudy_rollout import Group, Tensor

Do = Callable[[Any, Any], Awaitable[Any]]
#: The listening servers, by port.
LISTENING: dict[int, EngineServer] = {}


def listener_at(address: tuple[str, int]) -> str:
    """Replaces understudy_rollout.gateway.listener for these servers, because reading the kernel's tables takes
    milliseconds.
    """
    server = LISTENING.get(address[1])
    return "" if server is None else f"server-{id(server)}"


class EngineServer:
    """One engine behind a port that the kernel chooses."""

    def __init__(self, engine: ModelEngine) -> None:
        self.engine, self.world = engine, engine.world
        self.url = ""
        self.asked: list[str] = []  # method and path of each request
        self._one_at_a_time = asyncio.Lock()
        self._runner: web.AppRunner | None = None
        self._connections: set[asyncio.Transport] = set()
        self._given_up: set[asyncio.Transport] = set()

    async def start(self) -> None:
        app = web.Application(middlewares=[self._not_found])
        app.add_routes([web.route(method, path, self._answer(do)) for (method, path), do in self.routes().items()])
        self._runner = web.AppRunner(app, shutdown_timeout=0.01)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self._port}"
        LISTENING[self._port] = self

    async def stop(self) -> None:
        if self._runner is not None:
            runner, self._runner = self._runner, None
            LISTENING.pop(self._port, None)
            await runner.cleanup()

    async def until_idle(self) -> None:
        """Wait until all requests are finished, also those without a client."""
        async with self._one_at_a_time:
            pass

    def routes(self) -> dict[tuple[str, str], Do]:
        """The effect of each request, from the query and the JSON body. It returns the answer, its body, or None.

        A Refusal has its own answer, any other Exception is answered by `failed`; a ServerDies ends the server.
        """
        raise NotImplementedError

    def failed(self, path: str, error: Exception) -> web.Response:
        """The answer after an exception."""
        raise NotImplementedError

    def not_found(self) -> web.Response:
        raise NotImplementedError

    def check(self) -> None:
        """The server's invariants between updates, in addition to its engine's."""

    def _answer(self, do: Do) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(request: web.Request) -> web.Response:
            self.asked.append(f"{request.method} {request.path}")
            body = json.loads(await request.read() or b"null")
            transport = request.transport
            assert isinstance(transport, asyncio.Transport)
            self._connections.add(transport)
            if transport in self._given_up:
                _reset(transport)
                return web.Response()
            giving_up = asyncio.ensure_future(self._go_on_without(transport))
            try:
                async with self._one_at_a_time:
                    answer = await do(request.query, body)
            except Refusal as refusal:
                return refusal.response
            except ConnectionError:
                _reset(transport)
                if not self.engine.alive:
                    await self._die()
                return web.Response()
            except ServerDies:
                self.engine.alive = False
                await self._die()
                return web.Response()
            except Exception as error:  # noqa: BLE001 (a server answers every error)
                failed = self.failed(request.path, error)
                if failed.status >= 500:  # uvicorn answers, and then closes the connection without notice
                    self._given_up.add(transport)
                return failed
            finally:
                giving_up.cancel()
            if isinstance(answer, web.Response):
                return answer
            return web.Response() if answer is None else web.json_response(answer)

        return answer

    @web.middleware
    async def _not_found(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPNotFound:
            return self.not_found()

    async def _go_on_without(self, transport: asyncio.Transport) -> None:
        """Hanging calls continue once the client has given up."""
        while not transport.is_closing():  # noqa: ASYNC110 (aiohttp has no event for it)
            await asyncio.sleep(0.005)
        self.world.hangs.set()

    async def _die(self) -> None:
        assert self._runner is not None
        LISTENING.pop(self._port, None)
        for site in list(self._runner.sites):
            await site.stop()
        for transport in self._connections:
            _reset(transport)


class Refusal(Exception):
    """The server rejects the request and continues."""

    def __init__(self, status: int, answer: Any) -> None:
        super().__init__(str(answer))
        self.response = web.json_response(answer, status=status) if answer is not None else web.Response(status=status)


class ServerDies(Exception):
    """A fault that a real server does not survive."""


def group_of(info: dict[str, Any], name: str, backend: str) -> Group:
    return Group(info["master_address"], info["master_port"], info["world_size"], name, backend)


def tensors_of(names: list[str], dtypes: list[str], shapes: list[list[int]]) -> list[Tensor]:
    return [Tensor(*of) for of in zip(names, dtypes, map(tuple, shapes), strict=True)]


def _reset(transport: asyncio.Transport) -> None:
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()

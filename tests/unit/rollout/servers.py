"""Servers that speak SGLang's and vLLM's protocols, each in front of a model of an engine: real HTTP, scripted faults.

As theirs do, a server does one thing after the other, and to its end, whether anybody still waits for it or not. A
fault that is an error is answered with a status, a reset or a kill ends the connections; one that is killed listens no
more.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from tests.unit.rollout.model import Broken, ModelEngine
from understudy_rollout import Group, Tensor


class EngineServer:
    """One engine behind a port of the kernel's choice."""

    def __init__(self, engine: ModelEngine) -> None:
        self.engine, self.world = engine, engine.world
        self.url = ""
        self._one_at_a_time = asyncio.Lock()
        self._runner: web.AppRunner | None = None
        self._connections: set[asyncio.Transport] = set()

    async def start(self) -> None:
        app = web.Application()
        app.add_routes([web.route(method, path, self._answer(do)) for (method, path), do in self.routes().items()])
        self._runner = web.AppRunner(app, shutdown_timeout=0.01)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    def routes(self) -> dict[tuple[str, str], Callable[[Any, Any], Awaitable[None]]]:
        """What each request does: given the query and the JSON body. A ServerDies ends the server."""
        raise NotImplementedError

    def _answer(self, do: Callable[[Any, Any], Awaitable[None]]) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(request: web.Request) -> web.Response:
            body = json.loads(await request.read() or b"{}")
            transport = request.transport
            assert isinstance(transport, asyncio.Transport)
            self._connections.add(transport)
            giving_up = asyncio.ensure_future(self._go_on_without(transport))
            try:
                async with self._one_at_a_time:
                    await do(request.query, body)
            except Refusal as refusal:
                return web.json_response({"success": False, "message": str(refusal)}, status=400)
            except ConnectionError:
                _reset(transport)
                if not self.engine.alive:
                    await self._die()
                return web.Response()
            except ServerDies:
                self.engine.alive = False
                await self._die()
                return web.Response()
            except Exception as error:  # noqa: BLE001 (a server answers whatever it meets)
                return web.json_response({"error": {"message": str(error)}}, status=500)
            finally:
                giving_up.cancel()
            return web.json_response({"success": True, "message": "ok"})

        return answer

    async def _go_on_without(self, transport: asyncio.Transport) -> None:
        """What hangs goes on when the one who waits has given up."""
        while not transport.is_closing():  # noqa: ASYNC110 (aiohttp tells nobody)
            await asyncio.sleep(0.005)
        self.world.hangs.set()

    async def _die(self) -> None:
        assert self._runner is not None
        for site in list(self._runner.sites):
            await site.stop()
        for transport in self._connections:
            _reset(transport)


class Refusal(Exception):
    """The server says no, and goes on."""


class ServerDies(Exception):
    """What a real server does not survive."""


def _reset(transport: asyncio.Transport) -> None:
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


class SglangServer(EngineServer):
    def routes(self) -> dict[tuple[str, str], Callable[[Any, Any], Awaitable[None]]]:
        return {
            ("POST", "/pause_generation"): self._pause,
            ("POST", "/release_memory_occupation"): self._release,
            ("POST", "/resume_memory_occupation"): self._resume,
            ("POST", "/init_weights_update_group"): self._init,
            ("POST", "/update_weights_from_distributed"): self._update,
            ("POST", "/update_weights_from_disk"): self._disk,
            ("POST", "/update_weight_version"): self._version,
            ("POST", "/destroy_weights_update_group"): self._destroy,
            ("POST", "/flush_cache"): self._flush,
            ("POST", "/continue_generation"): self._resume_generation,
            ("GET", "/health_generate"): self._generate,
            ("GET", "/health"): self._health,
        }

    async def _pause(self, query: Any, body: Any) -> None:
        assert body == {"mode": "abort"}
        await self.engine.stop_generation()

    async def _release(self, query: Any, body: Any) -> None:
        assert body == {"tags": ["kv_cache"]}
        if self.engine.generating:
            raise ServerDies("memory is released only where nothing runs")
        await self._wholly_or_not(self.engine.release_kv)

    async def _resume(self, query: Any, body: Any) -> None:
        assert body == {"tags": ["kv_cache"]}
        if self.engine.kv:
            raise ServerDies("KeyError: 'kv_cache'")
        await self._wholly_or_not(self.engine.resume_kv)

    async def _wholly_or_not(self, change: Callable[[], Awaitable[None]]) -> None:
        """Its scheduler does not survive an error of its own, so what it answers with one has not happened."""
        before = self.engine.kv
        try:
            await change()
        except Broken:
            self.engine.kv = before
            raise

    async def _init(self, query: Any, body: Any) -> None:
        rank = body.pop("rank_offset")
        await self.engine.join_group(_group(body, body["group_name"], body["backend"]), rank)

    async def _update(self, query: Any, body: Any) -> None:
        group = _joined(self.engine, body["group_name"])
        assert body["flush_cache"] is False
        await self.engine.receive(group, _tensors(body["names"], body["dtypes"], body["shapes"]))

    async def _disk(self, query: Any, body: Any) -> None:
        await self.engine.load(body["model_path"])

    async def _version(self, query: Any, body: Any) -> None:
        await self.engine.finish(body["new_version"])

    async def _destroy(self, query: Any, body: Any) -> None:
        if self.engine.group is None or self.engine.group.name != body["group_name"]:
            raise Refusal("The group to be destroyed does not exist.")
        await self.engine.leave_group(self.engine.group)

    async def _flush(self, query: Any, body: Any) -> None:
        await self.engine.flush_cache()

    async def _resume_generation(self, query: Any, body: Any) -> None:
        if not self.engine.kv:
            self.engine.generating = True  # it does not look
            return
        await self.engine.resume_generation()

    async def _generate(self, query: Any, body: Any) -> None:
        if not (self.engine.kv and self.engine.generating):
            raise Refusal("it cannot generate")

    async def _health(self, query: Any, body: Any) -> None: ...


class VllmServer(EngineServer):
    def __init__(self, engine: ModelEngine) -> None:
        super().__init__(engine)
        self.weights_sleep = False
        self.active = False

    def routes(self) -> dict[tuple[str, str], Callable[[Any, Any], Awaitable[None]]]:
        return {
            ("POST", "/pause"): self._pause,
            ("POST", "/sleep"): self._sleep,
            ("POST", "/wake_up"): self._wake_up,
            ("POST", "/init_weight_transfer_engine"): self._init,
            ("POST", "/start_weight_update"): self._start,
            ("POST", "/update_weights"): self._update,
            ("POST", "/finish_weight_update"): self._finish,
            ("POST", "/update_weight_version"): self._version,
            ("POST", "/collective_rpc"): self._rpc,
            ("POST", "/reset_prefix_cache"): self._flush,
            ("POST", "/resume"): self._resume,
            ("GET", "/health"): self._health,
        }

    async def _pause(self, query: Any, body: Any) -> None:
        assert query["mode"] == "abort"
        await self.engine.stop_generation()

    async def _sleep(self, query: Any, body: Any) -> None:
        assert query["level"] == "1"
        self.weights_sleep = True
        await self.engine.release_kv()

    async def _wake_up(self, query: Any, body: Any) -> None:
        tags = query.getall("tags", ["weights", "kv_cache"])
        if "weights" in tags:
            self.weights_sleep = False
        if "kv_cache" in tags:
            await self.engine.resume_kv()

    async def _init(self, query: Any, body: Any) -> None:
        info = body["init_info"]
        rank = info.pop("rank_offset")
        # It has no name for a group: where it meets is its name.
        await self.engine.join_group(_group(info, f"update-{int(info['master_port']) - 29500}", "gloo"), rank)

    async def _start(self, query: Any, body: Any) -> None:
        if self.active:
            raise RuntimeError("start_weight_update called while a weight update is already active")
        self.active = True

    async def _update(self, query: Any, body: Any) -> None:
        if self.weights_sleep:
            raise ServerDies("segmentation fault")
        if not self.active:
            raise RuntimeError("start_weight_update must be called before update_weights")
        assert self.engine.group is not None
        info = body["update_info"]
        await self.engine.receive(self.engine.group, _tensors(info["names"], info["dtype_names"], info["shapes"]))

    async def _finish(self, query: Any, body: Any) -> None:
        if not self.active:
            raise RuntimeError("no weight update is active")
        if "weight_version" in body:
            await self.engine.finish(body["weight_version"])
        self.active = False

    async def _version(self, query: Any, body: Any) -> None:
        await self.engine.finish(body["new_version"])

    async def _rpc(self, query: Any, body: Any) -> None:
        assert body["method"] == "reload_weights"
        await self.engine.load(body["kwargs"]["weights_path"])

    async def _flush(self, query: Any, body: Any) -> None:
        await self.engine.flush_cache()

    async def _resume(self, query: Any, body: Any) -> None:
        await self.engine.resume_generation()

    async def _health(self, query: Any, body: Any) -> None: ...


def _group(info: dict[str, Any], name: str, backend: str) -> Group:
    return Group(info["master_address"], info["master_port"], info["world_size"], name, backend)


def _joined(engine: ModelEngine, name: str) -> Group:
    if engine.group is None or engine.group.name != name:
        raise Refusal(f"Group {name} not in []. Please call `init_weights_update_group` first.")
    return engine.group


def _tensors(names: list[str], dtypes: list[str], shapes: list[list[int]]) -> list[Tensor]:
    return [Tensor(*of) for of in zip(names, dtypes, map(tuple, shapes), strict=True)]

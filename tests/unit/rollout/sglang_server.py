"""A server that answers like SGLang 0.5.23: the routes, status codes and bodies of its `http_server.py`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from tests.unit.rollout.model import Broken, ModelEngine
from tests.unit.rollout.servers import Do, EngineServer, Refusal, ServerDies, group_of, tensors_of
from understudy_rollout import Group

OUTSIDE = "update_weights_from_distributed must run between begin_weight_update() and end_weight_update()"
FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. "
    "(When there are running or waiting requests, the operation will not be performed.)\n"
)
OK = {"success": True, "message": "Success"}


class SglangServer(EngineServer):
    has_sessions = True  # since 0.5.23; older versions lack these routes

    def __init__(self, engine: ModelEngine) -> None:
        super().__init__(engine)
        self.session = False
        self.idle = False  # its scheduler, which notices the end of a request later than the client
        self.refuses_flushes = 0  # how many of the next flushes
        self.weights_sleep = False  # another program has released them

    def routes(self) -> dict[tuple[str, str], Do]:
        sessions: dict[tuple[str, str], Do] = {
            ("POST", "/begin_weight_update"): self._begin,
            ("POST", "/end_weight_update"): self._end,
        }
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
            ("GET", "/health"): self._generate,
            **(sessions if self.has_sessions else {}),
        }

    def failed(self, path: str, error: Exception) -> web.Response:
        if path in ("/release_memory_occupation", "/resume_memory_occupation"):
            return web.json_response({"error": {"message": str(error)}}, status=400)
        if path == "/flush_cache":
            return web.Response(text="Flush cache failed.\n", status=400)
        if path in ("/pause_generation", "/continue_generation"):
            return web.Response(text="Internal Server Error", status=500)
        return web.json_response({"success": False, "message": f"Failed: {error}"}, status=400)

    def not_found(self) -> web.Response:
        return web.json_response({"detail": "Not Found"}, status=404)

    def check(self) -> None:
        assert not self.session, "no session keeps the next update out"

    async def _pause(self, query: Any, body: Any) -> Any:
        assert body == {"mode": "abort"}
        await self.engine.stop_generation()
        return {"message": "Generation paused successfully.", "status": "ok"}

    async def _release(self, query: Any, body: Any) -> Any:
        assert body == {"tags": ["kv_cache"]}
        if self.engine.generating:
            raise ServerDies("memory is released only where nothing runs")
        if not self.idle:
            raise ServerDies("release_memory_occupation should be called only when server is idle.")
        if not self.engine.kv:
            raise ServerDies("memory is released only once")
        await self._wholly_or_not(self.engine.release_kv)
        return web.json_response(None)

    async def _resume(self, query: Any, body: Any) -> Any:
        assert body == {"tags": ["kv_cache"]}
        if self.engine.kv:
            raise ServerDies("KeyError: 'kv_cache'")
        await self._wholly_or_not(self.engine.resume_kv)
        return web.json_response(None)

    async def _wholly_or_not(self, change: Callable[[], Awaitable[None]]) -> None:
        """Its scheduler does not survive an error of its own, so a request with an error answer had no effect."""
        before = self.engine.kv
        try:
            await change()
        except Broken:
            self.engine.kv = before
            raise

    async def _init(self, query: Any, body: Any) -> Any:
        rank = body.pop("rank_offset")
        await self.engine.join_group(group_of(body, body["group_name"], body["backend"]), rank)
        return {"success": True, "message": "Succeeded to initialize custom process group."}

    async def _begin(self, query: Any, body: Any) -> Any:
        assert body == {}
        if self.session:
            raise _no("a weight-update session is already open; call end_weight_update() first")
        self.session = True
        return OK

    async def _end(self, query: Any, body: Any) -> Any:
        assert body == {}
        if not self.session:
            raise _no("no weight-update session is open; call begin_weight_update() first")
        self.session = False
        return OK

    async def _update(self, query: Any, body: Any) -> Any:
        assert body["flush_cache"] is False
        if self.has_sessions and not self.session:
            raise _no(OUTSIDE)
        self._touches_weights()
        group = self._joined(body["group_name"])
        await self.engine.receive(group, tensors_of(body["names"], body["dtypes"], body["shapes"]))
        return {"success": True, "message": "Succeeded to update parameter online."}

    async def _disk(self, query: Any, body: Any) -> Any:
        assert body["flush_cache"] is False
        self._touches_weights()
        await self.engine.load(body["model_path"])
        return {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}

    async def _version(self, query: Any, body: Any) -> Any:
        assert body["abort_all_requests"] is False
        version = body["new_version"]
        await self.engine.finish(version)
        return {"success": True, "message": f"Weight version updated to {version}", "new_version": version}

    async def _destroy(self, query: Any, body: Any) -> Any:
        if self.engine.group is None or self.engine.group.name != body["group_name"]:
            raise _no("The group to be destroyed does not exist.")
        await self.engine.leave_group(self.engine.group)
        return {"success": True, "message": "Succeeded to destroy custom process group."}

    async def _flush(self, query: Any, body: Any) -> Any:
        if self.refuses_flushes:
            self.refuses_flushes -= 1
            raise Broken
        if "timeout" in query:  # wait for idleness
            self.idle = True
            self.engine.prefixes_of.clear()
        else:
            await self.engine.flush_cache()
        return web.Response(text=FLUSHED)

    async def _resume_generation(self, query: Any, body: Any) -> Any:
        self.idle = False
        if self.engine.kv:
            await self.engine.resume_generation()
        else:
            self.engine.generating = True  # without a check
        return {"message": "Generation continued successfully.", "status": "ok"}

    async def _generate(self, query: Any, body: Any) -> None:
        if not (self.engine.kv and self.engine.generating) or self.weights_sleep:
            raise Refusal(503, None)

    def _touches_weights(self) -> None:
        if self.weights_sleep:
            raise ServerDies("CUDA error: an illegal memory access was encountered")

    def _joined(self, name: str) -> Group:
        if self.engine.group is None or self.engine.group.name != name:
            raise _no(
                f"Failed to receive weights: Group {name} not in []. Please call `init_weights_update_group` first."
            )
        return self.engine.group


class OlderSglangServer(SglangServer):
    has_sessions = False


def _no(message: str) -> Refusal:
    return Refusal(400, {"success": False, "message": message})

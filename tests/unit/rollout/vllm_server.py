"""A server that answers like vLLM 0.32.0 in its development mode: routes, status codes, bodies, and its traps.

Layers receive tensors one by one (`model_loader/reload/layerwise.py`) from an update's start to its end: `waiting`. If
an update stops inside a layer (`partial`), the next tensors count as the rest of that layer, so the last of them are
dropped.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from tests.unit.rollout.model import ModelEngine
from tests.unit.rollout.servers import Do, EngineServer, Refusal, ServerDies, group_of, tensors_of

NOT_CONFIGURED = (
    "Weight transfer not configured. Please set weight_transfer_config to enable weight transfer."  # its own text
)
DROPPED = "of an update that broke off"


class VllmServer(EngineServer):
    configured = True  # --weight-transfer-config

    def __init__(self, engine: ModelEngine) -> None:
        super().__init__(engine)
        self.active = False  # an update was started
        self.waiting = self.partial = False
        self.spoilt = False  # the next tensors meet layers with a part of another update
        self.holds_blocks = False  # requests run, or their blocks are moved
        self.weights_sleep = False  # --enable-sleep-mode, and another program has sent /sleep

    def routes(self) -> dict[tuple[str, str], Do]:
        return {
            ("POST", "/pause"): self._pause,
            ("POST", "/resume"): self._resume,
            ("POST", "/release_kv_cache_memory"): self._release,
            ("GET", "/is_sleeping"): self._is_sleeping,
            ("POST", "/wake_up"): self._wake_up,
            ("POST", "/init_weight_transfer_engine"): self._init,
            ("POST", "/shutdown_weight_transfer_engine"): self._shutdown,
            ("POST", "/start_weight_update"): self._start,
            ("POST", "/update_weights"): self._update,
            ("POST", "/finish_weight_update"): self._finish,
            ("POST", "/update_weight_version"): self._version,
            ("POST", "/collective_rpc"): self._rpc,
            ("POST", "/reset_prefix_cache"): self._flush,
            ("POST", "/reset_encoder_cache"): self._flush_encoder,
            ("GET", "/health"): self._health,
        }

    def failed(self, path: str, error: Exception) -> web.Response:
        if path in ("/pause", "/resume"):
            return web.json_response({"error": f"Failed to {path[1:]} generation: {error}"}, status=500)
        status, kind = (400, "BadRequestError") if isinstance(error, ValueError) else (500, "InternalServerError")
        return _error(status, kind, str(error))

    def not_found(self) -> web.Response:
        return web.json_response({"detail": "Not Found"}, status=404)

    def check(self) -> None:
        assert not self.active, "no update keeps the next one out"
        assert not (self.waiting and self.configured), "no layer waits for tensors: a request would end the engine"

    async def _pause(self, query: Any, body: Any) -> Any:
        assert dict(query) == {"mode": "abort"}
        await self.engine.stop_generation()
        return {"status": "paused"}

    async def _resume(self, query: Any, body: Any) -> Any:
        await self.engine.resume_generation()
        return {"status": "resumed"}

    async def _release(self, query: Any, body: Any) -> Any:
        if self.engine.generating:
            raise RuntimeError("release_kv_cache_memory() requires a completed pause first")
        if not self.engine.kv or self.weights_sleep:
            raise RuntimeError("release_kv_cache_memory() requires all executor memory to be resident")
        await self.engine.release_kv()
        return {"status": "kv_cache_released"}

    async def _is_sleeping(self, query: Any, body: Any) -> Any:
        """Also true while paused, although no memory sleeps then."""
        return {"is_sleeping": not self.engine.generating or not self.engine.kv or self.weights_sleep}

    async def _wake_up(self, query: Any, body: Any) -> Any:
        assert dict(query) == {}
        self.weights_sleep = False
        await self.engine.resume_kv()
        self.engine.generating = True  # as soon as all memory is back
        return {"status": "awake", "tags": None}

    async def _init(self, query: Any, body: Any) -> Any:
        self._needs_configuration()
        info = body["init_info"]
        rank = info.pop("rank_offset")
        # vLLM has no name for a group: its port identifies it.
        await self.engine.join_group(group_of(info, f"update-{int(info['master_port']) - 29500}", "gloo"), rank)
        return {"message": "Weight transfer initialized"}

    async def _shutdown(self, query: Any, body: Any) -> Any:
        if self.active:
            raise RuntimeError("Cannot release a trainer connection during a weight update")
        if self.engine.group is not None:
            await self.engine.leave_group(self.engine.group)
        return {"message": "Weight transfer shut down"}

    async def _start(self, query: Any, body: Any) -> Any:
        self._needs_configuration()
        if self.active:
            raise RuntimeError(
                "start_weight_update called while a weight update is already active. Call finish_weight_update first."
            )
        self.active, self.waiting, self.spoilt = True, True, self.partial
        return {"message": "Weight update started"}

    async def _update(self, query: Any, body: Any) -> Any:
        self._needs_configuration()
        if not self.active:
            raise RuntimeError("start_weight_update must be called before update_weights.")
        self._touches_weights()
        info = body["update_info"]
        tensors = tensors_of(info["names"], info["dtype_names"], info["shapes"])
        try:
            if self.engine.group is None:
                raise RuntimeError("NCCL weight transfer not initialized. Call init_transfer_engine() first.")
            self.partial = True
            await self.engine.receive(self.engine.group, tensors)
        except ConnectionError:
            raise  # only for this request: the server continues
        except Exception:
            self.active = False
            raise
        if self.spoilt:
            self.engine.holds[tensors[-1].name] = DROPPED
        return {"message": "Weights updated"}

    async def _finish(self, query: Any, body: Any) -> Any:
        self._needs_configuration()
        if not self.active:
            raise RuntimeError("finish_weight_update called without a matching start_weight_update.")
        if body is not None:
            await self.engine.finish(body["weight_version"])
        self.active = self.waiting = self.partial = self.spoilt = False
        return {"message": "Weight update finished"}

    async def _version(self, query: Any, body: Any) -> Any:
        await self.engine.finish(body["new_version"])
        return {"success": True, "new_version": body["new_version"]}

    async def _rpc(self, query: Any, body: Any) -> Any:
        assert body["method"] == "reload_weights"
        self._touches_weights()
        spoilt, self.waiting, self.partial = self.partial, True, True
        await self.engine.load(body["kwargs"]["weights_path"])
        self.waiting = self.partial = False
        if spoilt:
            self.engine.holds["b"] = DROPPED
        return {"results": [None]}

    async def _flush(self, query: Any, body: Any) -> Any:
        assert dict(query) == {"reset_external": "true"}
        if self.holds_blocks:
            return {"success": False}
        await self.engine.flush_cache()
        return {"success": True}

    async def _flush_encoder(self, query: Any, body: Any) -> None: ...

    async def _health(self, query: Any, body: Any) -> None:
        if not self.engine.alive:
            raise Refusal(503, None)

    async def generate(self) -> None:
        """A request: raises the error that it would cause."""
        if self.waiting or not self.engine.kv:
            raise ServerDies("CUDA error: an illegal memory access was encountered")

    def _touches_weights(self) -> None:
        if self.weights_sleep:
            raise ServerDies("CUDA error: an illegal memory access was encountered")

    def _needs_configuration(self) -> None:
        if not self.configured:
            raise RuntimeError(NOT_CONFIGURED)


class PlainVllmServer(VllmServer):
    """Without --weight-transfer-config: weights come only from folders."""

    configured = False


def _error(status: int, kind: str, message: str) -> web.Response:
    error = {"message": message, "type": kind, "param": None, "code": status}
    return web.json_response({"error": error}, status=status)

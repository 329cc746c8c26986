"""vLLM's HTTP server. Read: vLLM 0.32.0, `entrypoints/rl/online`, `entrypoints/serve/dev` and what these call.

It needs `VLLM_SERVER_DEV_MODE=1`, `--weight-transfer-config '{"backend": "nccl"}'`, and for the KV cache's memory to be
given back `--enable-sleep-mode`. The weights stay where they are.

Traps, each of which the adapter goes around:
- A server does not survive that memory is touched which sleeps: after /sleep, or an update that could not resume its KV
  cache. So it is asked, and woken up, before it is paused.
- Waking up resumes generation as soon as all memory is there. It is paused again: that is a step of its own.
- Layers take their tensors one by one. An update that breaks off leaves layers that wait for the rest: a request then
  ends the engine, and the next update's tensors are taken for that rest, so that its last ones are dropped. What puts
  such layers in order is the end of an update, also of one that brings nothing. A chunk that failed has ended its
  update without that. So what may be left is ended before anything else is brought, and before generation resumes.
- Where no weight transfer is configured there is no such update. Then weights that may meet what a load has left are
  loaded twice: the end of the first load puts all layers in order.
- The prefix cache that could not be reset is told in an answer of status 200.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

from understudy_rollout.engine import Tensor
from understudy_rollout.engines.http import CallAdmission, EngineServer, Refused, bearer
from understudy_rollout.failures import EngineRefused
from understudy_rollout.weights import Group

DURING_AN_UPDATE = "during a weight update"
log = logging.getLogger(__name__)


class VllmEngine:
    def __init__(
        self, at: Union[str, CallAdmission], *, api_key: str = "", init_info: Optional[Mapping[str, Any]] = None
    ) -> None:
        """at: http://host:port or a Gateway. init_info: what the transfer's backend takes too ({"packed": True})."""
        self.server = EngineServer(at, bearer(api_key))
        self._init_info = dict(init_info or {})
        self._paused = False  # it was to pause, and was not resumed since
        self._open = False  # an update was started there, and has not been told to be finished
        self._is_usable = False  # surely no layer waits for tensors: another trainer may have left some that do
        self._loading = False  # a load was begun there, and has not ended well

    async def stop_generation(self) -> None:
        # Paused by a trainer before this one it says so as well: then waking it up changes nothing.
        if _answer_field(await self.server.get("/is_sleeping"), "is_sleeping") is True:
            await self._wake_up()
        await self._pause()

    async def _pause(self) -> None:
        self._paused = True
        await self.server.post("/pause", params={"mode": "abort"})

    async def release_kv(self) -> None:
        await self.server.post("/release_kv_cache_memory")

    async def join_group(self, group: Group, first_rank: int) -> None:
        meeting = {
            "master_address": group.address,
            "master_port": group.port,
            "rank_offset": first_rank,
            "world_size": group.world_size,
        }
        await self.server.post("/init_weight_transfer_engine", {"init_info": {**meeting, **self._init_info}})

    async def receive(self, group: Group, tensors: Sequence[Tensor]) -> None:
        if not self._open:
            if not self._is_usable:
                await self._restore()
            self._open, self._is_usable = True, False
            await self.server.post("/start_weight_update")
        update_info = {
            "names": [tensor.name for tensor in tensors],
            "dtype_names": [tensor.dtype for tensor in tensors],
            "shapes": [list(tensor.shape) for tensor in tensors],
        }
        await self.server.post("/update_weights", {"update_info": update_info})

    async def load(self, path: str) -> None:
        reload = {"method": "reload_weights", "kwargs": {"weights_path": path}}
        if not self._is_usable and not await self._try_restore():
            self._loading = True
            await self.server.post("/collective_rpc", reload)
        self._is_usable, self._loading = False, True
        await self.server.post("/collective_rpc", reload)
        self._is_usable, self._loading = True, False

    async def finish(self, version: str) -> None:
        if self._open:
            await self.server.post("/finish_weight_update", {"weight_version": version})
            self._open, self._is_usable = False, True
        else:
            await self.server.post("/update_weight_version", {"new_version": version})

    async def leave_group(self, group: Group) -> None:
        if self._open:
            await self._restore()
        try:
            await self.server.post("/shutdown_weight_transfer_engine")
        except Refused as error:
            if DURING_AN_UPDATE not in error.answer:
                raise
            await self._restore()  # it was left open by a trainer before this one
            await self.server.post("/shutdown_weight_transfer_engine")

    async def resume_kv(self) -> None:
        await self._wake_up()
        if self._paused:
            await self._pause()

    async def _wake_up(self) -> None:
        answer = await self.server.post("/wake_up")
        if _answer_field(answer, "status") != "awake":
            raise EngineRefused(f"{self.server.url}/wake_up: expected all of its memory to be awake; got {answer}")

    async def flush_cache(self) -> None:
        answer = await self.server.post("/reset_prefix_cache", params={"reset_external": "true"})
        if _answer_field(answer, "success") is not True:
            raise EngineRefused(f"{self.server.url}/reset_prefix_cache: requests still hold blocks; got {answer}")
        await self.server.post("/reset_encoder_cache")

    async def resume_generation(self) -> None:
        if self._open:
            await self._restore()
        elif self._loading and not await self._try_restore():
            log.warning("%s: a load failed within a layer, and the next request may crash it", self.server.url)
        await self.server.post("/resume")
        self._paused = False

    async def healthy(self) -> None:
        """Raises if it is not."""
        await self.server.get("/health")

    async def _restore(self) -> None:
        """End an update that brings nothing, or the one that is open. Raises Refused where none is configured."""
        try:
            await self.server.post("/start_weight_update")
        except Refused as error:
            log.info("the server already has an open weight update: %s", error)
        await self.server.post("/finish_weight_update")
        self._open, self._is_usable, self._loading = False, True, False

    async def _try_restore(self) -> bool:
        try:
            await self._restore()
        except Refused as error:
            log.info("the server has no weight update to end: %s", error)
            return False
        return True


def _answer_field(answer: str, name: str) -> Any:
    try:
        told = json.loads(answer)
    except ValueError:
        return None
    return told.get(name) if isinstance(told, dict) else None

"""vLLM's HTTP server. Sources: vLLM 0.32.0, `entrypoints/rl/online`, `entrypoints/serve/dev` and the functions that
they call.

It needs `VLLM_SERVER_DEV_MODE=1`, `--weight-transfer-config '{"backend": "nccl"}'`, and `--enable-sleep-mode` to free
the KV cache's memory. The weights stay in memory.

Traps that the adapter avoids:
- A server crashes if sleeping memory is used: after /sleep, or after an update that could not resume its KV cache. So
  the adapter checks for that, and wakes the server up before it pauses it.
- A wake-up resumes generation as soon as all memory is back. So the adapter pauses the server again, because resuming
  is a separate step.
- Layers receive their tensors one by one. After an interrupted update some layers wait for their missing tensors. Then
  a request crashes the engine, and the engine takes the first tensors of the next update for the missing ones, and
  drops the last ones. The end of an update repairs such layers, even of an update without tensors. But an update that
  ends by a failed chunk repairs nothing. So the adapter ends any unfinished update before it sends more tensors, and
  before generation resumes.
- Without a configured weight transfer there are no such updates. Then, if a load may have been interrupted, the adapter
  loads the next weights twice: the end of the first load repairs all layers.
- A failed reset of the prefix cache is reported in an answer with status 200.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

from understudy_rollout.engine import Tensor
from understudy_rollout.engines.http import CallAdmission, EngineErrorAnswer, EngineServer, bearer
from understudy_rollout.failures import EngineRefused
from understudy_rollout.weights import Group

DURING_AN_UPDATE = "during a weight update"
log = logging.getLogger(__name__)


class VllmEngine:
    def __init__(
        self, at: Union[str, CallAdmission], *, api_key: str = "", init_info: Optional[Mapping[str, Any]] = None
    ) -> None:
        """at: http://host:port or a Gateway. init_info: more fields for the transfer's backend ({"packed": True})."""
        self.server = EngineServer(at, bearer(api_key))
        self._init_info = dict(init_info or {})
        self._paused = False  # a pause was requested, and no resume since
        self._open = False  # an update was started on the server, and not finished
        self._is_usable = False  # no layer waits for tensors; False at first, because of earlier trainers
        self._loading = False  # a load was begun, and has not succeeded

    async def stop_generation(self) -> None:
        # A server that an earlier trainer has paused also reports that it sleeps: a wake-up has no effect then.
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
        except EngineErrorAnswer as error:
            if DURING_AN_UPDATE not in error.answer:
                raise
            await self._restore()  # an earlier trainer left it open
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

    async def _restore(self) -> None:
        """Repair the layers: end the open update, or one without tensors.

        Raises EngineErrorAnswer if no weight transfer is configured.
        """
        try:
            await self.server.post("/start_weight_update")
        except EngineErrorAnswer as error:
            log.info("the server already has an open weight update: %s", error)
        await self.server.post("/finish_weight_update")
        self._open, self._is_usable, self._loading = False, True, False

    async def _try_restore(self) -> bool:
        try:
            await self._restore()
        except EngineErrorAnswer as error:
            log.info("the server has no weight update to end: %s", error)
            return False
        return True


def _answer_field(answer: str, name: str) -> Any:
    try:
        fields = json.loads(answer)
    except ValueError:
        return None
    return fields.get(name) if isinstance(fields, dict) else None

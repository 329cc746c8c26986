"""vLLM's HTTP server. Read: its pages on weight transfer, pause and sleep as of 0.32, and `entrypoints/rl/online`.

It needs `VLLM_SERVER_DEV_MODE=1` and `--weight-transfer-config '{"backend": "nccl"}'`, and for the KV cache's memory to
be given back `--enable-sleep-mode`. vLLM gives it back only with the weights', which move to the host's memory and
back: where the servers have GPUs of their own, `WeightUpdate(…, release_kv=False)` is quicker.

vLLM cannot be told to leave a group: it drops its end when it joins the next one. Until then what is left of a group is
a communicator that nobody uses. An update that was started there is finished in any case, or it would take no other.

Traps: an update while the weights sleep ends the engine (vllm#57853), so they are woken first. After a chunk that
failed, parameters may be empty, and a request then ends the engine (vllm#57854): its admission has to stay closed.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from understudy_rollout.engine import Group, Tensor
from understudy_rollout.engines.http import Refused, Server, bearer

log = logging.getLogger(__name__)


class VllmEngine:
    def __init__(self, url: str, *, api_key: str = "", init_info: Optional[Mapping[str, Any]] = None) -> None:
        """url: http://host:port. init_info: what the transfer's backend takes besides, such as {"packed": True}."""
        self.server = Server(url, bearer(api_key))
        self._init_info = dict(init_info or {})
        self._started = False  # an update, as far as is known here

    async def stop_generation(self) -> None:
        await self.server.post("/pause", params={"mode": "abort"})

    async def release_kv(self) -> None:
        await self.server.post("/sleep", params={"level": "1"})
        await self.server.post("/wake_up", params={"tags": "weights"})

    async def join_group(self, group: Group, first_rank: int) -> None:
        meeting = {
            "master_address": group.address,
            "master_port": group.port,
            "rank_offset": first_rank,
            "world_size": group.world_size,
        }
        await self.server.post("/init_weight_transfer_engine", {"init_info": {**meeting, **self._init_info}})

    async def receive(self, group: Group, tensors: Sequence[Tensor]) -> None:
        if not self._started:
            self._started = True
            await self._start()
        update_info = {
            "names": [tensor.name for tensor in tensors],
            "dtype_names": [tensor.dtype for tensor in tensors],
            "shapes": [list(tensor.shape) for tensor in tensors],
        }
        await self.server.post("/update_weights", {"update_info": update_info})

    async def load(self, path: str) -> None:
        await self.server.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": path}})

    async def finish(self, version: str) -> None:
        if self._started:
            await self.server.post("/finish_weight_update", {"weight_version": version})
            self._started = False
        else:
            await self.server.post("/update_weight_version", {"new_version": version})

    async def leave_group(self, group: Group) -> None:
        if self._started:
            self._started = False
            try:
                await self.server.post("/finish_weight_update", {})
            except Refused as error:  # it may have finished, its answer lost; `_start` makes sure next time
                log.warning("%s", error)

    async def resume_kv(self) -> None:
        await self.server.post("/wake_up")  # whatever sleeps; nothing, if nothing does

    async def flush_cache(self) -> None:
        await self.server.post("/reset_prefix_cache")

    async def resume_generation(self) -> None:
        await self.server.post("/resume")

    async def healthy(self) -> None:
        """Raises if it is not."""
        await self.server.get("/health")

    async def close(self) -> None:
        await self.server.close()

    async def _start(self) -> None:
        try:
            await self.server.post("/start_weight_update")
        except Refused:
            await self.server.post("/finish_weight_update", {})  # of one that was left behind
            await self.server.post("/start_weight_update")

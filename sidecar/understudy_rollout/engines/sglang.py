"""SGLang's HTTP server. Read: its page "SGLang for RL Systems", and SGLang 0.5.23's `srt/entrypoints/http_server.py`
with what it calls in `srt/managers`. Older ones of 0.5 are asked in the same way, but for sessions, which they lack.

It needs `--enable-memory-saver` for the KV cache's memory to be given back; without it release and resume do nothing.

Two traps. SGLang ends its scheduler, and with it the server, when memory is to be released while that is not idle: a
pause ends when all requests have their answers, and it may still hold the last of them. So it is waited for, which a
flush does.

The same follows when memory is to be resumed that is not released. So it is kept here whether it is. A request that was
sent and not answered is taken for done: the server finishes what it has received, in the order of its arrival, whether
anybody still waits or not. One that is refused is taken for not done. After either, `resume_generation` has the server
generate a token, and corrects a wrong assumption.

A server that sleeps does not survive an update: some of its memory was released by another program, or by a trainer
that ended in its update. No request tells. But it generates no token, and answers `/health_generate` with 503 after
20 s. So an adapter asks that before its first update. Where there is none, the KV cache is resumed, which is what an
update releases; where there is still none, the server is refused.

Tensors are received within a session, `/begin_weight_update` to `/end_weight_update`. One that was left open keeps the
next one out, so it is ended in any case.
"""

import asyncio
from collections.abc import Sequence
from typing import Optional, Union

from understudy_rollout.engine import Tensor
from understudy_rollout.engines.http import CallAdmission, EngineServer, NotDelivered, Refused, bearer
from understudy_rollout.failures import EngineRefused, UpdateFailed
from understudy_rollout.weights import Group

KV = {"tags": ["kv_cache"]}
IDLE_S = 30.0
ASK_AGAIN_S = 0.05  # older ones take no time limit for a flush, and refuse at once
NO_SUCH_GROUP = "does not exist"
NO_SESSION = "no weight-update session is open"
NOT_FOUND = 404


class SglangEngine:
    def __init__(self, at: Union[str, CallAdmission], *, api_key: str = "", load_format: str = "") -> None:
        """at: http://host:port or a Gateway. api_key: --admin-api-key or --api-key. load_format: of `load`'s folder."""
        self.server = EngineServer(at, bearer(api_key))
        self._load_format = load_format
        self._kv_released = False
        self._is_uncertain = True  # whether it is released is not sure: so at first, and after no answer, or an error
        self._has_generated = False  # a token, for this adapter: so none of its memory was released
        self._session: Optional[bool] = None  # one is open there; None: a former trainer may have left one

    async def stop_generation(self) -> None:
        if not self._has_generated:
            await self._until_awake()
        await self.server.post("/pause_generation", {"mode": "abort"})

    async def release_kv(self) -> None:
        if self._kv_released:
            return  # by an update that could not resume it
        await self._until_idle()
        await self._change_memory("/release_memory_occupation", released=True)

    async def join_group(self, group: Group, first_rank: int) -> None:
        body = {
            "master_address": group.address,
            "master_port": group.port,
            "rank_offset": first_rank,
            "world_size": group.world_size,
            "group_name": group.name,
            "backend": group.backend,
        }
        await self.server.post("/init_weights_update_group", body)

    async def receive(self, group: Group, tensors: Sequence[Tensor]) -> None:
        if not self._session:
            self._session = True
            await self._begin_session()  # which ends one that was left
        body = {
            "names": [tensor.name for tensor in tensors],
            "dtypes": [tensor.dtype for tensor in tensors],
            "shapes": [list(tensor.shape) for tensor in tensors],
            "group_name": group.name,
            "flush_cache": False,  # a step of its own
        }
        await self.server.post("/update_weights_from_distributed", body)

    async def load(self, path: str) -> None:
        if self._session is not False:
            await self._end_session(may_be_none=True)
        body = {"model_path": path, "load_format": self._load_format or None, "flush_cache": False}
        await self.server.post("/update_weights_from_disk", body)

    async def finish(self, version: str) -> None:
        if self._session:
            await self._end_session()
        await self.server.post("/update_weight_version", {"new_version": version, "abort_all_requests": False})

    async def leave_group(self, group: Group) -> None:
        failed: Optional[UpdateFailed] = None
        try:
            if self._session:
                await self._end_session(may_be_none=True)
        except UpdateFailed as error:
            failed = error
        await self._destroy_group(group)
        if failed is not None:
            raise failed

    async def resume_kv(self) -> None:
        if self._kv_released:
            await self._change_memory("/resume_memory_occupation", released=False)

    async def flush_cache(self) -> None:
        await self.server.post("/flush_cache")

    async def resume_generation(self) -> None:
        await self.server.post("/continue_generation", {})
        if self._is_uncertain:
            await self._make_sure()

    async def healthy(self) -> None:
        """Raises if it is not."""
        await self.server.get("/health")

    async def _until_idle(self) -> None:
        """Raises Refused where it is not within IDLE_S."""
        loop = asyncio.get_running_loop()
        end = loop.time() + IDLE_S
        while True:
            try:
                await self.server.post("/flush_cache", params={"timeout": f"{IDLE_S:g}"})
                return
            except Refused:
                if loop.time() >= end:
                    raise
            await asyncio.sleep(ASK_AGAIN_S)

    async def _begin_session(self) -> None:
        try:
            await self.server.post("/begin_weight_update", {})
        except Refused as error:
            if error.status == NOT_FOUND:
                return  # an older SGLang
            await self.server.post("/end_weight_update", {})  # of an update that was left behind
            await self.server.post("/begin_weight_update", {})

    async def _end_session(self, *, may_be_none: bool = False) -> None:
        try:
            await self.server.post("/end_weight_update", {})
        except Refused as error:
            if error.status != NOT_FOUND and not (may_be_none and NO_SESSION in error.answer):
                raise
        self._session = False

    async def _destroy_group(self, group: Group) -> None:
        try:
            await self.server.post("/destroy_weights_update_group", {"group_name": group.name})
        except Refused as error:
            if NO_SUCH_GROUP not in error.answer:
                raise

    async def _until_awake(self) -> None:
        """Raises EngineRefused where it is not, before anything is done to it."""
        if await self._generates():
            return
        await self.server.post("/continue_generation", {})  # a trainer before this one may have paused it
        await self._make_sure()

    async def _make_sure(self) -> None:
        if await self._generates():
            return
        if self._is_uncertain:  # its cache is what it lacks, or more than that
            await self._change_memory("/resume_memory_occupation", released=False)
            if await self._generates():
                return
        raise EngineRefused(
            f"{self.server.url}: the server does not generate: its weights may have been released, or it is unhealthy. "
            f"Resume its memory (/resume_memory_occupation), or restart it"
        )

    async def _generates(self) -> bool:
        try:
            await self.server.get("/health_generate")
        except Refused:
            return False
        self._kv_released = self._is_uncertain = False
        self._has_generated = True
        return True

    async def _change_memory(self, path: str, *, released: bool) -> None:
        try:
            await self.server.post(path, KV)
        except NotDelivered:
            raise
        except Refused:
            self._is_uncertain = True
            raise
        except BaseException:
            self._kv_released, self._is_uncertain = released, True
            raise
        self._kv_released, self._is_uncertain = released, False

"""SGLang's HTTP server. Sources: its page "SGLang for RL Systems", and SGLang 0.5.23's `srt/entrypoints/http_server.py`
with the functions of `srt/managers` that it calls. Older versions of 0.5 get the same calls, but they lack sessions.

It frees the KV cache's memory only with `--enable-memory-saver`; without that, release and resume have no effect.

Two traps. SGLang's scheduler exits, and the server with it, if memory has to be released while the scheduler is not
idle. A pause returns when all requests are answered, but the scheduler may not have finished the last of them. So the
adapter waits for idleness with a flush.

The scheduler also exits if it has to resume memory that is not released. So the adapter tracks whether the memory is
released. A request that was sent and got no answer counts as executed, because the server executes each received
request in order, even if its client has gone. A rejected request counts as not executed. After either,
`resume_generation` lets the server generate a token, and corrects a wrong assumption.

A sleeping server does not survive an update: another program, or a trainer that ended during its update, has released
some of its memory. No request reports that. But the server generates no token, and answers `/health_generate` with 503
after 20 s. So an adapter sends that request before its first update. If no token comes, it resumes the KV cache, which
is the memory that an update releases; if still none comes, it rejects the server.

Tensors are received within a session, from `/begin_weight_update` to `/end_weight_update`. A session that was left open
blocks the next one, so the adapter always ends it.
"""

import asyncio
from collections.abc import Sequence
from typing import Optional, Union

from understudy_rollout.engine import Tensor
from understudy_rollout.engines.http import CallAdmission, EngineErrorAnswer, EngineServer, NotDelivered, bearer
from understudy_rollout.failures import EngineRefused, UpdateFailed
from understudy_rollout.weights import Group

KV = {"tags": ["kv_cache"]}
IDLE_S = 30.0
ASK_AGAIN_S = 0.05  # older versions have no time limit for a flush, and reject it at once
NO_SUCH_GROUP = "does not exist"
NO_SESSION = "no weight-update session is open"
NOT_FOUND = 404


class SglangEngine:
    def __init__(self, at: Union[str, CallAdmission], *, api_key: str = "", load_format: str = "") -> None:
        """at: http://host:port or a Gateway. api_key: --admin-api-key or --api-key. load_format: of `load`'s folder."""
        self.server = EngineServer(at, bearer(api_key))
        self._load_format = load_format
        self._kv_released = False
        self._is_uncertain = True  # whether `_kv_released` may be wrong: at first, and after an error or no answer
        self._has_generated = False  # a token for this adapter: so none of its memory was released
        self._session: Optional[bool] = None  # one is open on the server; None: an earlier trainer may have left one

    async def stop_generation(self) -> None:
        if not self._has_generated:
            await self._until_awake()
        await self.server.post("/pause_generation", {"mode": "abort"})

    async def release_kv(self) -> None:
        if self._kv_released:
            return  # an earlier update could not resume it
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
            await self._begin_session()  # also ends one that was left open
        body = {
            "names": [tensor.name for tensor in tensors],
            "dtypes": [tensor.dtype for tensor in tensors],
            "shapes": [list(tensor.shape) for tensor in tensors],
            "group_name": group.name,
            "flush_cache": False,  # flush_cache is a separate step
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

    async def _until_idle(self) -> None:
        """Raises EngineErrorAnswer if it is not idle within IDLE_S."""
        loop = asyncio.get_running_loop()
        end = loop.time() + IDLE_S
        while True:
            try:
                await self.server.post("/flush_cache", params={"timeout": f"{IDLE_S:g}"})
                return
            except EngineErrorAnswer:
                if loop.time() >= end:
                    raise
            await asyncio.sleep(ASK_AGAIN_S)

    async def _begin_session(self) -> None:
        try:
            await self.server.post("/begin_weight_update", {})
        except EngineErrorAnswer as error:
            if error.status == NOT_FOUND:
                return  # an older SGLang
            await self.server.post("/end_weight_update", {})  # a session that an earlier update left open
            await self.server.post("/begin_weight_update", {})

    async def _end_session(self, *, may_be_none: bool = False) -> None:
        try:
            await self.server.post("/end_weight_update", {})
        except EngineErrorAnswer as error:
            if error.status != NOT_FOUND and not (may_be_none and NO_SESSION in error.answer):
                raise
        self._session = False

    async def _destroy_group(self, group: Group) -> None:
        try:
            await self.server.post("/destroy_weights_update_group", {"group_name": group.name})
        except EngineErrorAnswer as error:
            if NO_SUCH_GROUP not in error.answer:
                raise

    async def _until_awake(self) -> None:
        """Raises EngineRefused if it does not wake up. Nothing else has been done to it by then."""
        if await self._generates():
            return
        await self.server.post("/continue_generation", {})  # an earlier trainer may have paused it
        await self._make_sure()

    async def _make_sure(self) -> None:
        if await self._generates():
            return
        if self._is_uncertain:  # its KV cache may be released
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
        except EngineErrorAnswer:
            return False
        self._kv_released = self._is_uncertain = False
        self._has_generated = True
        return True

    async def _change_memory(self, path: str, *, released: bool) -> None:
        try:
            await self.server.post(path, KV)
        except NotDelivered:
            raise
        except EngineErrorAnswer:
            self._is_uncertain = True
            raise
        except BaseException:
            self._kv_released, self._is_uncertain = released, True
            raise
        self._kv_released, self._is_uncertain = released, False

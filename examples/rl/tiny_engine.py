"""The adapter for rollout.py: a complete example of an adapter for your own engine."""

from __future__ import annotations

from collections.abc import Sequence

from understudy_rollout import Group, Tensor
from understudy_rollout.engines.http import CallAdmission, EngineServer


class TinyEngine:
    def __init__(self, at: str | CallAdmission) -> None:
        """at: http://host:port, or the server's Gateway, which passes on the calls of the running update."""
        self.server = EngineServer(at)

    async def stop_generation(self) -> None:
        await self.server.post("/pause")

    async def release_kv(self) -> None:
        await self.server.post("/release_kv")

    async def join_group(self, group: Group, first_rank: int) -> None:
        at = {"address": group.address, "port": group.port, "name": group.name}
        await self.server.post("/join", {**at, "rank": first_rank, "world_size": group.world_size})

    async def receive(self, group: Group, tensors: Sequence[Tensor]) -> None:
        await self.server.post("/receive", {"names": [tensor.name for tensor in tensors]})

    async def load(self, path: str) -> None:
        raise NotImplementedError("this server has no folder to load from")

    async def finish(self, version: str) -> None:
        """It uses the received tensors unchanged."""

    async def leave_group(self, group: Group) -> None:
        await self.server.post("/leave")

    async def resume_kv(self) -> None:
        await self.server.post("/resume_kv")

    async def flush_cache(self) -> None:
        await self.server.post("/flush")

    async def resume_generation(self) -> None:
        await self.server.post("/resume")

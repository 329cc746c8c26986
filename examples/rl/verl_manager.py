"""verl's weight updates as transactions: its `CheckpointEngineManager`, with the same steps, undone when one fails.

    actor_rollout_ref.rollout.checkpoint_manager_class=verl_manager.TransactionalManager

Read: verl 0.9.1, `verl/checkpoint_engine/base.py` and `verl/workers/rollout/replica.py`. Replicas are verl's own,
actors of Ray, without a gateway in front: an update that fails ends the run by its error, and must not be caught.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any

from verl.checkpoint_engine import CheckpointEngineManager
from verl.checkpoint_engine.base import CheckpointEngineWorker
from verl.single_controller.ray import RayClassWithInitArgs, RayWorkerGroup
from verl.utils.ray_utils import auto_await

from understudy_rollout import Group, Replica, Tensor, WeightUpdate

COLOCATED = "naive"  # one process trains and rolls out, by turns: no synchronization is needed
ALL = (Tensor("all", "", ()),)  # verl's workers agree on the tensors among themselves


class Workers:
    """A group of verl's workers, whose calls are awaited instead of `ray.get`, which blocks the event loop."""

    def __init__(self, group: Any) -> None:
        self.group, self.size = group, group.world_size

    async def ask(self, method: str, **each: Sequence[Any]) -> list[Any]:
        """each: a list of every argument, with one entry for each worker."""
        return await together(self.group.execute_checkpoint_engine(method=[method] * self.size, **each))


class VerlReplica:
    """The adapter for a `RolloutReplica`, whose servers and checkpoint workers do the work."""

    def __init__(self, replica: Any, workers: Workers) -> None:
        self.replica, self.workers = replica, workers
        self.topology: dict[str, Sequence[Any]] = {}
        self.step: int | None = None
        self._released = False

    async def stop_generation(self) -> None:
        await self.replica.abort_all_requests()

    async def release_kv(self) -> None:
        # SGLang does not survive a release of memory while its scheduler still has the last request, which has its
        # answer already. This call goes through the scheduler, which is done with that request when the next call
        # arrives.
        await self.replica.clear_kv_cache()
        self._released = True
        await self.replica.release_kv_cache()

    async def join_group(self, group: Group, first_rank: int) -> None:
        await self.workers.ask("init_process_group", **self.topology)

    async def receive(self, group: Group, tensors: Sequence[Tensor]) -> None:
        await together(self.workers.group.update_weights(global_steps=self.step))

    async def load(self, path: str) -> None:
        raise NotImplementedError("verl's checkpoint engines send tensors")

    async def finish(self, version: str) -> None:
        """Its servers receive the version with the tensors."""

    async def leave_group(self, group: Group) -> None:
        await self.workers.ask("finalize")

    async def resume_kv(self) -> None:
        if self._released:  # SGLang does not survive a resume without a release
            await self.replica.resume_kv_cache()
            self._released = False

    async def flush_cache(self) -> None:
        await self.replica.clear_kv_cache()

    async def resume_generation(self) -> None:
        await self.replica.resume_generation()


class VerlActor:
    """The sending side: verl's actor workers."""

    def __init__(self, manager: Any, workers: Workers, engines: Sequence[VerlReplica], step: int | None) -> None:
        self.metrics: dict[str, Any] = {}
        self._manager, self._workers, self._engines, self._step = manager, workers, engines, step
        self._topology: dict[str, Sequence[Any]] = {}

    async def open_group(self, world_size: int) -> Group:
        metadata = [one for side in self._sides() for one in await side.ask("prepare")]
        rollouts = sum(engine.workers.size for engine in self._engines)
        build = self._manager.backend_cls.build_topology
        self._topology, all_of_them = map(without_method, build(self._workers.size, rollouts, metadata))
        first = 0
        for engine in self._engines:
            last = first + engine.workers.size
            engine.topology = {name: values[first:last] for name, values in all_of_them.items()}
            first = last
        return Group("", 0, world_size, f"step-{self._step}", self._manager.backend)

    async def join_group(self, group: Group) -> None:
        await self._workers.ask("init_process_group", **self._topology)

    async def send(self, group: Group, tensors: Sequence[Tensor]) -> None:
        actors = self._workers.group
        for answer in await together(actors.update_weights(global_steps=self._step, mode=self._manager.backend)):
            self.metrics.update(answer if isinstance(answer, dict) else {})

    async def leave_group(self, group: Group | None) -> None:
        """None: some sides may be prepared, and none knows of a group that it could leave by itself."""
        sides = [self._workers] if group is not None else self._sides()
        answers = await asyncio.gather(*(side.ask("finalize") for side in sides), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    def _sides(self) -> list[Workers]:
        return [self._workers, *(engine.workers for engine in self._engines)]


class TransactionalManager(CheckpointEngineManager):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._known: dict[int, Replica] = {}  # which weights each replica has is remembered between updates

    @auto_await
    async def update_weights(self, global_steps: int | None = None) -> dict[str, Any]:
        if self.backend == COLOCATED:
            await together(self.actor_wg.update_weights(global_steps=global_steps, mode=self.backend))
            return {}
        replicas = [self._replica(replica) for replica in self.replicas]
        engines = [replica.engine for replica in replicas]
        for engine in engines:
            engine.step = global_steps
        actor = VerlActor(self, Workers(self.actor_wg), engines, global_steps)
        async with WeightUpdate(replicas, actor, version=f"step-{global_steps}") as update:
            await update.transfer(ALL)
        return actor.metrics

    def _replica(self, replica: Any) -> Replica:
        if id(replica) not in self._known:
            made = RayClassWithInitArgs(cls=_remote_worker())
            workers = Workers(RayWorkerGroup(worker_handles=replica.workers, ray_cls_with_init=made))
            engine = VerlReplica(replica, workers)
            self._known[id(replica)] = Replica(f"replica-{len(self._known)}", engine, ranks=workers.size)
        return self._known[id(replica)]


def without_method(topology: dict[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """Some transports name the method that takes their topology, which verl's manager names in any case."""
    return {name: values for name, values in topology.items() if name != "method"}


async def together(answers: Iterable[Awaitable[Any]]) -> list[Any]:
    return list(await asyncio.gather(*answers))


def _remote_worker() -> Any:
    import ray

    return ray.remote(CheckpointEngineWorker)

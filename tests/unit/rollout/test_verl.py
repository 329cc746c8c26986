"""examples/rl/verl_manager.py, with doubles of the parts of verl 0.9.1 that it uses: the same calls, all undone after a
fault.

tests/verl compares the doubles with verl's own sources.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.unit.virtual_time import in_virtual_time
from understudy_rollout import WeightsState

EXAMPLE = Path(__file__).resolve().parents[3] / "examples/rl/verl_manager.py"
ACTOR_RANKS, ROLLOUT_RANKS = 2, 3
STEPS = (
    *("abort_all_requests", "clear_kv_cache", "release_kv_cache"),
    *("prepare", "init_process_group", "update_weights", "finalize"),
    *("resume_kv_cache", "clear_kv_cache", "resume_generation"),
)
OF_ACTORS = ("prepare", "init_process_group", "update_weights", "finalize")


class Broken(Exception):
    pass


class Site:
    """The calls of each side, and the one that fails."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.ranks: dict[str, list[int]] = {}
        self.fails: tuple[str, str] = ("", "")
        self.prepared: set[str] = set()  # sides that are prepared and not finalized

    async def call(self, side: str, method: str, answer: Any = None) -> Any:
        self.calls.append((side, method))
        if method == "prepare":
            self.prepared.add(side)
        if method == "finalize":
            self.prepared.discard(side)
        await asyncio.sleep(0)
        if (side, method) == self.fails:
            self.fails = ("", "")
            raise Broken(f"{side} {method}")
        return answer

    def of(self, side: str) -> list[str]:
        return [method for name, method in self.calls if name == side]


class WorkerGroup:
    """RayWorkerGroup: a call returns a list with each worker's answer."""

    def __init__(self, site: Site, name: str, world_size: int) -> None:
        self.site, self.name, self.world_size = site, name, world_size

    def execute_checkpoint_engine(self, method: list[str], **each: list[Any]) -> list[Awaitable[Any]]:
        assert len(method) == self.world_size
        assert all(len(values) == self.world_size for values in each.values())
        if "rank" in each:
            self.site.ranks[self.name] = each["rank"]
        first, *others = (f"metadata of {self.name}" for _ in range(self.world_size))
        return [self.site.call(self.name, method[0], first), *(answer(value) for value in others)]

    def update_weights(self, global_steps: int, mode: str = "") -> list[Awaitable[Any]]:
        return [self.site.call(self.name, "update_weights", {"bytes": global_steps})]


class VerlsReplica:
    """RolloutReplica."""

    def __init__(self, site: Site, name: str) -> None:
        self.workers = [WorkerGroup(site, name, ROLLOUT_RANKS)]
        self._site, self._name = site, name

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        return lambda **options: self._site.call(self._name, method)


class Backend:
    @staticmethod
    def build_topology(actors: int, rollouts: int, metadata: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        assert len(metadata) == actors + rollouts
        return {"rank": [0] * actors}, {"rank": list(range(1, 1 + rollouts))}


class Manager:
    """The used parts of CheckpointEngineManager."""

    def __init__(self, config: Any, actor_wg: WorkerGroup, replicas: list[VerlsReplica]) -> None:
        self.backend, self.backend_cls = config.backend, Backend
        self.actor_wg, self.replicas = actor_wg, replicas


async def answer(value: Any) -> Any:
    return value


@pytest.fixture
def manager_class(monkeypatch: pytest.MonkeyPatch) -> Any:
    def module(name: str, **what: Any) -> None:
        made = ModuleType(name)
        made.__dict__.update(what)
        monkeypatch.setitem(sys.modules, name, made)

    for package in ("verl", "verl.single_controller", "verl.utils"):
        module(package)
    module("verl.checkpoint_engine", CheckpointEngineManager=Manager)
    module("verl.checkpoint_engine.base", CheckpointEngineWorker=object)
    groups = {"RayWorkerGroup": lambda worker_handles, ray_cls_with_init: worker_handles[0]}
    module("verl.single_controller.ray", RayClassWithInitArgs=lambda cls: cls, **groups)
    module("verl.utils.ray_utils", auto_await=lambda function: function)
    module("ray", remote=lambda cls: cls)
    spec = importlib.util.spec_from_file_location("verl_manager", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "verl_manager", example)
    spec.loader.exec_module(example)
    return example.TransactionalManager


def made(manager_class: Any, backend: str = "nccl") -> tuple[Any, Site]:
    site = Site()
    replicas = [VerlsReplica(site, f"rollout-{n}") for n in range(2)]
    manager = manager_class(SimpleNamespace(backend=backend), WorkerGroup(site, "actor", ACTOR_RANKS), replicas)
    return manager, site


def run(work: Callable[[], Awaitable[None]]) -> None:
    in_virtual_time(work)()


def test_verls_steps_are_taken_in_its_order(manager_class: Any) -> None:
    async def story() -> None:
        manager, site = made(manager_class)
        for step in (7, 8):
            site.calls.clear()
            assert await manager.update_weights(step) == {"bytes": step}
            for name in ("rollout-0", "rollout-1"):
                assert site.of(name) == list(STEPS)
            assert site.of("actor") == list(OF_ACTORS)
        # and each worker has its own rank
        assert site.ranks == {"actor": [0, 0], "rollout-0": [1, 2, 3], "rollout-1": [4, 5, 6]}

    run(story)


@pytest.mark.parametrize(
    ("side", "method"),
    [(f"rollout-{n}", method) for n in range(2) for method in dict.fromkeys(STEPS)]
    + [("actor", method) for method in OF_ACTORS],
)
def test_an_error_is_raised_and_undone_on_every_replica(manager_class: Any, side: str, method: str) -> None:
    async def story() -> None:
        manager, site = made(manager_class)
        site.fails = (side, method)
        with pytest.raises(Broken, match=f"{side} {method}"):
            await manager.update_weights(7)
        for name in ("rollout-0", "rollout-1"):
            calls = site.of(name)
            if "abort_all_requests" in calls:
                assert calls[-1] == "resume_generation"
            if "release_kv_cache" in calls:
                assert "resume_kv_cache" in calls
            if "prepare" in calls:
                assert "finalize" in calls[calls.index("prepare") :]
        assert site.prepared == set(), "all sides were finalized"
        # and the next update is whole
        assert await manager.update_weights(8) == {"bytes": 8}
        assert {x.weights.state for x in manager._known.values()} == {WeightsState.FRESH}

    run(story)


def test_a_topology_that_cannot_be_built_leaves_no_side_prepared(
    manager_class: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        manager, site = made(manager_class)
        built = Backend.build_topology

        def broken(*_: Any) -> Any:
            raise Broken("topology")

        monkeypatch.setattr(Backend, "build_topology", broken)
        with pytest.raises(Broken, match="topology"):
            await manager.update_weights(7)
        assert site.prepared == set()
        for name in ("rollout-0", "rollout-1", "actor"):
            assert site.of(name).count("finalize") == 1
        # and the next update is whole
        monkeypatch.setattr(Backend, "build_topology", built)
        assert await manager.update_weights(8) == {"bytes": 8}

    run(story)


def test_a_topology_may_name_the_method(manager_class: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    built = Backend.build_topology

    def with_method(actors: int, rollouts: int, metadata: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        """As in kimi's and NIXL's."""
        of_actors, of_rollouts = built(actors, rollouts, metadata)
        method = "init_process_group"
        return {"method": [method] * actors, **of_actors}, {"method": [method] * rollouts, **of_rollouts}

    async def story() -> None:
        manager, site = made(manager_class)
        monkeypatch.setattr(Backend, "build_topology", staticmethod(with_method))
        assert await manager.update_weights(7) == {"bytes": 7}
        assert site.of("actor") == list(OF_ACTORS)
        assert site.ranks == {"actor": [0, 0], "rollout-0": [1, 2, 3], "rollout-1": [4, 5, 6]}

    run(story)


def test_verl_is_unchanged_if_trainer_and_rollouts_are_one(manager_class: Any) -> None:
    async def story() -> None:
        manager, site = made(manager_class, "naive")
        assert await manager.update_weights(7) == {}
        assert site.calls == [("actor", "update_weights")]

    run(story)

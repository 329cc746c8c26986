"""The doubles of tests/unit/rollout/test_verl.py against verl's own sources: `make verl` downloads them.

verl's CheckpointEngineManager, and its `auto_await`, run unchanged. Their imports (Ray, torch, verl's workers) are
replaced: the replicas and worker groups are the doubles, so verl's manager makes the same calls as the example's.
"""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from tests.unit.rollout.test_verl import (
    ACTOR_RANKS,
    EXAMPLE,
    OF_ACTORS,
    STEPS,
    Backend,
    Site,
    VerlsReplica,
    WorkerGroup,
)
from tests.unit.virtual_time import in_virtual_time

VERL = Path(os.environ.get("UNDERSTUDY_VERL", "/nowhere/run-make-verl")) / "verl"
REPLICAS = ("rollout-0", "rollout-1")
#: Transports whose `build_topology` reads nothing of the workers' metadata: NCCL's does.
TRANSPORTS = ("hccl", "kimi", "mooncake", "nixl")


class AllGroups:
    """RayWorkerGroup over the workers of all replicas, as verl's manager creates it."""

    def __init__(self, worker_handles: list[WorkerGroup], ray_cls_with_init: object) -> None:
        self._groups = worker_handles
        self.world_size = sum(group.world_size for group in worker_handles)

    def execute_checkpoint_engine(self, method: list[str], **each: list[Any]) -> list[Any]:
        answers, first = [], 0
        for group in self._groups:
            part = slice(first, first := first + group.world_size)
            arguments = {name: values[part] for name, values in each.items()}
            answers += group.execute_checkpoint_engine(method[part], **arguments)
        return answers

    def update_weights(self, global_steps: int) -> list[Any]:
        return [answer for group in self._groups for answer in group.update_weights(global_steps)]


def ray_get(answers: list[Any]) -> list[Any]:
    """Blocks, as Ray's does."""

    async def all_of_them() -> list[Any]:
        return list(await asyncio.gather(*answers))

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(all_of_them())).result()


@pytest.fixture
def verl(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """verl's manager, registry of transports, and the example's manager on them."""

    def module(name: str, **what: Any) -> ModuleType:
        made = ModuleType(name)
        made.__dict__.update(what)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    def source(name: str, path: Path) -> Any:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, made)
        spec.loader.exec_module(made)
        return made

    for name in ("verl", "verl.single_controller", "verl.utils", "verl.workers"):
        module(name)
    module("ray", get=ray_get, remote=lambda cls: cls)
    module("torch", Tensor=object, Size=object, dtype=object)
    module("verl.single_controller.base", Worker=object)
    module("verl.single_controller.base.decorator", Dispatch=MagicMock(), register=lambda **_: lambda method: method)
    module("verl.utils.distributed", initialize_global_process_group_ray=None)
    module("verl.utils.import_utils", import_external_libs=lambda module: None)
    module("verl.workers.config", **dict.fromkeys(("CheckpointEngineConfig", "HFModelConfig", "RolloutConfig"), object))
    module("verl.workers.rollout", BaseRollout=object, RolloutReplica=object, get_rollout_class=None)
    module("verl.workers.rollout.utils", ensure_async_iterator=None)
    ray_classes = module("verl.single_controller.ray", RayClassWithInitArgs=lambda cls: cls, RayWorkerGroup=AllGroups)
    source("verl.utils.ray_utils", VERL / "utils" / "ray_utils.py")
    base = source("verl.checkpoint_engine.base", VERL / "checkpoint_engine" / "base.py")
    module("verl.checkpoint_engine", CheckpointEngineManager=base.CheckpointEngineManager)
    base.CheckpointEngineRegistry.register("nccl")(Backend)
    monkeypatch.setattr(ray_classes, "RayWorkerGroup", lambda worker_handles, ray_cls_with_init: worker_handles[0])
    example = source("verl_manager", EXAMPLE)
    return SimpleNamespace(base=base, own=base.CheckpointEngineManager, example=example.TransactionalManager)


def updated(manager_class: Any) -> Site:
    """The calls of two updates; those of the first one are dropped."""
    site = Site()
    config = SimpleNamespace(backend="nccl", custom_backend_module=None)
    manager = manager_class(config, WorkerGroup(site, "actor", ACTOR_RANKS), [VerlsReplica(site, x) for x in REPLICAS])

    async def story() -> None:
        for step in (7, 8):
            site.calls.clear()
            assert await manager.update_weights(step) == {"bytes": step}

    in_virtual_time(story)()
    return site


def test_the_example_takes_the_steps_of_verls_own_manager_and_also_empties_caches(verl: SimpleNamespace) -> None:
    own, example = updated(verl.own), updated(verl.example)
    for replica in REPLICAS:
        assert own.of(replica) == [method for method in STEPS if method != "clear_kv_cache"]
        assert example.of(replica) == list(STEPS)
    assert own.of("actor") == example.of("actor") == list(OF_ACTORS)
    assert own.ranks == example.ranks == {"actor": [0, 0], "rollout-0": [1, 2, 3], "rollout-1": [4, 5, 6]}


def test_if_trainer_and_rollouts_are_one_process_it_does_the_same_as_verl(verl: SimpleNamespace) -> None:
    verl.base.CheckpointEngineRegistry.register("naive")(Backend)
    for manager_class in (verl.own, verl.example):
        site = Site()
        config = SimpleNamespace(backend="naive", custom_backend_module=None)
        manager = manager_class(config, WorkerGroup(site, "actor", ACTOR_RANKS), [])

        async def story(manager: Any = manager) -> None:
            assert await manager.update_weights(7) == {}

        in_virtual_time(story)()
        assert site.calls == [("actor", "update_weights")]


def test_each_call_of_the_double_exists_in_verl_and_needs_no_argument() -> None:
    methods = methods_of(VERL / "workers" / "rollout" / "replica.py", "RolloutReplica")
    of_servers = [x for x in STEPS if x not in OF_ACTORS]
    for name in of_servers:
        method = methods[name]
        assert isinstance(method, ast.AsyncFunctionDef), name
        assert len(method.args.args) - len(method.args.defaults) == 1, f"{name} needs more than self"
    engine = methods_of(VERL / "checkpoint_engine" / "base.py", "CheckpointEngine")
    assert {"prepare", "build_topology", "init_process_group", "finalize"} <= engine.keys()
    worker = methods_of(VERL / "checkpoint_engine" / "base.py", "CheckpointEngineWorker")
    assert [x.arg for x in worker["update_weights"].args.args] == ["self", "global_steps"]
    assert [x.arg for x in worker["execute_checkpoint_engine"].args.args] == ["self", "method"]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_topology_of_each_transport_reaches_the_workers(
    verl: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    monkeypatch.setattr(Backend, "build_topology", staticmethod(topology_of(transport)))
    for manager_class in (verl.own, verl.example):
        site = updated(manager_class)
        assert [x for x in site.of("actor") if x in OF_ACTORS] == list(OF_ACTORS)


def methods_of(file: Path, name: str) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    (found,) = [x for x in ast.parse(file.read_text()).body if isinstance(x, ast.ClassDef) and x.name == name]
    return {x.name: x for x in found.body if isinstance(x, ast.FunctionDef | ast.AsyncFunctionDef)}


def topology_of(transport: str) -> Callable[..., Any]:
    """verl's own `build_topology` of this transport, without its module, which needs the transport."""
    file = VERL / "checkpoint_engine" / f"{transport}_checkpoint_engine.py"
    classes = [x for x in ast.parse(file.read_text()).body if isinstance(x, ast.ClassDef)]
    (found,) = [
        x for each in classes for x in each.body if isinstance(x, ast.FunctionDef) and x.name == "build_topology"
    ]
    found.decorator_list, found.args.args = [], found.args.args[1:]  # a static function, instead of a class's
    for argument in found.args.args:
        argument.annotation = None
    found.returns = None
    names: dict[str, Any] = {}
    exec(compile(ast.Module([found], []), str(file), "exec"), names)
    made: Callable[..., Any] = names["build_topology"]
    return made

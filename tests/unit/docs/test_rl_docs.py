"""The code of docs/how-to/rl.md runs unchanged, against a gateway and servers with the protocols of the engines."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.unit.docs.rl_page import BLOCKS, block, executed
from tests.unit.rollout.guarded import TOKEN, guarded
from tests.unit.rollout.model import PATIENT, TENSORS, Cluster, ModelEngine, ModelTrainer, World
from tests.unit.rollout.servers import EngineServer
from tests.unit.rollout.sglang_server import SglangServer
from tests.unit.rollout.vllm_server import VllmServer
from tests.unit.virtual_time import run
from understudy_operator.observe.read_spec import read_spec
from understudy_protocol.enums import OnFailedUpdate
from understudy_rollout import Group, Replica, Tensor, WeightsState, WeightUpdate
from understudy_rollout.engines import SglangEngine
from understudy_rollout.gateway import Gateway
from understudy_rollout.gateway.__main__ import options

CHECKOUT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("code", [code for kind, code in BLOCKS if kind == "python"])
def test_every_piece_of_python_compiles(code: str) -> None:
    compile(code, "docs/how-to/rl.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


class AnyRanks(ModelEngine):
    """An engine with the given number of ranks."""

    async def join_group(self, group: Group, first_rank: int) -> None:
        self.world.present.setdefault(group.name, set()).update(range(first_rank, first_rank + 8))
        await super().join_group(group, first_rank)


def test_the_first_example_updates_two_servers() -> None:
    async def story() -> None:
        world = World()
        trainer = ModelTrainer("trainer", world)
        engines = [AnyRanks(f"rollout-{n}", world, sent=lambda: "new") for n in range(2)]
        wait = ModelTrainer.send

        async def send(group: Group, tensors: Sequence[Tensor]) -> None:
            world.wants.update(f"rank-{n}" for n in range(14))  # the other ranks of both servers
            await wait(trainer, group, tensors)

        trainer.send = send  # type: ignore[method-assign]
        given = {"engine_0": engines[0], "engine_1": engines[1], "trainer": trainer, "buckets": [TENSORS]}
        defined = await executed(block("python", 'version="step-700"'), **given)
        assert {(x.weights.state, x.weights.version) for x in defined["replicas"]} == {(WeightsState.FRESH, "step-700")}
        assert {tuple(engine.holds.values()) for engine in engines} == {("new", "new")}

    run(story())


@pytest.mark.parametrize(
    ("server", "port", "names"),
    [(SglangServer, 30000, {"admin_key": "secret"}), (VllmServer, 8000, {})],
)
def test_the_adapters_are_created_as_on_the_page(server: type[EngineServer], port: int, names: dict[str, str]) -> None:
    async def story() -> None:
        model = Cluster(1).engines["rollout-0"]
        present = server(model)
        await present.start()
        code = block("python", f"http://rollout-0:{port}", "replicas = [").replace(
            f"http://rollout-0:{port}", present.url
        )
        (replica,) = (await executed(code, **names))["replicas"]
        assert replica.ranks == 8
        async with WeightUpdate([replica], version="v1", timeouts=PATIENT) as update:
            await update.load("v1")
        assert set(model.holds.values()) == {"v1"}
        await present.stop()

    run(story())


@pytest.mark.parametrize(("name", "server"), [("SglangTrainer", SglangServer), ("VllmTrainer", VllmServer)])
def test_the_trainers_send_every_tensor_and_leave(
    name: str, server: type[EngineServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    left: list[Any] = []
    meetings: list[Any] = []

    def init_custom_process_group(**meeting: Any) -> str:
        meetings.append((meeting["store"], meeting["world_size"], meeting["rank"], meeting["backend"]))
        return "group"

    class Communicator:
        def broadcast(self, tensor: str, src: int) -> None:
            assert src == 0
            sent.append(tensor)

        def destroy(self) -> None:
            left.append("group")

    def trainer_init(meeting: dict[str, Any]) -> Communicator:
        address = f"tcp://{meeting['master_address']}:{meeting['master_port']}"
        meetings.append(((None, address), meeting["world_size"], 0, "nccl"))
        return Communicator()

    def store(address: str, port: int, world_size: int, is_master: bool, *, wait_for_workers: bool) -> Any:
        assert (port, world_size, is_master, wait_for_workers) == (0, 9, True, False)
        return SimpleNamespace(port=29500, at=f"tcp://{address}:29500")

    distributed = SimpleNamespace(
        TCPStore=store,
        PrefixStore=lambda prefix, store: (prefix, store.at),
        broadcast=lambda tensor, src, group: Communicator().broadcast(tensor, src),
        destroy_process_group=left.append,
    )
    doubles: dict[str, dict[str, Any]] = {
        "sglang.srt.utils.common": {"init_custom_process_group": init_custom_process_group},
        "torch": {"distributed": distributed},
        "vllm.distributed.weight_transfer.nccl_common": {"trainer_init": trainer_init},
    }
    for module, description in doubles.items():
        parts = module.split(".")
        for depth in range(1, len(parts) + 1):
            made = ModuleType(".".join(parts[:depth]))
            monkeypatch.setitem(sys.modules, made.__name__, made)
        made.__dict__.update(description)

    async def story() -> None:
        made = (await executed(block("python", f"class {name}:")))[name]
        trainer = made("127.0.0.1", {"a": "tensor a", "b": "tensor b"})
        group = await trainer.open_group(9)
        await trainer.leave_group(group)  # a group that was never complete
        group = await trainer.open_group(9)
        await trainer.join_group(group)
        await trainer.send(group, TENSORS)
        await trainer.leave_group(group)
        assert (sent, left) == (["tensor a", "tensor b"], ["group"])
        prefix = None if name == "VllmTrainer" else group.name
        assert meetings == [((prefix, f"tcp://{group.address}:{group.port}"), 9, 0, "nccl")]

    asyncio.run(story())


def test_the_gateway_starts_as_on_the_page_and_its_client_accepts_its_address(tmp_path: Path) -> None:
    words = shlex.split(block("sh", "understudy_rollout.gateway").replace("\\\n", ""))
    assert words[:3] == ["python", "-m", "understudy_rollout.gateway"]
    result = options(words[3:])
    assert (result.engine, result.port) == ("http://127.0.0.1:30000", 8080)
    assert result.state_file == Path("/run/rollout/weights.json")

    async def story() -> None:
        async with guarded() as site:
            code = block("python", 'Gateway("http://rollout-0:8080"').replace("http://rollout-0:8080", site.url)
            code = code.replace('Replica("rollout-0"', 'replica = Replica("rollout-0"')
            replica: Replica = (await executed(code, Replica=Replica, token=TOKEN))["replica"]
            assert isinstance(replica.engine, SglangEngine)
            assert isinstance(replica.admission, Gateway)
            assert replica.engine.server.admission is replica.admission
            replica.engine = Cluster(1).engines["rollout-0"]
            async with WeightUpdate([replica], version="v1", timeouts=PATIENT) as update:
                await update.load("v1")
            assert (await site.state())["version"] == "v1"

    run(story())


def test_the_fields_of_the_job_exist() -> None:
    spec = yaml.safe_load(block("yaml", "rollouts:"))["spec"]
    job = {"template": {"spec": {"template": {"spec": {"containers": [{"name": "x", "image": "x"}]}}}}}
    spec["replicatedJobs"] = [{"name": name, "replicas": 1, **job} for name in ("trainer", "rollout")]
    rollouts = read_spec({"metadata": {"name": "rl"}, "spec": spec}).rollouts
    assert rollouts is not None
    assert (rollouts.groups, rollouts.on_failed_update) == (("rollout",), OnFailedUpdate.RESTART_JOB)
    assert rollouts.gateway is not None
    assert rollouts.gateway.engine_port == 30000


def test_workers_find_their_replicas_as_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    values = {"job": "rl", "domain": "rl", "rollouts": {"rollout": 2}, "gatewayPort": 8080}
    monkeypatch.setenv("UNDERSTUDY_ROLLOUTS", json.dumps(values))
    monkeypatch.setenv("UNDERSTUDY_ROLLOUT_TOKEN_FILE", str(token))
    code = block("python", "replicas_of_this_job(SglangEngine, ranks=8)").partition("...")[0]
    # The module reads it when it is imported: each worker has its own value.
    code = code.replace("ranks=8)", "ranks=8, environment=environment)")
    replicas = asyncio.run(executed(code, environment=os.environ))["replicas"]
    assert [replica.name for replica in replicas] == ["rl-rollout-0", "rl-rollout-1"]


def test_verls_manager_is_at_the_path_of_the_page() -> None:
    words = block("sh", "verl.trainer.main_ppo")
    found = re.search(r"checkpoint_manager_class=(\w+)\.(\w+)", words)
    assert found is not None
    example = CHECKOUT / "examples/rl" / f"{found[1]}.py"
    assert f"class {found[2]}(CheckpointEngineManager):" in example.read_text()

"""Defaults that a trainer container implies."""

from typing import Any

import pytest

from understudy_operator.plan.facts.trainer import restarts_of_torchrun, workers_per_pod


def trainer(command: str, **fields: Any) -> dict[str, Any]:
    return {"name": "trainer", "command": command.split(" "), **fields}


def with_limits(command: str, **limits: object) -> dict[str, Any]:
    return trainer(command, resources={"limits": {name.replace("__", "/"): text for name, text in limits.items()}})


@pytest.mark.parametrize(
    ("container", "workers"),
    [
        (trainer("torchrun --nproc-per-node=4 train.py"), 4),
        (trainer("torchrun", args=["--nproc_per_node", "4", "train.py"]), 4),
        (trainer("torchrun train.py", env=[{"name": "PET_NPROC_PER_NODE", "value": "2"}]), 2),
        (with_limits("torchrun --nproc-per-node=4 train.py", **{"nvidia.com__gpu": "8"}), 4),
        (with_limits("torchrun --nproc-per-node=gpu train.py", **{"nvidia.com__gpu": "8"}), 8),
        (with_limits("torchrun --nproc-per-node=$N train.py", **{"amd.com__gpu": 8, "memory": "9Gi"}), 8),
        (with_limits("python train.py", **{"nvidia.com__gpu": "8"}), 8),
        (with_limits("python train.py --nproc-per-node 2", **{"habana.ai__gaudi": "8"}), 8),
        (with_limits("python train.py", cpu="8", memory="1Gi", rdma__hca="4"), 1),
        (with_limits("python train.py", **{"nvidia.com__gpu": "100000"}), 128),
        (with_limits("python train.py", **{"nvidia.com__gpu": "0"}), 1),
        (trainer("torchrun --nproc-per-node=0 train.py"), 1),
        (trainer("torchrun train.py", resources=None, env=None), 1),
        (trainer("python train.py"), 1),
        ({}, 1),
    ],
)
def test_workers_per_pod_are_torchruns_number_or_one_for_each_device(container: dict[str, Any], workers: int) -> None:
    assert workers_per_pod(container) == workers


def test_torchruns_restarts_count_if_they_are_a_number() -> None:
    assert restarts_of_torchrun(trainer("torchrun --max-restarts 3 train.py")) == 3
    assert restarts_of_torchrun(trainer("torchrun train.py")) is None
    assert restarts_of_torchrun({}) is None

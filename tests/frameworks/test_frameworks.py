"""Each framework's own script loses a worker and a node, and ends with the losses of an undisturbed run."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.machine import facts
from benchmarks.report import commit
from tests.frameworks.cases import CASES, Case
from tests.frameworks.conftest import FILE
from tests.frameworks.results import Result, write_result
from tests.frameworks.training import FORK_SERVER, LIMIT_S, SCRIPTS, Training

pytestmark = pytest.mark.timeout(900)

#: Steps after a start, before the next fault: more than from one checkpoint to the next.
#: Steps: two checkpoints. One that is written in the background is complete when the next one begins.
BEFORE_FAULT = 25


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_training_resumes_after_the_loss_of_a_worker_and_of_a_node(
    case: Case, environment: Path, checkpoints: Path, expected: Callable[[Case], dict[int, float]], speed: float
) -> None:
    losses = expected(case)
    last = max(losses)
    with Training(case, checkpoints, environment) as training:
        # given a training that has checkpoints, and a spare
        training.wait_for_steps(BEFORE_FAULT)
        start = training.start_method()
        if start == FORK_SERVER:
            training.wait_for_spare()
            if case.learns:
                training.wait_for_learned()
        # when a worker is killed
        worker = training.lose("1")
        # and then a node: the one of rank 0
        training.wait_for_steps(BEFORE_FAULT)
        node = training.lose(training.holder_of("0"))
        # then the training completes
        assert training.wait_for_end() == 0, training.text[-6000:]
    assert training.steps[-1].step == last
    # and each time it has resumed from its newest checkpoint, or from the one before if that one was not complete
    assert training.starts[0].step == 0
    for recovery in (worker, node):
        assert recovery.resumed_at > 0
        assert recovery.last_step - 2 * case.save_every < recovery.resumed_at <= recovery.last_step + 1
    # and each step has the loss of an undisturbed run
    for step in training.steps:
        assert step.loss == pytest.approx(losses[step.step], rel=case.within), f"step {step.step}"
    result = Result(
        case=case.name,
        versions=", ".join(f"{name} {version_of(name, environment)}" for name in case.packages),
        worker_s=worker.seconds,
        node_s=node.seconds,
        start=start,
        changed=case.changed,
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        commit=commit(),
        cores=facts()["cores"],
        speed=speed,
    )
    write_result(FILE, result, [one.name for one in CASES])


def test_lightning_rejects_fsdp_without_a_gpu(environment: Path, checkpoints: Path) -> None:
    """docs/reference/frameworks.md says so. If this fails, add a case."""
    command = [str(environment / "bin" / "python"), str(SCRIPTS / "lightning_train.py"), str(checkpoints), "fsdp"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 1
    assert "requires a GPU accelerator" in done.stderr


def version_of(package: str, environment: Path) -> str:
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run(
        [environment / "bin" / "python", "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()

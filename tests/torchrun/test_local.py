"""`understudy local -- torchrun …` trains one job, whose workers are forks. Real processes and real torch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.torchrun.job import LIMIT_S
from tests.torchrun.local_run import Start, kill, local_runs
from tests.unit.launcher.fake_sidecar import wait_for

pytestmark = pytest.mark.timeout(1200)

#: Appends a line for the start and for each of its first steps in a round, until the file `end` exists.
SCRIPT = """
import os, time
import torch, torch.distributed as dist
from understudy_torch import step
def note(event):
    with open(os.environ["HERE"] + "/notes", "a") as notes:
        notes.write(f"{event} {os.environ['UNDERSTUDY_ROUND']} {os.environ['RANK']} {time.time()} {text}\\n")
parent = open(f"/proc/{os.getppid()}/comm").read().strip()
text = f"{os.environ['WORLD_SIZE']} {os.environ['LOCAL_WORLD_SIZE']} {os.environ['TORCHELASTIC_RUN_ID']} {parent}"
note("start")
dist.init_process_group("gloo")
n = 0
while True:
    end = torch.tensor([float(os.path.exists(os.environ["HERE"] + "/end"))])
    dist.all_reduce(end)
    n += 1
    step(n)
    if n == 1: note("step")
    if end.item(): break
    time.sleep(0.02)
dist.destroy_process_group()
"""


@pytest.fixture
def start(tmp_path: Path, torch: Path) -> Iterator[Start]:
    with local_runs(tmp_path, torch, SCRIPT) as begin:
        yield begin


def notes(folder: Path, event: str, number: int, count: int) -> list[list[str]]:
    """The fields of the notes of a round, once there are so many."""

    def found() -> list[list[str]]:
        lines = (folder / "notes").read_text().splitlines() if (folder / "notes").exists() else []
        fields = [line.split() for line in lines if line.startswith(event)]
        return [each for each in fields if each[1].endswith(f".{number}")]

    wait_for(lambda: len(found()) >= count, lambda: (folder / "log").read_text(), LIMIT_S)
    return found()


def test_one_job_trains_and_a_killed_worker_steps_again_without_imports(start: Start, tmp_path: Path) -> None:
    # given two members of two workers each, by the option of torchrun alone
    run = start("--nodes", "2", "--spares", "0", "--", "torchrun", "--nproc-per-node", "2", "{train}")
    first = notes(tmp_path, "step", 0, 4)
    assert {fields[2] for fields in first} == {"0", "1", "2", "3"}
    assert {tuple(fields[4:]) for fields in first} == {("4", "2", "local", "zygote")}
    # when a worker is killed
    assert "killed the worker of rank 3" in kill("3")
    # then all four make their next steps, as forks again
    second = notes(tmp_path, "step", 1, 4)
    assert {tuple(fields[4:]) for fields in second} == {("4", "2", "local", "zygote")}
    # and the job succeeds as one
    (tmp_path / "end").touch()
    assert run.wait(LIMIT_S) == 0
    assert "Completed" in (tmp_path / "log").read_text()


def test_an_option_that_needs_torchrun_trains_one_job_too(start: Start, tmp_path: Path) -> None:
    run = start("--nodes", "2", "--spares", "0", "--", "torchrun", "--run-path", "{train}")
    first = notes(tmp_path, "step", 0, 2)
    assert {tuple(fields[4:6]) for fields in first} == {("2", "1")}
    (tmp_path / "end").touch()
    assert run.wait(LIMIT_S) == 0


def test_workers_with_a_hidden_torchrun_train_nothing_and_the_run_fails_with_the_reason(
    start: Start, tmp_path: Path
) -> None:
    hidden = "import os; os.execvp('torch' + 'run', ['torchrun', os.environ['HERE'] + '/train.py'])"
    run = start("--nodes", "2", "--spares", "0", "--", sys.executable, "-c", hidden)
    # all ranks must fail before the pause between two rounds ends; the pause grows with each round
    assert run.wait(2 * LIMIT_S) == 1
    assert not (tmp_path / "notes").exists()
    assert "starts a rendezvous of its own" in (tmp_path / "log").read_text()

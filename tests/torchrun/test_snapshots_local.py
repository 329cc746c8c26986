"""Snapshots in local mode: forked and new workers, and those of a torchrun, restore the newest common step."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.torchrun.job import LIMIT_S
from tests.torchrun.local_run import Start, kill, local_runs
from tests.unit.launcher.fake_sidecar import wait_for

pytestmark = pytest.mark.timeout(400)

#: Appends a line for the start of each round, and for each step. The state has the sum of all steps.
SCRIPT = """
import os, time
import torch, torch.distributed as dist
from understudy_torch import snapshot, step
dist.init_process_group("gloo")
state = snapshot.load()
origin = "storage:" + snapshot.reason() if state is None else "memory"
state = state or {"step": 0, "sum": torch.zeros(1000)}
notes = open(f"{os.environ['HERE']}/notes-{os.environ['RANK']}", "a", buffering=1)
def note(event):
    number = os.environ["UNDERSTUDY_ROUND"].split(".")[2]
    notes.write(f"{event}|{number}|{state['step']}|{state['sum'].unique().tolist()}|{origin}\\n")
note("start")
while True:
    end = torch.tensor([float(os.path.exists(os.environ["HERE"] + "/end"))])
    dist.all_reduce(end)
    state = {"step": state["step"] + 1, "sum": state["sum"] + state["step"] + 1}
    note("step")
    assert snapshot.save(state["step"], state)
    step(state["step"])
    if end.item():
        break
    time.sleep(0.05)
dist.destroy_process_group()
"""


@pytest.fixture
def start(tmp_path: Path, torch: Path) -> Iterator[Start]:
    """Two members of two workers, with memory for snapshots."""
    with local_runs(tmp_path, torch, SCRIPT, "--nodes", "2", "--nproc", "2", "--snapshots", "1Mi") as begin:
        yield begin


def notes(folder: Path, number: int, steps: int) -> list[list[list[str]]]:
    """By rank: the fields of the notes of a round, once each rank has made so many steps in it."""

    def found() -> list[list[list[str]]]:
        paths = [folder / f"notes-{rank}" for rank in range(4)]
        texts = [path.read_text() if path.exists() else "" for path in paths]
        fields = [[line.split("|") for line in text.split("\n")[:-1]] for text in texts]
        return [[each for each in of_rank if each[1] == str(number)] for of_rank in fields]

    wait_for(lambda: all(len(of_rank) > steps for of_rank in found()), lambda: (folder / "log").read_text(), LIMIT_S)
    return found()


@pytest.mark.parametrize(
    "words",
    [
        ("--spares", "0", "--", sys.executable, "-u", "{train}"),
        ("--spares", "0", "--no-zygote", "--", sys.executable, "-u", "{train}"),
        ("--spares", "0", "--", "torchrun", "--nproc-per-node", "2", "{train}"),
    ],
    ids=["forks", "new processes", "torchrun"],
)
def test_a_killed_worker_costs_at_most_one_step(start: Start, tmp_path: Path, words: tuple[str, ...]) -> None:
    # given a training of four ranks
    run = start(*words)
    first = notes(tmp_path, 0, 4)
    assert {of_rank[0][4] for of_rank in first} == {"storage:no pod has a snapshot"}
    # when a worker is killed
    kill("3")
    # then all ranks restore the same step, at most one before the newest, with its content
    second = notes(tmp_path, 1, 4)
    newest = max(int(of_rank[-1][2]) for of_rank in notes(tmp_path, 0, 4))
    ((step, content, origin),) = {(of_rank[0][2], of_rank[0][3], of_rank[0][4]) for of_rank in second}
    assert int(step) in (newest - 1, newest)
    assert (content, origin) == (f"[{sum(range(int(step) + 1)):.1f}]", "memory")
    # and the job succeeds
    (tmp_path / "end").touch()
    assert run.wait(LIMIT_S) == 0


def test_a_lost_member_costs_at_most_two_steps(start: Start, tmp_path: Path) -> None:
    # given a spare
    run = start("--spares", "1", "--", sys.executable, "-u", "{train}")
    notes(tmp_path, 0, 20)
    # when all processes of a member are killed
    kill("node-1")
    # then all ranks restore the same step, those of the spare from a copy
    second = notes(tmp_path, 1, 4)
    newest = max(int(of_rank[-1][2]) for of_rank in notes(tmp_path, 0, 4))
    ((step, content, origin),) = {(of_rank[0][2], of_rank[0][3], of_rank[0][4]) for of_rank in second}
    assert newest - 2 <= int(step) <= newest
    assert (content, origin) == (f"[{sum(range(int(step) + 1)):.1f}]", "memory")
    # and each later step has the content of an undisturbed run
    assert {(x[2], x[3]) for of_rank in second for x in of_rank} <= {
        (str(n), f"[{sum(range(n + 1)):.1f}]") for n in range(int(step), int(step) + 2000)
    }
    (tmp_path / "end").touch()
    assert run.wait(LIMIT_S) == 0


def test_without_copies_a_lost_member_leads_to_storage(start: Start, tmp_path: Path) -> None:
    run = start("--spares", "1", "--snapshot-copies", "0", "--", sys.executable, "-u", "{train}")
    notes(tmp_path, 0, 2)
    kill("node-1")
    second = notes(tmp_path, 1, 1)
    (origin,) = {of_rank[0][4] for of_rank in second}
    assert origin.endswith(" has no snapshot of its ranks")
    (tmp_path / "end").touch()
    assert run.wait(LIMIT_S) == 0

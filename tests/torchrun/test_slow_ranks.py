"""A slow rank of a real training is named, without a restart; ordinary saves and evaluations name none.

Real processes, real torch and gloo.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.torchrun.job import LIMIT_S
from tests.torchrun.local_run import Start, local_runs
from tests.unit.launcher.fake_sidecar import wait_for

pytestmark = pytest.mark.timeout(1200)

#: Steps of about 0.1 s until the file `end` exists. Rank 0 saves each tenth step, and all evaluate each 50th. The rank
#: in SLOW takes 0.1 s more in each step. The windows that are compared end at the steps in the file `windows`.
SCRIPT = """
import os, time
import torch, torch.distributed as dist
from understudy_torch import collectives, step
here, rank, slow = os.environ["HERE"], int(os.environ["RANK"]), int(os.environ["SLOW"])
publish = collectives.CollectiveReports._publish
def note(reports, number, step_ns, steps):
    publish(reports, number, step_ns, steps)
    with open(here + "/windows", "a") as file:
        file.write(f"{rank} {number}\\n")
collectives.CollectiveReports._publish = note
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
n = 0
while True:
    time.sleep(0.2 if rank == slow else 0.1)
    optimizer.zero_grad()
    model(torch.ones(8, 64)).sum().backward()
    optimizer.step()
    end = torch.tensor([float(os.path.exists(here + "/end"))])
    dist.all_reduce(end)
    n += 1
    step(n)
    if rank == 0 and n % 10 == 0: time.sleep(0.5)
    if n % 50 == 0: time.sleep(1)
    if end.item(): break
dist.destroy_process_group()
"""


@pytest.fixture
def start(tmp_path: Path, torch: Path, request: pytest.FixtureRequest) -> Iterator[Start]:
    with local_runs(tmp_path, torch, SCRIPT, SLOW=str(request.param)) as begin:
        yield begin


def log(folder: Path) -> str:
    return (folder / "log").read_text()


def windows(folder: Path) -> list[int]:
    """The windows that all four ranks have reported, by their last step."""
    lines = (folder / "windows").read_text().splitlines() if (folder / "windows").exists() else []
    numbers = [int(line.split()[1]) for line in lines]
    return sorted(number for number in set(numbers) if numbers.count(number) == 4)


@pytest.mark.parametrize("start", [2], indirect=True)
def test_a_slow_rank_is_named_with_its_pod_and_its_training_continues(start: Start, tmp_path: Path) -> None:
    # given two members of two workers each, one of which takes 0.1 s more in each of its steps of 0.1 s
    run = start("--nodes", "2", "--spares", "0", "--nproc", "2", "--", sys.executable, "{train}")
    # then it is named
    wait_for(lambda: "SlowRank" in log(tmp_path), lambda: log(tmp_path), LIMIT_S)
    (line,) = [line for line in log(tmp_path).splitlines() if "SlowRank" in line]
    assert "SlowRank: rank 2 (pod " in line
    assert "times as long: it entered the collectives of the last ten steps 0.1" in line
    # and the training goes on to its end in its first round
    (tmp_path / "end").touch()
    assert run.wait(LIMIT_S) == 0
    assert "round 0 started" in log(tmp_path)
    assert "FaultDetected" not in log(tmp_path)


@pytest.mark.parametrize("start", [-1], indirect=True)
def test_saves_and_evaluations_name_no_rank(start: Start, tmp_path: Path) -> None:
    # given a training whose rank 0 saves each tenth step, and whose ranks evaluate
    run = start("--nodes", "2", "--spares", "0", "--nproc", "2", "--", sys.executable, "{train}")
    # when all ranks have reported three windows
    wait_for(lambda: len(windows(tmp_path)) >= 3, lambda: log(tmp_path), LIMIT_S)
    (tmp_path / "end").touch()
    assert run.wait(LIMIT_S) == 0
    # then no rank is named
    assert "SlowRank" not in log(tmp_path)

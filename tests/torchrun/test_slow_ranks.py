"""A slow rank of a real training is named, without a restart; ordinary saves and evaluations name none.

Real processes, real torch and gloo.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.torch_install import torch_version
from tests.torchrun.job import LIMIT_S, Job, token
from tests.torchrun.local_run import Start, local_runs
from tests.torchrun.windows import NOTE_WINDOWS, windows
from tests.unit.launcher.fake_sidecar import wait_for
from understudy_protocol.launcher import CollectiveTimes

pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.skipif(torch_version().startswith("2.6."), reason="torch 2.6 does not record the collectives of gloo"),
]

#: Steps of about 0.1 s until the file `end` exists. Rank 0 saves each tenth step, and all evaluate each 50th. The rank
#: in SLOW takes 1 s more in each step, which is long beside the noise of a busy machine. The windows that are compared
#: end at the steps in the file `windows`.
SCRIPT = f"""{NOTE_WINDOWS}
import time
import torch, torch.distributed as dist
from understudy_torch import step
here, rank, slow = os.environ["HERE"], int(os.environ["RANK"]), int(os.environ["SLOW"])
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
n = 0
while True:
    time.sleep(1.1 if rank == slow else 0.1)
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


@pytest.mark.nightly  # each make test: unit/sidecar/membership/test_slow_ranks.py
@pytest.mark.parametrize("start", [2], indirect=True)
def test_a_slow_rank_is_named_with_its_pod_and_its_training_continues(start: Start, tmp_path: Path) -> None:
    # given two members of two workers each, one of which takes 1 s more in each of its steps of 0.1 s
    run = start("--nodes", "2", "--spares", "0", "--nproc", "2", "--", sys.executable, "{train}")
    # then it is named
    wait_for(lambda: "SlowRank" in log(tmp_path), lambda: log(tmp_path), LIMIT_S)
    (line,) = [line for line in log(tmp_path).splitlines() if "SlowRank" in line]
    assert "SlowRank: rank 2 (pod " in line
    assert re.search(r"times as long: it entered the collectives of the last ten steps \d\.\d\d s after", line)
    # and the training goes on to its end in its first round
    (tmp_path / "end").touch()
    assert run.wait(LIMIT_S) == 0
    assert "round 0 started" in log(tmp_path)
    assert "FaultDetected" not in log(tmp_path)


@pytest.mark.nightly  # each make test: unit/sidecar/membership/test_slow_ranks.py
@pytest.mark.parametrize("start", [-1], indirect=True)
def test_saves_and_evaluations_name_no_rank(start: Start, tmp_path: Path) -> None:
    # given a training whose rank 0 saves each tenth step, and whose ranks evaluate
    run = start("--nodes", "2", "--spares", "0", "--nproc", "2", "--", sys.executable, "{train}")
    # when all ranks have reported three windows
    wait_for(lambda: len(windows(tmp_path, ranks=4)) >= 3, lambda: log(tmp_path), LIMIT_S)
    (tmp_path / "end").touch()
    assert run.wait(LIMIT_S) == 0
    # then no rank is named
    assert "SlowRank" not in log(tmp_path)


#: Until rank 0 finds the file `stop`.
OF_TORCHRUN = """
import os, time
import torch, torch.distributed as dist
from understudy_torch import step
dist.init_process_group("gloo")
n = 0
while True:
    stop = torch.tensor([float(os.environ["RANK"] == "0" and os.path.exists(os.environ["HERE"] + "/stop"))])
    dist.all_reduce(stop)
    if stop.item(): break
    n += 1
    step(n)
    time.sleep(0.02)
dist.destroy_process_group()
"""


def test_workers_of_a_stock_torchrun_report_the_same_collectives(job: Job) -> None:
    # given two members whose torchrun starts the workers itself
    first, second = job.start(OF_TORCHRUN), job.start(OF_TORCHRUN)
    job.join(first, second)
    job.round(0, first, second)
    # then both report the window that ends with their 20th step
    reports = [member.sidecar.expect(CollectiveTimes) for member in (first, second)]
    assert [(report.token, report.local_rank, report.window) for report in reports] == [(token(0), 0, 20)] * 2
    assert reports[0].collectives == reports[1].collectives
    assert len(set(reports[0].collectives)) == 10, "one in each step"
    assert all(0 < delay_ns < 10**9 * LIMIT_S for report in reports for delay_ns in report.delays_ns)

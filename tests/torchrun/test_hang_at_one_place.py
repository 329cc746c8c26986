"""`understudy local why` names the rank of a hang whose stacks are equal, from the collectives of the ranks."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cluster.torch_install import torch_version
from tests.torchrun import twelve_faults
from tests.torchrun.local_run import UNDERSTUDY, run_name
from tests.torchrun.twelve_faults import LocalFault

pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.nightly,  # a busy machine makes times without a step by itself
    pytest.mark.skipif(torch_version().startswith("2.6."), reason="torch 2.6 does not record the collectives of gloo"),
]

FAULT = LocalFault(
    "hang at one place",
    "rank 2 calls the all-reduce of another group, in the line in which the other ranks wait",
    (2,),
    "Hang",
    "ranks 0-1, 3 wait in all_reduce 5 of group 0 (default_pg), and it has not entered it: rank 2 waits in all_reduce "
    "1 of group 1",
    "average",
    ("--step-timeout", "4"),
)


def test_why_names_the_rank_and_the_collective(tmp_path: Path, torch: Path) -> None:
    # given a training of four ranks that hang in one line
    with twelve_faults.broken(FAULT, tmp_path, torch) as run:
        # when the hang has been detected
        answer = twelve_faults.explained(FAULT, run, tmp_path)
        stacks = subprocess.run([*UNDERSTUDY, "stacks", run_name()], capture_output=True, text=True, check=True).stdout
    # then `why` names the rank that has not entered the collective in which the others wait
    assert answer.is_right(FAULT), answer
    # and the stacks are equal
    assert "ranks 0-3" in stacks

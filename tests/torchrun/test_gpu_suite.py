"""The GPU suite (`make gpu`) itself, on a machine without a GPU: its launcher, its rounds and its table."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.paths import CHECKOUT

pytestmark = pytest.mark.timeout(600)


def suite(torch: Path, *options: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": f"operator:sidecar:{torch}"}
    command = [sys.executable, "-m", "tests.gpu", *options]
    return subprocess.run(command, cwd=CHECKOUT, env=env, capture_output=True, text=True, check=False, timeout=300)


def test_without_a_gpu_the_suite_reports_that_in_one_line(torch: Path) -> None:
    done = suite(torch)
    assert (done.returncode, done.stdout) == (0, "skipped: torch finds no NVIDIA GPU on this machine\n")


@pytest.mark.nightly  # it takes 40 s; a machine with a GPU runs it by make gpu
def test_the_cases_that_need_no_gpu_pass_on_the_cpu(torch: Path) -> None:
    done = suite(torch, "--device", "cpu")
    results = [line.split()[:2] for line in done.stdout.splitlines()]
    assert results == [["forks", "ok"], ["memory", "ok"], ["two_ranks", "ok"]], done.stdout + done.stderr
    assert done.returncode == 0

"""examples/rl with real processes, a torch model and gloo: no answer ever has tokens of two versions."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks.child import CHECKOUT
from tests.cluster import Cluster

LIMIT_S = 240


def run(*arguments: str) -> str:
    command = [sys.executable, str(CHECKOUT / "examples/rl/local.py"), "--updates", "3", *arguments]
    env = os.environ | {"PYTHONPATH": f"{CHECKOUT / 'sidecar'}:{Cluster().torch_path}"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    assert "MIXED" not in done.stdout
    return done.stdout


@pytest.mark.timeout(LIMIT_S + 10)
def test_each_version_is_asked_until_the_next_one_comes() -> None:
    told = run()
    for version in (1, 2, 3):
        assert f"update {version} whole | rollout-0=Fresh:{version} rollout-1=Fresh:{version}" in told
    assert "answers, version 1: " in told
    assert "answers, version 3: " in told


@pytest.mark.timeout(LIMIT_S + 10)
def test_when_a_server_dies_in_a_transfer_nobody_is_asked_any_more() -> None:
    told = run("--kill", "rollout")
    assert "update 1 whole" in told
    assert "update 2 failed" in told
    assert "update 3 failed" in told
    assert "rollout-0=Uncertain: rollout-1=Uncertain:" in told
    assert "answers, version 1: " in told
    assert "answers, version 2" not in told


@pytest.mark.timeout(LIMIT_S + 10)
def test_when_the_trainer_dies_in_a_transfer_nobody_is_asked_any_more() -> None:
    told = run("--kill", "trainer")
    assert "update 1 whole" in told
    assert "update 2" not in told
    assert "answers, version 1: " in told
    assert "answers, version 2" not in told


@pytest.mark.timeout(LIMIT_S + 10)
def test_when_a_trainer_that_was_replaced_thaws_nobody_is_asked_any_more() -> None:
    told = run("--kill", "freeze")
    # its successor has updated the servers, and they were asked
    assert "update 3 whole | rollout-0=Fresh:3 rollout-1=Fresh:3" in told
    assert "answers, version 3: " in told
    # and it is refused
    assert "update 2 failed: " in told
    assert "rollout-0=Uncertain: rollout-1=Uncertain:" in told

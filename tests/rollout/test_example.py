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
def test_each_version_answers_until_the_next_one_arrives() -> None:
    output = run()
    for version in (1, 2, 3):
        assert f"update {version} whole | rollout-0=Fresh:{version} rollout-1=Fresh:{version}" in output
    assert "answers, version 1: " in output
    assert "answers, version 3: " in output


@pytest.mark.timeout(LIMIT_S + 10)
def test_after_a_server_dies_in_a_transfer_no_server_gets_requests() -> None:
    output = run("--kill", "rollout")
    assert "update 1 whole" in output
    assert "update 2 failed" in output
    assert "update 3 failed" in output
    assert "rollout-0=Uncertain: rollout-1=Uncertain:" in output
    assert "answers, version 1: " in output
    assert "answers, version 2" not in output


@pytest.mark.timeout(LIMIT_S + 10)
def test_after_the_trainer_dies_in_a_transfer_no_server_gets_requests() -> None:
    output = run("--kill", "trainer")
    assert "update 1 whole" in output
    assert "update 2" not in output
    assert "answers, version 1: " in output
    assert "answers, version 2" not in output


@pytest.mark.timeout(LIMIT_S + 10)
def test_after_a_replaced_trainer_thaws_no_server_gets_requests() -> None:
    output = run("--kill", "freeze")
    # its successor has updated the servers, and they have answered
    assert "update 3 whole | rollout-0=Fresh:3 rollout-1=Fresh:3" in output
    assert "answers, version 3: " in output
    # and the replaced trainer is refused
    assert "update 2 failed: " in output
    assert "rollout-0=Uncertain: rollout-1=Uncertain:" in output

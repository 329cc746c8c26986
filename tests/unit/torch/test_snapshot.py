"""snapshot.load() and save() outside a job: they do nothing, need no torch, and give the reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from understudy_protocol import pod

SCRIPT = """
from understudy_torch import snapshot
print(snapshot.load(), snapshot.save(1, {}), "|", snapshot.reason())
"""
SIDECAR = Path(__file__).resolve().parents[3] / "sidecar"


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {pod.ENV_SNAPSHOT_FD: "0", pod.ENV_ROUND: "0.1.2"},  # stdin is no memory
        {pod.ENV_SNAPSHOT_FD: "999", pod.ENV_ROUND: "0.1.2"},
        {pod.ENV_SNAPSHOT_FD: "many", pod.ENV_ROUND: "0.1.2"},
        {pod.ENV_SNAPSHOT_FD: "3", pod.ENV_ROUND: "2"},
    ],
)
def test_without_memory_they_do_nothing_and_give_the_reason(variables: dict[str, str]) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("UNDERSTUDY_")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**env, **variables, "PYTHONPATH": str(SIDECAR)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == (
        "None False | this process is no worker of a job with spec.snapshots, or its pod has no memory for snapshots\n"
    )
    assert done.stderr == ""

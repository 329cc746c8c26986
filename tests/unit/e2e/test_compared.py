"""A comparison waits until status reports the end of the recovery, and records the statuses until then."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import injected_plain, plain, test_hang, test_sigterm
from tests.e2e.compared import compared, fault_of
from tests.e2e.plain import STEP, STEP_FILE, steps_in
from tests.e2e.truth import Raw, Step, Steps

POD: Raw = {
    "metadata": {"name": "ddp-1", "annotations": {"understudy.dev/group-rank": "1"}},
    "spec": {"nodeName": "node3"},
}
COUNTERS: Raw = {"round": 0, "restarts": 0, "coordinator": {"epoch": 1, "term": 1, "podUID": "uid-0"}}


class RecordedJob:
    """A job whose status and steps the test sets."""

    def __init__(self) -> None:
        self.steps: list[Step] = [Step((1, 1, 0), time.time())]
        self.reported: Raw = {"phase": "Running", **COUNTERS}

    def status(self) -> Raw:
        return self.reported

    def reported_steps(self) -> Steps:
        return {"ddp-0": self.steps}

    def lose_pod(self) -> None:
        """The operator reports the loss, and the recovery has not ended."""
        cause = {"pod": "ddp-1", "node": "node3", "rank": 1}
        entry: Raw = {"fault": "Pod", "cause": cause, "detectedAt": datetime.now(UTC).isoformat()}
        self.reported = {**self.reported, "phase": "Recovering", "recoveries": [entry], "lastRecovery": entry}

    def recover(self, *, counted: bool = True, **changes: Any) -> None:
        """Its pod is lost, and the next round makes its first step."""
        now = time.time()
        first = Step((1, 1, 1), now)
        at = datetime.fromtimestamp(now, UTC).isoformat()
        cause = {"pod": "ddp-1", "node": "node3", "rank": 1}
        entry: Raw = {"fault": "Pod", "strategy": "SpareSwap", "cause": cause, "detectedAt": at, "resumedAt": at}
        entry |= {"pauseSeconds": now - self.steps[-1].at, **changes}
        self.steps.append(first)
        counts = {"round": 1, "recoveriesByStrategy": {"spareSwap": 1 if counted else 0}}
        self.reported = {**self.reported, **counts, "phase": "Running", "recoveries": [entry], "lastRecovery": entry}


def test_a_true_status_is_accepted_and_its_entry_is_known_afterwards() -> None:
    job = RecordedJob()
    with compared(job, fault_of(POD, "Pod", "SpareSwap")) as comparison:
        # given an operator that reports the loss at once, and the end of the recovery a moment later
        job.lose_pod()
        threading.Timer(0.5, job.recover).start()
    assert comparison.recovery["cause"]["pod"] == "ddp-1"
    assert comparison.paused_s == job.reported["lastRecovery"]["pauseSeconds"]
    assert {sample.phase for sample in comparison.samples} >= {"Recovering"}


def test_a_false_status_fails_with_the_field_that_is_false() -> None:
    job = RecordedJob()
    with (
        pytest.raises(AssertionError, match=r"pauseSeconds: expected \S+ ± 0.200, status reports 5.0"),
        compared(job, fault_of(POD, "Pod", "SpareSwap")),
    ):
        job.recover(pauseSeconds=5.0)


def test_a_counter_that_has_not_grown_fails() -> None:
    job = RecordedJob()
    with (
        pytest.raises(AssertionError, match=r"recoveriesByStrategy: expected {'spareSwap': 1} more than before"),
        compared(job, fault_of(POD, "Pod", "SpareSwap")),
    ):
        job.recover(counted=False)


def test_an_error_of_the_body_is_not_hidden_by_the_comparison() -> None:
    with pytest.raises(ZeroDivisionError), compared(RecordedJob(), None):
        raise ZeroDivisionError


@pytest.mark.parametrize(
    "script", [plain.STEPS, plain.FAILING, injected_plain.STEPS, test_hang.TOGETHER, test_sigterm.SAVES]
)
def test_the_scripts_of_the_jobs_compile(script: str) -> None:
    compile(script, "script", "exec")


def test_the_steps_that_a_script_writes_are_read_with_their_round_and_time(tmp_path: Path) -> None:
    # given a script as the tests' jobs run it
    file = tmp_path / "steps"
    script = STEP.replace(STEP_FILE, str(file)) + "step(1)\nstep(2)\n"
    env = {**os.environ, "UNDERSTUDY_ROUND": "7.2.3", "PYTHONPATH": "sidecar"}
    before = time.time()
    subprocess.run([sys.executable, "-c", script], env=env, check=True, timeout=20)
    # then both steps are found
    first, second = steps_in(file.read_text())
    assert first.round == second.round == (7, 2, 3)
    assert before <= first.at <= second.at <= time.time()

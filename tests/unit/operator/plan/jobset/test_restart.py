"""The entries of a restart of the whole job in status."""

from dataclasses import replace

from tests.unit.operator.given import (
    FAILED,
    a_job,
    a_recovery,
    a_snapshot,
    in_round,
    observed,
    status_of,
)
from understudy_operator.plan.facts.spec import FailurePolicy

JOB = a_job(status=in_round(3), spec={"failure": FailurePolicy(max_restarts=2)})
REASON = f"no rule applies, restart 1 of 2: {FAILED.message}"


def test_a_restart_is_a_recovery_with_its_reason():
    status = status_of(observed(JOB, snapshot=a_snapshot(number=3, closed=FAILED)))
    last = status["lastRecovery"]
    assert (last["strategy"], last["reason"], last["cause"]["message"]) == ("JobRestart", REASON, REASON)
    assert status["recoveriesByStrategy"] == {"jobRestart": 1}


def test_a_restart_ends_the_open_recovery_which_keeps_its_cause_and_reason():
    lasts = replace(a_recovery(), strategy=None, reason="pod a1 failed twice within 1 h")
    status = status_of(observed(JOB, snapshot=a_snapshot(number=3, closed=FAILED, recoveries=[lasts])))
    (last,) = status["recoveries"]
    assert last["strategy"] == "JobRestart"
    assert last["reason"] == f"pod a1 failed twice within 1 h; {REASON}"
    assert last["cause"]["pod"] == "a1"


def test_a_restart_loses_the_snapshots_in_memory():
    step = {"step": 9, "total": 1000, "at": "2026-01-01T00:00:01.000001Z"}
    snapshot = {"step": 8, "at": "2026-01-01T00:00:00.000001Z"}
    progress = step | {"snapshot": snapshot, "copiedSnapshot": snapshot}
    job = a_job(status=in_round(3) | {"progress": progress}, spec={"failure": FailurePolicy(max_restarts=2)})
    assert status_of(observed(job, snapshot=a_snapshot(number=3, closed=FAILED)))["progress"] == step

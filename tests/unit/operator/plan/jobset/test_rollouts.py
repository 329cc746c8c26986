"""Failed weight updates in status; scenarios/rollouts.yaml has more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.unit.operator.given import (
    FAILED,
    IMAGE,
    NOW,
    SUCCEEDED,
    a_group,
    a_job,
    a_recovery,
    a_snapshot,
    in_round,
    observed,
    status_of,
)
from understudy_operator.plan.facts.cluster_objects import ChildJob
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.spec import Action, FailurePolicy, FailureRule, RolloutsSpec, SuccessPolicy
from understudy_operator.plan.intents import DeleteJob
from understudy_operator.plan.jobset.rollouts import plan_rollout_restart
from understudy_operator.plan.reconcile import reconcile
from understudy_protocol import rollouts as wire
from understudy_protocol.enums import Fault, OnFailedUpdate
from understudy_protocol.observer import Cause

ROLLOUT = a_group("rollout", 2, 1)
FAILURE = wire.UpdateFailure("u1", "step-7", "rollout-1 is gone", 1, NOW - 1)
CAUSE = Cause(0, "a0", "node-a0", None, None, "rollout-1 is gone")


def a_child(index: int, *, ready: int = 1) -> ChildJob:
    name = f"llm-rollout-{index}"
    return ChildJob(
        f"uid-{name}", name, "rollout", index, attempt=0, job_attempt=0, desired_pods=1, active=1, ready=ready
    )


def given(
    received: wire.Rollouts | None, *, retries: int = 0, status: dict[str, Any] | None = None, **snapshot: Any
) -> Observed:
    group = a_group()
    rollouts = RolloutsSpec(("rollout",), OnFailedUpdate.RESTART_ROLLOUTS, retries)
    spec = {"replicated_jobs": (group, ROLLOUT), "rollouts": rollouts, "failure": FailurePolicy(3)}
    job = a_job(status=in_round(0, **(status or {})), spec=spec, groups=(group,))
    children = (a_child(0), a_child(1))
    return observed(job, snapshot=a_snapshot(rollouts=received, **snapshot), children=children)


def test_status_keeps_rollouts_while_no_coordinator_reports_them() -> None:
    assert "rollouts" not in status_of(given(None))
    before = {"fresh": 2, "updating": 0, "uncertain": 0, "version": "step-6"}
    assert status_of(given(None, status={"rollouts": before}))["rollouts"] == before


def test_a_failure_is_forgotten_when_the_next_update_begins() -> None:
    before = status_of(given(wire.Rollouts(0, 0, 2, "step-6", FAILURE, CAUSE), retries=1))
    assert before["rollouts"]["failure"]["consecutiveFailures"] == 1
    after = status_of(given(wire.Rollouts(0, 2, 0, "step-6"), retries=1, status={"rollouts": before["rollouts"]}))
    assert after["rollouts"] == {"fresh": 0, "updating": 2, "uncertain": 0, "version": "step-6"}


def test_a_replica_is_found_by_its_jobs_name_its_pods_or_the_hostname() -> None:
    def blocked(*names: str) -> list[str]:
        failure = wire.UpdateFailure("u1", "step-7", "no answer", 1, NOW - 1, names)
        again = plan_rollout_restart(given(wire.Rollouts(0, 0, 2, "", failure, CAUSE), retries=1))
        return [] if again is None else [view.name for view in again.jobs]

    assert blocked("llm-rollout-1") == ["llm-rollout-1"]
    assert blocked("llm-rollout-0-0") == ["llm-rollout-0"]
    assert blocked("llm-rollout-1-0.llm.research.svc", "llm-rollout-0") == ["llm-rollout-0", "llm-rollout-1"]
    assert blocked("rollout-1", "llm-rollout-10", "llm-rollout-1-x") == []


def test_the_recovery_of_rollouts_outlives_steps_of_the_training() -> None:
    # given rollouts that are recreated
    first = status_of(given(wire.Rollouts(0, 0, 2, "step-6", FAILURE, CAUSE)))
    assert first["lastRecovery"]["strategy"] == "PodRecreate"
    assert first["phase"] == "Recovering"
    # only these Jobs have restarted, and recoveriesByStrategy does not count them
    assert [entry.get("jobRestarts") for entry in first["replicatedJobsStatus"]] == [None, [1, 1]]
    assert first["recoveriesByStrategy"] == {}
    assert first["lastRecovery"]["cause"] == {"rank": 0, "pod": "a0", "node": "node-a0", "message": CAUSE.message}
    kept = {name: first[name] for name in ("recoveries", "lastRecovery", "rollouts")}
    # when all workers run, and recover from a fault of their own
    other = a_recovery(NOW - 0.5, NOW - 0.1)
    steps = status_of(given(wire.Rollouts(0, 0, 2, "step-6", FAILURE, CAUSE), status=kept, recoveries=(other,)))
    # then the recovery of the rollouts is still open
    assert [("resumedAt" in x) for x in steps["recoveries"]] == [False, True]
    assert steps["phase"] == "Recovering"
    # until an update has succeeded
    kept = {name: steps[name] for name in ("recoveries", "lastRecovery", "rollouts")}
    whole = status_of(given(wire.Rollouts(2, 0, 0, "step-8"), status=kept, recoveries=(other,)))
    assert all("resumedAt" in x for x in whole["recoveries"])
    assert whole["recoveries"][0]["pauseSeconds"] == 1.0


def test_a_job_that_restarts_for_a_failed_update_reports_it_in_its_recovery() -> None:
    still_open = a_recovery(fault=Fault.WEIGHT_UPDATE, strategy=None, reason="no retry is allowed")
    received = wire.Rollouts(0, 0, 2, "step-6", FAILURE, CAUSE)
    status = status_of(given(received, closed=FAILED, recoveries=(still_open,), status={"rollouts": {"fresh": 2}}))
    assert (status["lastRecovery"]["fault"], status["lastRecovery"]["strategy"]) == ("WeightUpdate", "JobRestart")
    assert (status["phase"], status["restarts"]) == ("Restarting", 1)
    assert "rollouts" not in status, "the previous attempt's servers"


def test_a_job_whose_trainer_alone_restarts_for_a_failed_update_does_not_state_that_it_runs() -> None:
    # given a failure policy that restarts only the failed Job, and rollouts that are ready
    rule = FailureRule("alone", Action.RESTART_JOB)
    still_open = a_recovery(fault=Fault.WEIGHT_UPDATE, strategy=None, reason="no retry is allowed")
    received = wire.Rollouts(0, 0, 2, "step-6", FAILURE, CAUSE)
    failed = given(received, closed=FAILED, recoveries=(still_open,))
    failed = replace(
        failed, job=replace(failed.job, spec=replace(failed.job.spec, failure=FailurePolicy(3, rules=(rule,))))
    )
    # when it has failed
    status = status_of(failed)
    # then it restarts, and its recovery is open
    assert (status["lastRecovery"]["strategy"], status["restarts"]) == ("JobRestart", 0)
    assert "resumedAt" not in status["lastRecovery"]
    assert status["phase"] == "Restarting"


def test_restarts_of_the_job_stay_counted_under_the_next_coordinator() -> None:
    status = status_of(given(None, status={"recoveriesByStrategy": {"jobRestart": 1}}, counts={"InPlace": 2}))
    assert status["recoveriesByStrategy"] == {"jobRestart": 1, "inPlace": 2}


COMPLETE = replace(a_child(1, ready=0), active=0, succeeded=1, ended=True, is_complete=True, ended_at=NOW - 10)


def recreated(facts: Observed) -> list[str]:
    """The Jobs that are deleted for this reason. Each has an event."""
    reason = "its server has exited with code 0, and the training still needs it"
    plan = reconcile(facts, IMAGE, NOW)
    deleted = [x.name for x in plan.jobs if isinstance(x, DeleteJob) and x.reason == reason]
    assert [x.reason for x in plan.events].count("ServerRestarted") == len(deleted)
    return deleted


def with_exited_server(child: ChildJob = COMPLETE, targets: tuple[str, ...] = ("workers",), **changes: Any) -> Observed:
    facts = given(wire.Rollouts(1, 0, 1, "step-6"), **changes)
    spec = replace(facts.job.spec, success=SuccessPolicy(targets=targets))
    return replace(facts, job=replace(facts.job, spec=spec), children=(a_child(0), child))


def test_a_server_that_exits_with_success_is_started_again() -> None:
    """Found by the soak: the pod of a server was deleted, the server exited with 0, and its Job was complete."""
    assert recreated(with_exited_server()) == ["llm-rollout-1"]
    (event,) = [x for x in reconcile(with_exited_server(), IMAGE, NOW).events if x.reason == "ServerRestarted"]
    assert event.type == "Warning"
    assert event.message == (
        "Job llm-rollout-1 is created again: its server has exited with code 0, and the training still needs it"
    )
    # and its key names this exit, so that two operators write one event
    assert event.key == f"exit of {COMPLETE.uid}"


def test_a_server_that_exits_at_each_start_is_started_every_ten_seconds() -> None:
    assert recreated(with_exited_server(replace(COMPLETE, ended_at=NOW - 9.9))) == []


def test_a_server_is_not_started_again_if_its_end_is_success_or_the_training_has_ended() -> None:
    # the success policy waits for the servers too
    assert recreated(with_exited_server(targets=())) == []
    assert recreated(with_exited_server(targets=("workers", "rollout"))) == []
    # its Job is being deleted already
    assert recreated(with_exited_server(replace(COMPLETE, deleting=True))) == []
    # a Job that is no server
    assert recreated(with_exited_server(replace(COMPLETE, group="logs"))) == []
    # the training has ended
    assert recreated(with_exited_server(closed=SUCCEEDED)) == []

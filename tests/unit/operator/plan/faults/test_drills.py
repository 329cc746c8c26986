"""Drills: when the operator breaks a job on purpose, what it breaks, and how the recovery is recorded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.operator.given import (
    A0,
    A1,
    IMAGE,
    NOW,
    S,
    a_job,
    a_pod,
    a_recovery,
    a_snapshot,
    in_round,
    member,
    observed,
)
from understudy_operator.plan.facts.cluster_objects import Pod
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.pods import Pods
from understudy_operator.plan.facts.status import DrillStatus, JobStatus
from understudy_operator.plan.faults.drills import plan_drill
from understudy_operator.plan.intents import DeletePod, Follow, Plan
from understudy_operator.plan.reconcile import reconcile
from understudy_operator.plan.times.rfc3339 import micro_time
from understudy_protocol.enums import Drill, Fault, RoundToken, Strategy, WorkersState
from understudy_protocol.observer import Cause, DrillOrder, Snapshot, StepProgress

PROGRESS = StepProgress(12, 100, NOW - 1)
ACT_S = 60.0


def trains(**changes: Any) -> Snapshot:
    """An undisturbed job whose coordinator is a spare, with restarts left."""
    return replace(a_snapshot(progress=PROGRESS, number=4), restarts_left=10, **changes)


def asked(
    fault: str,
    snapshot: Snapshot | None = None,
    *,
    at: float = NOW,
    pods: tuple[Pod, ...] = (A0, A1, S),
    allowed: bool = True,
    status: dict[str, Any] | JobStatus | None = None,
    **world: Any,
) -> Observed:
    world = {"step_timeout_s": 300.0} | world
    job = a_job(status=status or in_round(4), spec={"drills_allowed": allowed}, **world)
    job = replace(job, drill_request=f"{fault} {micro_time(at)}")
    return observed(job, pods, trains() if snapshot is None else snapshot)


def decided(given: Observed) -> DrillStatus:
    found = plan_drill(given, NOW)
    assert found is not None
    return found


def planned(given: Observed) -> Plan:
    return reconcile(given, IMAGE, NOW)


def deleted(plan: Plan) -> dict[str, int | None]:
    return {step.name: step.grace_s for step in plan.pods if isinstance(step, DeletePod)}


def ordered(plan: Plan) -> DrillOrder | None:
    assert isinstance(plan.link, Follow)
    return plan.link.drill


# What is broken -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "pods"),
    [
        ("Pod", ["a1"]),
        ("Coordinator", ["s"]),
        ("node", ["a1"]),
    ],
)
def test_pods_are_deleted_without_a_grace_period_after_status_records_them(fault: str, pods: list[str]) -> None:
    plan = planned(asked(fault))
    assert deleted(plan) == dict.fromkeys(pods, 0)
    assert ordered(plan) is None
    assert plan.status is not None
    drill = plan.status.drill
    assert drill is not None
    assert (drill.pods, drill.round, drill.at, drill.refusal) == (tuple(pods), 4, micro_time(NOW), "")


def test_a_drill_on_a_node_deletes_all_pods_of_the_job_there() -> None:
    neighbor = a_pod("s2", node="node-a1")
    given = asked("Node", pods=(A0, A1, S, neighbor))
    assert deleted(planned(given)) == {"a1": 0, "s2": 0}
    assert decided(given).node == "node-a1"


def test_the_pod_of_the_coordinator_is_broken_last() -> None:
    snapshot = trains(pod_uid=A1.uid)
    assert decided(asked("Pod", snapshot)).pods == ("a0",)
    alone = replace(trains(pod_uid=A0.uid), members=(member(A0, 0),))
    assert decided(asked("Pod", alone, pods=(A0,))).pods == ("a0",)


@pytest.mark.parametrize(("drill", "within_s"), [(Drill.PROCESS, 60.0), (Drill.HANG, 360.0)])
def test_the_coordinator_gets_the_order_to_break_a_worker_in_this_round(drill: Drill, within_s: float) -> None:
    plan = planned(asked(drill.value))
    assert ordered(plan) == DrillOrder(RoundToken(1, 1, 4), A1.uid, drill, within_s)
    assert deleted(plan) == {}


def test_an_order_is_not_repeated_in_the_next_round() -> None:
    given = asked("Process")
    first = planned(given)
    assert first.status is not None
    job = replace(given.job, status=first.status)
    same_round = replace(given, job=job)
    assert ordered(planned(same_round)) == ordered(first)
    next_round = replace(
        same_round, coordination=replace(given.coordination, snapshot=replace(trains(), token=RoundToken(1, 1, 5)))
    )
    assert ordered(planned(next_round)) is None


def test_a_request_is_handled_once() -> None:
    given = asked("Pod")
    first = planned(given)
    assert first.status is not None
    # the deleted pod is gone, and another one has its ranks
    job = replace(given.job, status=first.status)
    new = a_pod("new")
    snapshot = trains(members=(member(A0, 0), member(new, 1), member(S, None)))
    later = observed(job, (A0, S, new), snapshot)
    assert deleted(planned(later)) == {}
    assert plan_drill(later, NOW + 30) == first.status.drill


def test_an_operator_that_was_killed_after_the_status_write_deletes_the_pod_within_a_minute() -> None:
    given = asked("Pod")
    first = planned(given)
    assert first.status is not None
    recorded = replace(given, job=replace(given.job, status=first.status))
    assert deleted(reconcile(recorded, IMAGE, NOW + ACT_S - 1)) == {"a1": 0}
    assert deleted(reconcile(recorded, IMAGE, NOW + ACT_S)) == {}


def test_a_pod_that_is_recreated_under_the_same_name_is_not_deleted_again() -> None:
    # given a drill that has deleted pod a1 of a PyTorchJob, whose operator creates pods with the same names again
    given = asked("Pod")
    first = planned(given)
    assert first.status is not None
    # when the new pod a1 runs 3 s later
    new = replace(A1, uid="uid-of-the-new-pod", created_at=NOW + 3)
    recorded = replace(given, job=replace(given.job, status=first.status), pods=Pods((A0, new, S)))
    # then it stays
    assert deleted(reconcile(recorded, IMAGE, NOW + 10)) == {}


# What is rejected -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        (asked("Process", allowed=False), "spec.drills is Forbidden"),
        (asked("Disk"), "FAULT is one of Process, Pod, Coordinator, Hang, Node"),
        (asked("Process", at=NOW - ACT_S), "of another time"),
        (asked("Process", at=NOW + 61), "of another time"),
        (asked("Process", trains(waiting_for="1 of 2 pods")), "does not train undisturbed"),
        (asked("Process", trains(members=(member(A0, 0), member(A1, 1, WorkersState.STARTING)))), "does not train"),
        (asked("Process", replace(trains(), restarts_left=0)), "the budget of restarts is spent"),
        (asked("Hang", replace(trains(), restarts_left=None)), "the budget of restarts is spent"),
        (asked("Hang", step_timeout_s=0.0), "set faults.hang.stepTimeout"),
        (asked("Hang", replace(trains(), progress=None)), "the script reports no steps"),
        (asked("Pod", status=in_round(4, terminalState="Completed")), "has ended"),
    ],
)
def test_a_drill_that_cannot_be_done_is_answered_with_the_reason_and_breaks_nothing(
    given: Observed, refusal: str
) -> None:
    drill = decided(given)
    assert refusal in drill.refusal
    assert drill.pods == ()
    recorded = replace(given, job=replace(given.job, status=JobStatus(drill=drill)))
    assert deleted(planned(recorded)) == {}


def test_a_drill_waits_for_no_open_recovery() -> None:
    recovery = {"fault": "Process", "detectedAt": micro_time(NOW - 1), "round": 4}
    assert "does not train undisturbed" in decided(asked("Pod", status=in_round(4, recoveries=[recovery]))).refusal


@pytest.mark.parametrize("text", ["", "Process", "Process yesterday", "x" * 2000])
def test_an_unreadable_request_breaks_nothing(text: str) -> None:
    given = asked("Process")
    given = replace(given, job=replace(given.job, drill_request=text))
    drill = plan_drill(given, NOW)
    assert drill is None if not text else drill is not None and "is not FAULT TIME" in drill.refusal


def test_an_event_reports_what_is_broken_or_why_nothing_is() -> None:
    started = [event for event in planned(asked("Pod")).events if event.reason.startswith("Drill")]
    assert [(event.type, event.message) for event in started] == [("Normal", "a drill (Pod) breaks a1 on node node-a1")]
    (rejected,) = [event for event in planned(asked("Pod", allowed=False)).events if event.reason.startswith("Drill")]
    assert (rejected.type, rejected.reason) == ("Warning", "DrillRejected")
    assert rejected.message == "a drill (Pod) breaks nothing: spec.drills is Forbidden: set it to Allowed"


# The recovery ---------------------------------------------------------------------------------------------------------


def test_the_recovery_of_a_deleted_pod_shows_that_it_was_a_drill() -> None:
    cause = Cause(8, "a1", "node-a1", None, None, "its connection ended")
    loss = a_recovery(NOW, fault=Fault.POD, strategy=Strategy.SPARE_SWAP, cause=cause, reason="its pod is lost")
    other = a_recovery(NOW + 1, fault=Fault.POD, cause=replace(cause, pod="a0"), reason="its pod is lost")
    drill = DrillStatus(request="Pod x", fault=Drill.POD, at=micro_time(NOW), pods=("a1",), round=4)
    job = a_job(status=JobStatus(drill=drill, round=4))
    plan = planned(observed(job, snapshot=trains(recoveries=(loss, other))))
    assert plan.status is not None
    assert [entry.reason for entry in plan.status.recoveries] == ["a drill; its pod is lost", "its pod is lost"]
    # another drill follows, and the coordinator reports the first recovery again
    job = replace(job, status=JobStatus(round=4, recoveries=plan.status.recoveries))
    again = planned(observed(job, snapshot=trains(recoveries=(loss, other)))).status
    assert again is None or [entry.reason for entry in again.recoveries] == [
        "a drill; its pod is lost",
        "its pod is lost",
    ]


@pytest.mark.parametrize(
    ("detected_at", "reason"),
    [
        pytest.param(NOW - 60, "its pod is lost", id="a minute before the drill"),
        pytest.param(NOW - 5, "a drill; its pod is lost", id="by a clock that is 5 s slow"),
        pytest.param(NOW + 100, "a drill; its pod is lost", id="within two minutes"),
        pytest.param(NOW + 180, "its pod is lost", id="three minutes after the drill"),
    ],
)
def test_only_a_loss_at_the_time_of_the_drill_is_recorded_as_a_drill(detected_at: float, reason: str) -> None:
    # given a drill that deleted pod a1, and a loss of this pod at another time
    cause = Cause(8, "a1", "node-a1", None, None, "its connection ended")
    loss = a_recovery(detected_at, fault=Fault.POD, strategy=Strategy.SPARE_SWAP, cause=cause, reason="its pod is lost")
    drill = DrillStatus(request="Pod x", fault=Drill.POD, at=micro_time(NOW), pods=("a1",), round=4)
    job = a_job(status=JobStatus(drill=drill, round=4))
    # when the coordinator reports the loss
    plan = planned(observed(job, snapshot=trains(recoveries=(loss,))))
    # then its reason depends on the time
    assert plan.status is not None
    assert [entry.reason for entry in plan.status.recoveries] == [reason]


def test_a_loss_that_status_had_before_the_drill_does_not_become_one() -> None:
    # given a pod that was lost, has returned, and is deleted by a drill 2 s after its recovery
    cause = Cause(8, "a1", "node-a1", None, None, "its connection ended")
    loss = a_recovery(NOW - 5, NOW - 2, fault=Fault.POD, cause=cause, reason="its pod is lost")
    before = planned(observed(a_job(status=in_round(4)), snapshot=trains(recoveries=(loss,)))).status
    assert before is not None
    # when the operator decides the drill
    given = asked("Pod", trains(recoveries=(loss,)), status=before)
    plan = planned(given)
    # then the recovery keeps its reason
    assert plan.status is not None
    assert plan.status.drill is not None
    assert plan.status.drill.pods == ("a1",)
    assert [entry.reason for entry in plan.status.recoveries] == ["its pod is lost"]

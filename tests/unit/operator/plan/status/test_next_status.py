"""Status for an observation: phase, counts, times; and when it is worth a write."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from tests.unit.operator.given import (
    A0,
    A1,
    ADDRESS,
    FAILED,
    NOW,
    SUCCEEDED,
    WAITING,
    S,
    a_job,
    a_pod,
    a_recovery,
    a_snapshot,
    a_status,
    after,
    condition,
    ended,
    in_round,
    lost,
    member,
    observed,
    pending,
    starting,
    status_of,
    terminating,
)
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.pods import Pods
from understudy_operator.plan.facts.status import (
    AvoidedNode,
    Condition,
    CoordinatorStatus,
    JobStatus,
    Members,
    ProgressStatus,
    ReplicatedJobStatus,
    Spares,
)
from understudy_operator.plan.leadership.coordination import Leadership
from understudy_operator.plan.status.next_status import is_news, is_worth_writing
from understudy_operator.plan.times.reconcile_clock import ReconcileClock
from understudy_operator.plan.times.rfc3339 import micro_time
from understudy_protocol import pod as names
from understudy_protocol.enums import CloseReason, WorkersState
from understudy_protocol.membership import Close
from understudy_protocol.observer import Snapshot, SnapshotTime, StepProgress

PROGRESS_EVERY_S = 10.0

ALL_JOINED = a_snapshot([member(A0, None), member(A1, None), member(S, None)], number=-1)

# The phase ----------------------------------------------------------------------------------------------------------

OPEN = a_snapshot(recoveries=[a_recovery()])
PHASES: Mapping[str, tuple[Observed, str]] = {
    "no pod has a node": (observed(a_job(), (pending(A0), pending(A1))), "Pending"),
    "pods start": (observed(a_job(), (starting(A0), pending(A1))), "Starting"),
    "all members are there, no round yet": (observed(a_job(), snapshot=ALL_JOINED), "Starting"),
    "a round runs": (observed(snapshot=a_snapshot()), "Running"),
    "the first round is news": (observed(a_job(), snapshot=a_snapshot()), "Running"),
    "ranks are vacant": (observed(snapshot=a_snapshot(waiting_for=WAITING)), "Recovering"),
    "the first round's workers do not start": (
        observed(a_job(), snapshot=a_snapshot([member(A0, 0, WorkersState.STARTING), member(A1, 1)], waiting_for="A0")),
        "Starting",
    ),
    "the next round has not stepped yet": (observed(snapshot=OPEN), "Recovering"),
    "the coordinator has closed": (observed(snapshot=a_snapshot(closed=SUCCEEDED)), "Succeeded"),
    "it has closed over a failure": (observed(snapshot=a_snapshot(closed=FAILED)), "Failed"),
    "a finished pod reports the close": (observed(pods=(ended(A0, SUCCEEDED), A1)), "Succeeded"),
    "status has the end": (observed(a_job(status=in_round(terminalState="Failed")), ()), "Failed"),
}


@pytest.mark.parametrize("case", PHASES)
def test_each_observation_has_its_phase(case: str):
    given, phase = PHASES[case]
    assert status_of(given)["phase"] == phase


def test_the_first_round_after_a_suspension_is_no_recovery():
    # given a job with a recovery that had ended before the job was suspended
    ended_before = {"fault": "Process", "detectedAt": micro_time(NOW - 900), "resumedAt": micro_time(NOW - 890)}
    starts = [member(A0, 0, WorkersState.STARTING), member(A1, 1)]
    # when the workers of its first round start
    status = after(in_round(0, recoveries=[ended_before]), a_snapshot(starts, waiting_for="A0"))
    # then it starts, and does not recover
    assert status["phase"] == "Starting"
    # but a fault of this round, and a later round, are a recovery
    fault = a_snapshot(starts, waiting_for="A0", recoveries=[a_recovery()])
    assert after(in_round(0, recoveries=[ended_before]), fault)["phase"] == "Recovering"
    later = a_snapshot(starts, waiting_for="A0", number=1)
    assert after(in_round(1, recoveries=[ended_before]), later)["phase"] == "Recovering"


@pytest.mark.parametrize("phase", ["Starting", "Running", "Recovering"])
@pytest.mark.parametrize("snapshot", [None, a_snapshot([member(A0, None)], epoch=2)])
def test_the_phase_does_not_change_without_a_report_of_a_coordinator(phase: str, snapshot: Snapshot | None):
    assert after(in_round(0, phase=phase), snapshot)["phase"] == phase


def test_a_rank_whose_pod_has_ended_is_reported_at_once_without_a_coordinator():
    # given a round of two; when the pod with rank 0 ends, and no coordinator is found
    snapshot = a_snapshot([member(A0, 0), member(A1, 1)], number=0)
    pods = (replace(ended(A0), failure="OOMKilled"), A1)
    status = status_of(observed(pods=pods, snapshot=snapshot, searches_since=NOW))
    # then status reports at once that the job does not train, and why, without waiting for the next coordinator
    assert status["phase"] == "Recovering"
    assert status["members"]["active"] == 1
    message = "no coordinator, and pod a0 (group rank 0) has failed: OOMKilled"
    assert condition(status, "Recovering")["message"] == message
    assert condition(status, "Ready")["message"] == message
    # also if the pod's object is gone
    gone = status_of(observed(pods=(A1,), snapshot=snapshot, searches_since=NOW))
    assert condition(gone, "Recovering")["message"] == "no coordinator, and pod a0 (group rank 0) is gone"
    # but not if a pool's spare has the rank, whose object does not have the job's labels yet
    claimed = observed(pods=(A1,), snapshot=snapshot, searches_since=NOW, claimed=(A0,))
    assert status_of(claimed)["phase"] == "Running"
    # and not while a coordinator reports, nor for a pod that may still train
    assert status_of(observed(pods=pods, snapshot=snapshot))["phase"] == "Running"
    leaving = (terminating(A0), A1)
    assert status_of(observed(pods=leaving, snapshot=snapshot, searches_since=NOW))["phase"] == "Running"


REPORTED_STATUS = a_snapshot([member(A0, 0), member(A1, 1)], number=0)
REPORTED_BY_A0 = a_snapshot([member(A0, 0), member(A1, 1)], coordinator=A0)
LONE = a_snapshot([member(A0, 0)], coordinator=A0)
#: No pod trains, as the operator knows without a coordinator: the observation, and the message of condition Recovering.
NO_POD_TRAINS: Mapping[str, tuple[Observed, str]] = {
    "the node of a lone pod lost power": (
        observed(a_job(status=in_round(0), parallelism=1), (A0,), LONE, searches_since=NOW - 8, not_ready=["node-a0"]),
        "no coordinator, and pod a0 (group rank 0) is on node node-a0, which is not ready",
    ),
    "the node of the coordinator of two pods lost power, and the survivor follows no coordinator": (
        observed(
            pods=(A0, A1), snapshot=REPORTED_STATUS, searches_since=NOW - 8, not_ready=["node-a0"], responders=[A1]
        ),
        "no coordinator, and pod a0 (group rank 0) is on node node-a0, which is not ready",
    ),
    "the coordinator, which has a rank, responds neither to the operator nor to the other pod with a rank": (
        observed(pods=(A0, A1), snapshot=REPORTED_BY_A0, searches_since=NOW - 8, responders=[A1]),
        "no coordinator, and pod a0 (group rank 0), which was the coordinator, does not respond",
    ),
    "the operator has restarted since the node of a pod with a rank lost power": (
        observed(
            pods=[replace(x, labels={names.LABEL_ROLE: names.ROLE_ACTIVE}) for x in (A0, A1)],
            searches_since=NOW - 8,
            not_ready=["node-a1"],
        ),
        "no coordinator, and pod a1 is on node node-a1, which is not ready",
    ),
    "a pod with a rank has followed no coordinator for the coordinatorLossTimeout": (
        observed(pods=(A0, A1), snapshot=REPORTED_STATUS, searches_since=NOW - 30, responders=[A1]),
        "no coordinator for 30 s, the coordinatorLossTimeout: the pods have stopped their workers",
    ),
    "no pod is left, and the operator has just started": (
        observed(pods=(), searches_since=NOW),
        "no coordinator, and no pod of the job is left",
    ),
}
#: The pods may train on.
MAY_TRAIN: Mapping[str, Observed] = {
    "the operator has searched for less than 8 s": observed(
        pods=(A0, A1), snapshot=REPORTED_STATUS, searches_since=NOW - 7.9, not_ready=["node-a0"], responders=[A1]
    ),
    "the coordinator, which has a rank, does not respond, and the other pods with ranks do not either": observed(
        pods=(A0, A1), snapshot=REPORTED_BY_A0, searches_since=NOW - 300
    ),
    "the coordinator, which has a rank, has responded: its sidecar was restarted": observed(
        pods=(A0, A1), snapshot=REPORTED_BY_A0, searches_since=NOW - 8, responders=[A0, A1]
    ),
    "the coordinator, which has no rank, does not respond": observed(
        snapshot=a_snapshot(), searches_since=NOW - 8, responders=[A0, A1]
    ),
    "a member names a coordinator that the operator cannot reach": observed(
        pods=(A0, A1),
        snapshot=REPORTED_STATUS,
        searches_since=NOW - 300,
        not_ready=["node-a0"],
        responders=[A1],
        named="uid-a0",
    ),
    "the coordinator is connected, and the node is cut off from the API server only": observed(
        pods=(A0, A1), snapshot=REPORTED_STATUS, not_ready=["node-a0"]
    ),
    "the node of a spare is not ready": observed(snapshot=a_snapshot(), searches_since=NOW - 8, not_ready=["node-s"]),
    "a pod with a rank has followed no coordinator for less than the coordinatorLossTimeout": observed(
        pods=(A0, A1), snapshot=REPORTED_STATUS, searches_since=NOW - 29.9, responders=[A1]
    ),
    "only a spare has followed no coordinator for the coordinatorLossTimeout": observed(
        snapshot=a_snapshot(), searches_since=NOW - 30, responders=[S]
    ),
    "no pod has answered: the operator itself may be cut off": observed(
        pods=(A0, A1), snapshot=REPORTED_STATUS, searches_since=NOW - 300
    ),
    "coordinatorLossTimeout is Off": observed(
        a_job(status=in_round(0), fence_s=0.0), (A0, A1), REPORTED_STATUS, searches_since=NOW - 300, responders=[A0, A1]
    ),
}


@pytest.mark.parametrize("case", NO_POD_TRAINS)
def test_the_phase_is_recovering_while_no_pod_trains_and_no_coordinator_reports(case: str):
    given, message = NO_POD_TRAINS[case]
    status = status_of(given)
    assert status["phase"] == "Recovering"
    recovering = condition(status, "Recovering")
    assert recovering["status"] == "True"
    assert recovering["message"].split("; ")[0] == message


@pytest.mark.parametrize("case", MAY_TRAIN)
def test_the_phase_stays_running_while_pods_may_train(case: str):
    assert status_of(MAY_TRAIN[case])["phase"] == "Running"


# Counts -------------------------------------------------------------------------------------------------------------


def counts(given: Observed) -> dict[str, Any]:
    status = status_of(given)
    return {name: status[name] for name in ("members", "spares")}


@pytest.mark.parametrize("workers", [WorkersState.STARTING, WorkersState.FAILED])
def test_members_with_ranks_are_active_and_ready_while_their_workers_run(workers: WorkersState):
    views = [member(A0, 0), member(A1, 1, workers), member(S, None)]
    status = status_of(observed(snapshot=a_snapshot(views)))
    assert status["members"] == {"desired": 2, "active": 2, "ready": 1}
    assert status["spares"] == {"desired": 1, "ready": 1, "claimed": 0}
    assert status["replicatedJobsStatus"][0]["ready"] == 0


def test_before_the_first_round_no_member_is_active_and_only_spares_are_spares():
    assert counts(observed(a_job(), snapshot=ALL_JOINED)) == {
        "members": {"desired": 2, "active": 0, "ready": 0},
        "spares": {"desired": 1, "ready": 1, "claimed": 0},
    }


def test_a_job_that_has_shrunk_trains_with_less_than_it_declares():
    job = a_job(status=in_round(3), parallelism=4, min_actives=2)
    views = [member(A0, 0), member(A1, 1), member(S, None)]
    status = status_of(observed(job, snapshot=a_snapshot(views, number=4, actives=2)))
    assert status["members"] == {"desired": 4, "active": 2, "ready": 2}
    assert status["spares"] == {"desired": 1, "ready": 1, "claimed": 0}
    assert status["phase"] == "Running"
    assert status["replicatedJobsStatus"][0]["ready"] == 0  # as in JobSet: not all of its pods are Ready


def test_a_lost_pod_does_not_count_although_its_object_still_exists():
    views = [member(A0, 0), member(A1, 1), member(S, None)]
    assert counts(observed(snapshot=a_snapshot(views, lost=[lost(A1)])))["members"]["active"] == 1


def test_a_spare_that_has_taken_a_rank_is_claimed_until_its_replacement_is_ready():
    swapped = a_snapshot([member(A0, 0), member(S, 1)], number=1)
    new = a_pod("new")
    replaced = a_snapshot([member(A0, 0), member(S, 1), member(new, None)], number=1)
    assert counts(observed(pods=(A0, S, pending(new)), snapshot=swapped))["spares"] == {
        "desired": 1,
        "ready": 0,
        "claimed": 1,
    }
    assert counts(observed(pods=(A0, S, new), snapshot=replaced))["spares"] == {"desired": 1, "ready": 1, "claimed": 0}


def test_status_has_the_columns_that_kubectl_cannot_compute():
    counts = {"InPlace": 2, "SpareSwap": 1, "PodRecreate": 0}
    before = in_round(0, recoveriesByStrategy={"jobRestart": 3})
    status = after(before, a_snapshot([member(A0, 0), member(A1, 1, WorkersState.STARTING)], counts=counts))
    assert (status["ready"], status["recoveryCount"]) == ("1/2", 6)
    # and the sum is a number that the CRD accepts, whatever a coordinator reports
    most = after(before, a_snapshot(counts={"InPlace": 2**31 - 1, "SpareSwap": 2**31 - 1}))
    assert most["recoveryCount"] == 2**31 - 1
    # and a job that has just been created
    assert status_of(observed(a_job(), ()))["ready"] == "0/2"
    assert status_of(observed(a_job(), ()))["recoveryCount"] == 0


@pytest.mark.parametrize("snapshot", [None, a_snapshot([member(A0, None)], epoch=2)])
def test_counts_do_not_change_without_a_report_of_a_coordinator_but_desired_numbers_do(snapshot: Snapshot | None):
    # given an operator that has just started, or a new coordinator
    before = after(in_round(0), a_snapshot())
    given = observed(a_job(status=before, spares=4), snapshot=snapshot)
    assert counts(given) == {
        "members": {"desired": 2, "active": 2, "ready": 2},
        "spares": {"desired": 4, "ready": 1, "claimed": 0},
    }


JOBS: Mapping[str, tuple[Observed, dict[str, int]]] = {
    "run": (observed(snapshot=a_snapshot()), {"active": 1, "ready": 1, "succeeded": 0, "failed": 0}),
    "succeeded": (
        observed(pods=(ended(A0, SUCCEEDED), A1)),
        {"active": 0, "ready": 0, "succeeded": 1, "failed": 0},
    ),
    "failed": (
        observed(pods=(ended(A0, FAILED), A1)),
        {"active": 0, "ready": 0, "succeeded": 0, "failed": 1},
    ),
}


@pytest.mark.parametrize("case", JOBS)
def test_jobs_are_counted_as_jobset_counts_them(case: str):
    given, numbers = JOBS[case]
    (status,) = status_of(given)["replicatedJobsStatus"]
    assert status == {"name": "workers", "suspended": 0} | numbers


# Rounds, leadership and times ---------------------------------------------------------------------------------------


def test_the_round_never_decreases():
    assert after(in_round(7), a_snapshot(number=3))["round"] == 7
    assert after(in_round(7), a_snapshot(number=8))["round"] == 8
    assert "round" not in after({}, ALL_JOINED)


def test_the_leadership_is_reported_with_its_pod_and_its_epoch():
    appointed = status_of(observed(), Leadership(5, 0, A0, "the coordinator's pod is gone"))
    assert appointed["coordinator"] == {"epoch": 5, "podName": "a0", "podUID": "uid-a0", "address": ADDRESS}
    elected = status_of(observed(), Leadership(5, 7, A1, ""))
    assert elected["coordinator"] == {"epoch": 5, "term": 7, "podName": "a1", "podUID": "uid-a1", "address": ADDRESS}


def test_the_address_of_the_coordinators_service_is_kept_for_a_service_that_replaces_it():
    before = in_round(0)
    assert status_of(observed(a_job(status=before), coordinator_address=""))["coordinator"]["address"] == ADDRESS
    other = status_of(observed(a_job(status=before), coordinator_address="10.0.0.99:8478"))
    assert other["coordinator"]["address"] == "10.0.0.99:8478"


def test_the_leadership_stays_reported_while_its_pod_is_gone():
    assert status_of(observed(), Leadership(1, 1, None, ""))["coordinator"]["podName"] == "s"


def test_start_and_completion_are_reported_once():
    started = after({}, a_snapshot(), NOW)
    closed = after(started, a_snapshot(closed=SUCCEEDED), NOW + 60)
    later = after(closed, None, NOW + 120, pods=())
    assert later["startTime"] == micro_time(NOW)
    assert later["completionTime"] == micro_time(NOW + 60)
    assert "startTime" not in after({}, ALL_JOINED)


@pytest.mark.parametrize(("reason", "phase"), [(CloseReason.SUSPENDED, "Restarting"), (CloseReason.DELETED, "Running")])
def test_a_close_that_only_ends_pods_is_not_the_end_of_the_job(reason: CloseReason, phase: str):
    close = Close(reason, "…")
    given = observed(pods=(A0, ended(A1, close), ended(S, close)), snapshot=a_snapshot(closed=close))
    assert given.close is None
    status = status_of(given)
    assert "terminalState" not in status
    assert "completionTime" not in status
    assert status["phase"] == phase
    # and a close that ends the job takes precedence
    assert replace(given, pods=Pods((*given.pods, ended(a_pod("t"), FAILED)))).close == FAILED


def test_the_reported_end_stays_when_the_pods_are_gone():
    status = after(in_round(0), a_snapshot(closed=FAILED))
    assert status["terminalState"] == "Failed"
    assert condition(status, "Failed")["message"] == FAILED.message
    assert after(status, None, NOW + 60, pods=()) == status


# Writes -------------------------------------------------------------------------------------------------------------


def test_an_unchanged_status_is_not_written():
    status = after(in_round(0), a_snapshot(), NOW)
    assert not worth_writing(status, after(status, a_snapshot(), NOW + 600), NOW + 600)


def worth_writing(before: dict[str, Any], status: dict[str, Any], now: float) -> bool:
    return is_worth_writing(a_status(before), a_status(status), now)


def with_step(step: int, at: float, **changes: Any) -> Snapshot:
    return a_snapshot(progress=StepProgress(step, 1000, at), **changes)


def test_progress_alone_is_written_at_a_limited_rate():
    first = after(in_round(0), with_step(1, NOW), NOW)
    assert worth_writing(after(in_round(0), a_snapshot()), first, NOW)
    soon, later = NOW + PROGRESS_EVERY_S - 0.1, NOW + PROGRESS_EVERY_S
    assert not worth_writing(first, after(first, with_step(2, soon), soon), soon)
    assert worth_writing(first, after(first, with_step(3, later), later), later)
    assert first["progress"] == {"step": 1, "total": 1000, "at": micro_time(NOW)}


@pytest.mark.parametrize(("running_jobs", "waits_s"), [(1, 10.0), (200, 10.0), (400, 20.0), (600, 30.0), (5000, 30.0)])
def test_the_progress_of_many_jobs_is_written_less_often(running_jobs: int, waits_s: float) -> None:
    before = JobStatus(phase="Running", progress=ProgressStatus(1, at=micro_time(NOW)))
    status = structs.replace(before, progress=ProgressStatus(2, at=micro_time(NOW + 1)))
    assert not is_worth_writing(before, status, NOW + waits_s - 0.1, running_jobs=running_jobs)
    assert is_worth_writing(before, status, NOW + waits_s, running_jobs=running_jobs)
    # but a change that does not wait is written at once
    assert is_worth_writing(before, structs.replace(status, phase="Recovering"), NOW + 1, running_jobs=running_jobs)


def test_the_newest_snapshots_are_written_with_the_progress():
    saved, copied = SnapshotTime(8, NOW - 2), SnapshotTime(6, NOW - 4)
    reported = a_snapshot(progress=StepProgress(9, 1000, NOW, snapshot=saved, copied=copied))
    first = after(in_round(0), reported, NOW)
    assert first["progress"]["snapshot"] == {"step": 8, "at": micro_time(NOW - 2)}
    assert first["progress"]["copiedSnapshot"] == {"step": 6, "at": micro_time(NOW - 4)}
    # and a newer snapshot waits for the time of the next progress
    newer = a_snapshot(progress=StepProgress(9, 1000, NOW, snapshot=SnapshotTime(9, NOW + 1)))
    assert not worth_writing(first, after(first, newer, NOW + 1), NOW + 1)
    # and a new coordinator, which knows no progress, keeps them
    assert after(first, a_snapshot(), NOW + 1)["progress"] == first["progress"]
    # and a step without snapshots has none
    assert set(after(first, with_step(10, NOW + 10), NOW + 10)["progress"]) == {"step", "total", "at"}


def test_progress_is_written_with_any_other_change():
    first = after(in_round(0), with_step(1, NOW), NOW)
    assert worth_writing(first, after(first, with_step(2, NOW + 1, number=1), NOW + 1), NOW + 1)


def test_progress_alone_does_not_affect_the_next_reconcile():
    before = JobStatus(phase="Running", progress=ProgressStatus(1))
    assert not is_news(before, JobStatus(phase="Running", progress=ProgressStatus(2)))
    assert is_news(before, JobStatus(phase="Recovering", progress=ProgressStatus(2)))


ELSEWHERE = AvoidedNode(node="elsewhere", source="annotation", reason="Xid 79")
OWN = AvoidedNode(node="own", source="annotation", reason="Xid 79", pods=("a0",))


@pytest.mark.parametrize(
    ("avoided", "stepped_at", "expected"),
    [
        pytest.param((ELSEWHERE,), NOW - 9.9, False, id="no pod of the job is there"),
        pytest.param((ELSEWHERE,), NOW - 10.0, True, id="no pod of the job is there, but the progress is due"),
        pytest.param((ELSEWHERE,), None, True, id="no pod of the job is there, and the job makes no steps"),
        pytest.param((OWN,), NOW - 9.9, True, id="a pod of the job is there"),
    ],
)
def test_an_avoided_node_without_pods_of_the_job_is_written_with_the_next_progress(
    avoided: tuple[AvoidedNode, ...], stepped_at: float | None, expected: bool
) -> None:
    progress = None if stepped_at is None else ProgressStatus(1, at=micro_time(stepped_at))
    before = JobStatus(phase="Running", progress=progress)
    status = structs.replace(before, avoided_nodes=avoided)
    assert is_worth_writing(before, status, NOW) is expected
    assert is_worth_writing(status, before, NOW) is expected
    assert is_news(before, status) is bool(avoided[0].pods)


PENDING = Condition("Ready", "False", "Pending", "the workers of 0 of 2 pods run", micro_time(NOW))
FEW = Condition("SparesReady", "False", "TooFewSpares", "0 of 2", micro_time(NOW))
STARTS = JobStatus(
    phase="Pending",
    ready="0/2",
    members=Members(2),
    conditions=(PENDING, FEW),
    replicated_jobs_status=(ReplicatedJobStatus("workers"),),
    coordinator=CoordinatorStatus(7, 0, "a0", "uid-a0"),
)
ACTIVE = ReplicatedJobStatus("workers", active=2)
COUNTED = {
    "pods exist": {"replicated_jobs_status": (ACTIVE,)},
    "pods have nodes": {"phase": "Starting"},
    "workers run": {"members": Members(2, 1, 1), "ready": "1/2"},
    "a spare is ready": {"spares": Spares(2, 1), "conditions": (PENDING, structs.replace(FEW, message="1 of 2"))},
    "the message has another number": {"conditions": (structs.replace(PENDING, message="1 of 2"), FEW)},
    "the message has another phase": {"conditions": (structs.replace(PENDING, reason="Starting"), FEW)},
    "the appointed coordinator answers": {"coordinator": CoordinatorStatus(7, 1, "a0", "uid-a0")},
}
NOT_COUNTED = {
    "the job runs": {"phase": "Running"},
    "the pods are ready": {"conditions": (structs.replace(PENDING, status="True", reason="Running"), FEW)},
    "enough spares are ready": {"conditions": (PENDING, structs.replace(FEW, status="True", reason="EnoughSpares"))},
    "another condition": {"conditions": (PENDING, FEW, structs.replace(FEW, type="Blocked"))},
    "a restart of a Job": {"replicated_jobs_status": (structs.replace(ACTIVE, job_restarts=(1,)),)},
    "another coordinator": {"coordinator": CoordinatorStatus(7, 0, "a1", "uid-a1")},
    "an elected coordinator": {"coordinator": CoordinatorStatus(7, 2, "a0", "uid-a0")},
    "another address": {"coordinator": CoordinatorStatus(7, 0, "a0", "uid-a0", address=ADDRESS)},
}


@pytest.mark.parametrize("changes", COUNTED.values(), ids=COUNTED)
def test_a_change_of_counts_is_written_a_second_after_the_write_before(changes: dict[str, Any]) -> None:
    status = structs.replace(STARTS, **changes)
    assert not is_worth_writing(STARTS, status, NOW, has_coordinator=False, written_at=NOW - 0.9)
    assert is_worth_writing(STARTS, status, NOW, has_coordinator=False, written_at=NOW - 1.0)
    # and at once if this process has not written yet, or the clock was set back
    assert is_worth_writing(STARTS, status, NOW)
    assert is_worth_writing(STARTS, status, NOW, written_at=NOW + 60)
    # and the plan is made again when it is due
    clock = ReconcileClock(NOW)
    is_worth_writing(STARTS, status, clock, written_at=NOW - 0.9)
    assert clock.remaining_s == pytest.approx(0.1)
    # and the write leads to no other reconcile
    assert not is_news(STARTS, status)


@pytest.mark.parametrize(("pods", "waits_s"), [(1000, 1.0), (1500, 1.5), (5000, 5.0)])
def test_the_counts_of_more_than_a_thousand_pods_wait_a_second_for_each_thousand(pods: int, waits_s: float) -> None:
    status = structs.replace(STARTS, members=Members(2, 1, 1), ready="1/2")
    assert not is_worth_writing(STARTS, status, NOW, pods=pods, written_at=NOW - waits_s + 0.1)
    assert is_worth_writing(STARTS, status, NOW, pods=pods, written_at=NOW - waits_s)


@pytest.mark.parametrize("changes", NOT_COUNTED.values(), ids=NOT_COUNTED)
def test_other_changes_are_written_at_once(changes: dict[str, Any]) -> None:
    status = structs.replace(STARTS, **changes)
    assert is_worth_writing(STARTS, status, NOW, written_at=NOW)
    assert is_news(STARTS, status)


def test_workers_that_run_again_one_after_another_in_a_recovery_cost_a_write_a_second() -> None:
    # given a recovery in which no worker runs yet, as status records
    recovery = a_recovery(NOW - 1)
    none = [member(A0, 0, WorkersState.STARTING), member(A1, 1, WorkersState.STARTING), member(S, None)]
    before = after(in_round(0), a_snapshot(none, number=1, recoveries=[recovery]))
    assert condition(before, "Ready")["message"] == "the workers of 0 of 2 pods run"
    # when the workers of one pod run, and then those of all, then this waits
    for members in ([member(A0, 0), *none[1:]], [member(A0, 0), member(A1, 1), none[2]]):
        status = after(before, a_snapshot(members, number=1, recoveries=[recovery]))
        assert condition(status, "Ready")["message"] != condition(before, "Ready")["message"]
        assert not is_worth_writing(a_status(before), a_status(status), NOW, written_at=NOW - 0.9)
        assert is_worth_writing(a_status(before), a_status(status), NOW, written_at=NOW - 1.0)
    # but the end of the recovery does not
    ended = after(before, a_snapshot(number=1, recoveries=[a_recovery(NOW - 1, NOW)]))
    assert is_worth_writing(a_status(before), a_status(ended), NOW, written_at=NOW)


def test_another_message_of_a_rejection_is_written_at_once() -> None:
    before, status = (
        structs.replace(STARTS, conditions=(structs.replace(FEW, type="Blocked", message=text),))
        for text in ("exceeded quota: pods=5", "exceeded quota: pods=6")
    )
    assert is_worth_writing(before, status, NOW, written_at=NOW)


def test_all_that_a_pod_changes_in_status_when_it_gets_a_node_waits() -> None:
    facts = observed(a_job(), (pending(A0), pending(A1))), observed(a_job(), (starting(A0), pending(A1)))
    before, status = (a_status(status_of(x)) for x in facts)
    assert (before.phase, status.phase) == ("Pending", "Starting")
    assert not is_worth_writing(before, status, NOW, written_at=NOW - 0.9)


def test_the_counts_of_a_job_that_makes_steps_do_not_wait_for_its_progress() -> None:
    before = JobStatus(phase="Running", progress=ProgressStatus(1, at=micro_time(NOW - 2)))
    status = structs.replace(before, spares=Spares(1, 1), progress=ProgressStatus(2, at=micro_time(NOW)))
    assert not is_worth_writing(before, status, NOW, written_at=NOW - 0.9)
    assert is_worth_writing(before, status, NOW, written_at=NOW - 1.0)


def test_the_attempt_of_a_suspended_job_that_has_lost_its_launcher_ends() -> None:
    """Its next launcher begins another attempt, with another key and no rounds."""
    job = a_job(status=in_round(3), spec={"world": None, "suspend": True})
    status = status_of(observed(job, ()))
    assert "podUID" not in status["coordinator"]
    assert status["coordinator"]["formerEpoch"] > 1
    assert "round" not in status
    assert status["phase"] == "Suspended"


@pytest.mark.parametrize(("succeeded", "has_ended"), [(1, False), (3, False), (4, True)])
def test_jobs_that_succeeded_before_the_job_had_a_launcher_are_no_success_of_the_training(
    succeeded: int, has_ended: bool
) -> None:
    entry = {"name": "workers", "ready": 0, "succeeded": succeeded, "failed": 0, "active": 0, "suspended": 0}
    job = a_job(status={"replicatedJobsStatus": [entry]}, replicas=4)
    assert (observed(job, ()).close is not None) == has_ended

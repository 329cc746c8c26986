"""Status is clear: a condition that is False does not have another one's reason, and a message states what was
observed.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.unit.operator.given import (
    A0,
    A1,
    NOW,
    SUCCEEDED,
    S,
    a_group,
    a_job,
    a_pod,
    a_recovery,
    a_snapshot,
    a_status,
    condition,
    ended,
    in_round,
    lost,
    member,
    observed,
    status_of,
)
from tests.unit.operator.given import pending as a_pending
from understudy_operator.plan.facts.cluster_objects import ChildJob, Pod
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.spec import FailurePolicy, JobSpec, SuccessOperator, SuccessPolicy
from understudy_protocol.observer import Cause, Lost, Recovery


def a_child(group: str = "workers", **changes: object) -> ChildJob:
    child = ChildJob(
        f"uid-{group}", f"llm-{group}-0", group, 0, attempt=0, job_attempt=0, desired_pods=2, started_at=NOW - 60
    )
    return replace(child, **{"created_at": NOW - 60, **changes})  # type: ignore[arg-type]


def jobs(*children: ChildJob, groups: tuple[str, ...] = ("workers",), replicas: int = 1, **spec: object) -> Observed:
    """A job without a launcher."""
    replicated = tuple(a_group(name, replicas) for name in groups)
    whole = JobSpec(replicated_jobs=replicated, **spec)  # type: ignore[arg-type]
    return observed(replace(a_job(), spec=whole), (), children=children)


def read_clear_status(given: Observed, kind: str) -> tuple[str, str, str]:
    found = condition(status_of(given), kind)
    return found["status"], found["reason"], found["message"]


FAILED_JOB = a_child(ended=True, reason="BackoffLimitExceeded", message="Job has reached the specified backoff limit")
SUCCEEDED_JOB = a_child(ended=True, is_complete=True, succeeded=2)


def test_a_false_condition_does_not_have_the_reason_of_the_true_one():
    failed = jobs(FAILED_JOB, failure=FailurePolicy(max_restarts=0))
    assert read_clear_status(failed, "Failed")[:2] == ("True", "ReachedMaxRestarts")
    assert read_clear_status(failed, "Completed") == ("False", "Failed", "")
    succeeded = jobs(SUCCEEDED_JOB)
    assert read_clear_status(succeeded, "Completed")[:2] == ("True", "AllJobsCompleted")
    assert read_clear_status(succeeded, "Failed") == ("False", "Succeeded", "")


def test_the_phase_stays_running_while_its_pods_finish_one_after_the_other():
    # given a Job of two pods, each of which runs or has succeeded
    phases = [
        status_of(jobs(a_child(active=2 - succeeded, ready=2 - succeeded, succeeded=succeeded)))["phase"]
        for succeeded in (0, 1, 2)
    ]
    assert phases == ["Running"] * 3
    # but a Job one of whose pods is not ready has not started
    assert status_of(jobs(a_child(active=2, ready=1)))["phase"] == "Starting"


def test_the_reasons_stay_in_later_reconciles():
    status = status_of(jobs(SUCCEEDED_JOB))
    given = jobs(SUCCEEDED_JOB)
    later = replace(given, job=replace(given.job, status=a_status(status)))
    assert read_clear_status(later, "Completed") == read_clear_status(jobs(SUCCEEDED_JOB), "Completed")
    assert read_clear_status(later, "Failed") == ("False", "Succeeded", "")


def test_a_success_of_any_job_is_not_reported_as_a_success_of_all():
    policy = SuccessPolicy(SuccessOperator.ANY)
    any_of = jobs(SUCCEEDED_JOB, a_child("driver"), groups=("workers", "driver"), success=policy)
    assert read_clear_status(any_of, "Completed") == (
        "True",
        "AllJobsCompleted",
        "Job llm-workers-0 has succeeded, and the success policy needs only one Job",
    )
    assert (
        read_clear_status(jobs(SUCCEEDED_JOB), "Completed")[2]
        == "all Jobs that the success policy names have succeeded"
    )


def test_a_job_without_pods_reports_it():
    assert read_clear_status(jobs(replicas=0), "Ready") == (
        "False",
        "Pending",
        "replicas is 0 in all replicatedJobs, so the job has nothing to run: suspend the job, set replicas, and "
        "resume it",
    )
    assert "nothing to run" not in read_clear_status(jobs(replicas=1), "Ready")[2]
    assert "nothing to run" not in read_clear_status(jobs(replicas=0, suspend=True), "Ready")[2]


@pytest.mark.parametrize(
    ("child", "message"),
    [
        (a_child(active=2, started_at=0.0), "0 of 2 pods are ready"),
        # a new Job, which the Job controller has not updated yet
        (a_child(started_at=0.0, created_at=NOW - 10), "0 of 2 pods are ready"),
        (
            a_child(started_at=0.0, created_at=NOW - 31),
            "Job llm-workers-0 was created 30 s ago, but the Job controller has not started it: see the events of the "
            "Job, and check that kube-controller-manager runs",
        ),
        (a_child(active=1, started_at=NOW - 1), "0 of 2 pods are ready"),
        (
            a_child(active=1),
            "Job llm-workers-0 has 1 of 2 pods: see the events of the Job (a quota or an admission webhook may "
            "reject its pods)",
        ),
        # a Job whose pods fail, after which the Job controller pauses
        (
            a_child(active=1, failed=3),
            "Job llm-workers-0 has 1 of 2 pods: 3 of its pods have failed, and the Job controller pauses before it "
            "creates others",
        ),
        # a Job that creates no more pods: it waits for the end of those that it has
        (a_child(active=0, failed=1, is_failing=True), "0 of 2 pods are ready"),
    ],
)
def test_missing_pods_of_a_child_job_are_reported_with_the_known_reason(child: ChildJob, message: str):
    assert read_clear_status(jobs(child), "Ready")[2] == message


def test_a_job_without_a_launcher_counts_the_pods_of_its_jobs():
    children = (a_child(active=2, ready=1), a_child("driver", active=1, desired_pods=1))
    given = jobs(*children, groups=("workers", "driver"))
    status = status_of(given)
    assert status["members"] == {"desired": 4, "active": 3, "ready": 1}
    assert status["spares"] == {"desired": 0, "ready": 0, "claimed": 0}
    assert "round" not in status


def test_a_job_without_a_launcher_is_ready_when_the_pods_of_its_jobs_are():
    half = (a_child(active=2, ready=2), a_child("driver", active=1, ready=0, desired_pods=1))
    assert read_clear_status(jobs(*half, groups=("workers", "driver")), "Ready")[:2] == ("False", "Starting")
    whole = (a_child(active=2, ready=2), a_child("driver", active=1, ready=1, desired_pods=1))
    assert read_clear_status(jobs(*whole, groups=("workers", "driver")), "Ready") == ("True", "Running", "")


def test_the_trouble_of_a_spare_is_in_the_spares_condition_and_not_in_ready():
    waiting = replace(a_pending(S), trouble="Unschedulable: 0/3 nodes are available")
    members = [m for m in a_snapshot().members if m.pod_uid != S.uid]
    given = observed(a_job(status=in_round(0, "a0")), (A0, A1, waiting), a_snapshot(members, coordinator=A0))
    assert read_clear_status(given, "Ready") == ("True", "Running", "")
    assert read_clear_status(given, "SparesReady") == (
        "False",
        "TooFewSpares",
        "0 of 1; pod s: Unschedulable: 0/3 nodes are available",
    )


CANNOT_STORE = "its sidecar cannot store its state in /understudy-state: No space left on device"


def without_the_spare(entry: Lost, *pods: Pod, recoveries: Sequence[Recovery] = ()) -> Observed:
    with_ranks = [member(A0, 0), member(A1, 1)]
    snapshot = a_snapshot(with_ranks, number=1, coordinator=A0, lost=[entry], recoveries=recoveries)
    return observed(a_job(status=in_round(1, "a0")), (A0, A1, *pods), snapshot)


def test_a_spare_that_is_lost_is_named_with_the_reason_until_another_one_has_started():
    entry = lost(S, reason=CANNOT_STORE)
    given = without_the_spare(entry)
    assert read_clear_status(given, "Ready") == ("True", "Running", "")
    assert read_clear_status(given, "SparesReady") == (
        "False",
        "TooFewSpares",
        f"0 of 1; pod s was lost: {CANNOT_STORE}",
    )
    # when the kubelet has reported the end of its container, then this is the reason
    failure = f"container trainer ended with exit code 84: Error: replaced: {CANNOT_STORE}"
    reported = without_the_spare(entry, replace(ended(S), failure=failure))
    assert read_clear_status(reported, "SparesReady")[2] == f"0 of 1; pod s was lost: {failure}"
    # when the replacement pod has started, then the lost pod is not named any more
    assert read_clear_status(without_the_spare(entry, a_pod("t")), "SparesReady")[2] == "0 of 1"


def test_losses_with_a_recovery_and_old_losses_are_not_reported_for_spares():
    named = a_recovery(cause=Cause(0, "s", "node-s", None, None, CANNOT_STORE), resumed_at=NOW)
    assert read_clear_status(without_the_spare(lost(S), recoveries=[named]), "SparesReady")[2] == "0 of 1"
    assert read_clear_status(without_the_spare(lost(S, at=NOW - 600)), "SparesReady")[2] == "0 of 1"
    assert "pod s was lost" in read_clear_status(without_the_spare(lost(S, at=NOW - 599)), "SparesReady")[2]


def test_a_job_that_waits_for_a_pod_that_was_lost_before_it_had_a_rank_reports_it():
    entry, waiting = lost(S, reason=CANNOT_STORE), "1 of 2 pods (group ranks 1)"
    waits = a_snapshot([member(A0, 0)], number=1, coordinator=A0, lost=[entry], waiting_for=waiting)
    given = observed(a_job(status=in_round(1, "a0"), spares=0), (A0,), waits)
    assert read_clear_status(given, "Ready")[2] == f"waiting for {waiting}; pod s was lost: {CANNOT_STORE}"


def test_spares_with_ranks_are_named_with_their_ranks():
    """Their names contain "spare", and do not change."""
    # given a round in which the spare has taken the rank of a1
    with_ranks = a_snapshot([member(A0, 0), member(S, 1), member(A1, None)], number=1)
    status = status_of(observed(a_job(status=in_round(1)), snapshot=with_ranks))
    assert status["promotedSpares"] == [{"pod": "s", "groupRank": 1}]

    # when no coordinator reports, then the entry stays; when the spare waits again, or the job has ended, it is removed
    assert status_of(observed(a_job(status=status)))["promotedSpares"] == [{"pod": "s", "groupRank": 1}]
    assert "promotedSpares" not in status_of(observed(a_job(status=status), snapshot=a_snapshot(number=2)))
    closed = a_snapshot([member(A0, 0), member(S, 1)], number=1, closed=SUCCEEDED)
    assert "promotedSpares" not in status_of(observed(a_job(status=status), snapshot=closed))


def test_at_most_20_promoted_spares_are_named():
    pods = [a_pod(f"s{number:02}") for number in range(25)]
    rank_holders = [member(pod, number) for number, pod in enumerate(pods)]
    given = observed(
        a_job(status=in_round(1, "s00"), parallelism=25), pods, a_snapshot(rank_holders, coordinator=pods[0])
    )
    named = status_of(given)["promotedSpares"]
    assert (len(named), named[0], named[-1]) == (20, {"pod": "s00", "groupRank": 0}, {"pod": "s19", "groupRank": 19})

"""Reads a Job of batch/v1 into the facts that the policies need."""

import copy
from typing import Any

import pytest

from tests.unit.operator.given import a_group, a_job
from understudy_operator.observe.read_child import read_child
from understudy_operator.plan.manifests.child_jobs import FINGERPRINT, job_manifest
from understudy_operator.plan.times.rfc3339 import parse_time

AT = "2026-11-20T10:00:00Z"
GROUP = a_group("workers", 3, 2)
STATUS = {"restarts": 1, "replicatedJobsStatus": [{"name": "workers", "jobRestarts": [0, 2, 0]}]}
MADE = job_manifest(a_job(status=STATUS, spec={"replicated_jobs": (GROUP,), "world": None}), GROUP, 1)


def job(status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    raw = copy.deepcopy(MADE)
    raw["metadata"] |= {"uid": "uid-1", "creationTimestamp": AT}
    raw["spec"] |= spec
    return raw | ({"status": status} if status else {})


def test_the_operators_own_labels_are_read_back():
    child = read_child(job())
    assert (child.uid, child.name, child.group, child.index) == ("uid-1", "llm-workers-1", "workers", 1)
    assert (child.attempt, child.job_attempt, child.desired_pods) == (1, 2, 2)
    assert child.fingerprint == MADE["metadata"]["annotations"][FINGERPRINT]
    assert (child.deleting, child.suspended, child.started_at, child.ended) == (False, False, 0.0, False)


def test_the_states_of_its_pods_are_counted():
    child = read_child(job({"startTime": AT, "active": 2, "ready": 1, "succeeded": 1, "failed": 3}))
    assert (child.started_at, child.active, child.ready, child.succeeded, child.failed) == (parse_time(AT), 2, 1, 1, 3)


def test_a_pod_that_has_succeeded_counts_before_the_job_controller_has_counted_it():
    # given a pod that is not Ready any more and is not in status.succeeded yet; otherwise the job would look as if it
    # restarted
    uncounted = {"succeeded": ["uid-pod-0"], "failed": ["uid-pod-1"]}
    child = read_child(
        job({"startTime": AT, "active": 0, "ready": 0, "succeeded": 1, "uncountedTerminatedPods": uncounted})
    )
    assert child.ready + child.succeeded == 2
    assert child.failed == 1


@pytest.mark.parametrize(("completions", "wanted"), [(1, 1), (9, 2)])
def test_a_job_is_ready_with_as_many_pods_as_run_at_once(completions: int, wanted: int):
    assert read_child(job(completions=completions)).desired_pods == wanted


@pytest.mark.parametrize(("kind", "succeeded"), [("Complete", True), ("Failed", False)])
def test_the_end_of_a_job_is_read_with_its_reason(kind: str, succeeded: bool):
    end = {"type": kind, "status": "True", "reason": "R", "message": "M", "lastTransitionTime": AT}
    child = read_child(job({"conditions": [{"type": "Suspended", "status": "False"}, end]}))
    assert (child.ended, child.is_complete, child.reason, child.message) == (True, succeeded, "R", "M")
    assert child.ended_at == parse_time(AT)


def test_a_job_with_a_failure_target_has_not_failed_yet():
    # given the condition that the Job controller sets while pods are terminating
    target = {"type": "FailureTarget", "status": "True"}
    child = read_child(job({"conditions": [target]}))
    assert (child.is_failing, child.ended) == (True, False)
    # and the condition that it adds afterwards
    child = read_child(job({"conditions": [target, {"type": "Failed", "status": "True"}]}))
    assert (child.is_failing, child.ended) == (False, True)

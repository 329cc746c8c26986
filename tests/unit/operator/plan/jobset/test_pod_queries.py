"""The operator lists pods of child Jobs only while they delay a Job, and reports the reason of the delay."""

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.operator.given import NOW, a_group, a_job, a_pod, condition, observed, pending, status_of, terminating
from understudy_operator.plan.facts import keys
from understudy_operator.plan.facts.cluster_objects import ChildJob, Node, Pod
from understudy_operator.plan.jobset.pod_queries import plan_pod_queries, query_pause_s

EVERY_S = 2.5
SELDOM_S = 30.0

PENDING = "status.phase=Pending"
NODES = {name: Node(name, name == "n1") for name in ("n1", "n2", "n3")}
STARTING = pending(a_pod("llm-workers-0-0-x"))
UNSCHEDULABLE = replace(STARTING, trouble="Unschedulable: 0/3 nodes are available")


def a_child(**changes: Any) -> ChildJob:
    """All its pods are expected, and none of them is Ready."""
    ordinary = ChildJob("uid-w", "llm-workers-0", "workers", 0, attempt=0, job_attempt=0, desired_pods=2, active=2)
    return replace(ordinary, created_at=NOW - 10, **changes)


@pytest.mark.parametrize(
    ("child", "selectors"),
    [
        (a_child(), [PENDING]),
        (a_child(ready=2), []),
        (a_child(ready=1, succeeded=1), []),
        (replace(a_child(), active=0), []),  # it has no pod that could be Pending
        (replace(a_child(), active=1, ready=1), []),
        (a_child(suspended=True), []),
        (a_child(ended=True), []),
        (replace(a_child(), created_at=NOW), []),
        (a_child(ready=2, terminating=1), ["spec.nodeName=n2", "spec.nodeName=n3"]),
        (a_child(deleting=True), ["spec.nodeName=n2", "spec.nodeName=n3"]),
        (a_child(terminating=1), [PENDING, "spec.nodeName=n2", "spec.nodeName=n3"]),
    ],
)
def test_the_query_selects_the_pods_that_delay_the_job(child: ChildJob, selectors: list[str]):
    assert list(plan_pod_queries([child], NODES, NOW).selectors) == selectors


def test_pods_whose_delay_is_explained_are_listed_at_growing_intervals():
    assert query_pause_s(0.0, [STARTING]) == query_pause_s(SELDOM_S, [STARTING]) == EVERY_S
    assert query_pause_s(0.0, [UNSCHEDULABLE]) == EVERY_S
    assert query_pause_s(EVERY_S, [UNSCHEDULABLE]) == 2 * EVERY_S
    assert query_pause_s(SELDOM_S, [UNSCHEDULABLE]) == SELDOM_S


def test_while_no_pod_is_pending_pods_are_listed_at_growing_intervals():
    # the pods run, and are not ready, or the Job controller has not reported that they are
    assert query_pause_s(0.0, []) == EVERY_S
    assert query_pause_s(EVERY_S, []) == 2 * EVERY_S
    assert query_pause_s(SELDOM_S, []) == SELDOM_S


def running(child: ChildJob, *pods: Pod, not_ready: list[str] | None = None) -> str:
    """The message of the condition Ready."""
    job = a_job(spec={"world": None, "replicated_jobs": (a_group("workers"),)})
    given = observed(job, (), children=(child,), job_pods=pods)
    nodes = {pod.node: Node(pod.node, pod.node not in (not_ready or [])) for pod in pods if pod.node}
    return str(condition(status_of(replace(given, nodes=nodes)), "Ready")["message"])


def test_a_pod_that_does_not_start_is_reported():
    assert running(a_child(), UNSCHEDULABLE) == "pod llm-workers-0-0-x: Unschedulable: 0/3 nodes are available"
    assert running(a_child()) == "0 of 2 pods are ready"


def test_a_pod_that_has_been_on_its_node_for_long_is_reported():
    slow = replace(pending(a_pod("x")), node="n1", waiting_since=NOW - 90)
    assert running(a_child(), slow).startswith("pod x has been on node n1 for more than 60 s")


def test_missing_pods_are_reported_with_a_hint():
    assert running(a_child(active=1, started_at=NOW - 10)) == (
        "Job llm-workers-0 has 1 of 2 pods: see the events of the Job (a quota or an admission webhook may "
        "reject its pods)"
    )
    assert running(a_child(active=0, started_at=NOW - 1)) == "0 of 2 pods are ready"
    assert running(a_child(active=0, succeeded=2, started_at=NOW - 10)) == ""  # it runs until the Job's end is reported


def test_a_job_that_waits_for_a_pod_on_a_dead_node_reports_it_and_does_not_delete_the_pod():
    stuck = terminating(a_pod("x", labels={keys.JOB_NAME: "llm-workers-0"}), NOW - 400)
    assert running(a_child(terminating=1), stuck) == "0 of 2 pods are ready"  # its kubelet ends it
    words = running(a_child(terminating=1), stuck, not_ready=["node-x"])
    assert words.startswith("Job llm-workers-0 waits for pod x, which is Terminating on node node-x and may still run")
    assert "node.kubernetes.io/out-of-service" in words

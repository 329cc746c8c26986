"""Pods that do not end or start are reported after a while, in stable words; scenarios/stuck.yaml has the plans."""

from dataclasses import replace

from tests.unit.operator.given import A0, A1, NOW, S, a_job, a_pod, in_round, observed, starting, terminating
from understudy_operator.plan.facts.cluster_objects import ChildJob, Pod
from understudy_operator.plan.facts.pods import Pods
from understudy_operator.plan.facts.spec import FailurePolicy, RestartStrategy
from understudy_operator.plan.jobset.children import waits_for_previous_attempt
from understudy_operator.plan.jobset.stuck import describe_leftovers, stuck_ends, stuck_starts

FINALIZER_S = 5.0
OVERDUE_S = 30.0
SLOW_START_S = 60.0


def with_finalizer(pod: Pod, since: float = NOW - 60) -> Pod:
    return replace(terminating(pod, since), blocking_finalizers=("example.com/audit",))


def describe(*pods: Pod) -> list[str]:
    given = observed(pods=pods)
    return [*stuck_ends(given, NOW), *stuck_starts(given, NOW)]


def test_a_pod_with_only_finalizers_left_is_done_and_reported_with_them():
    assert with_finalizer(A1).is_done
    assert not with_finalizer(A1).alive
    assert describe(A0, with_finalizer(A1, NOW - FINALIZER_S), S) == [
        "pod a1 has ended, but its object stays until its finalizers are removed: example.com/audit"
    ]
    assert describe(A0, with_finalizer(A1, NOW - FINALIZER_S + 0.1), S) == []


def test_a_pod_that_its_kubelet_does_not_end_is_reported_some_time_after_its_grace_period():
    overdue = A1.grace_s + OVERDUE_S
    assert describe(A0, terminating(A1, NOW - overdue + 0.1), S) == []
    (words,) = describe(A0, terminating(A1, NOW - overdue), S)
    assert words.startswith("pod a1 has not ended within its grace period: node node-a1 is Ready")
    assert stuck_ends(observed(pods=(A0, terminating(A1, 0.0), S), not_ready=["node-a1"]), NOW) == []  # it is deleted


def test_a_pod_that_has_a_node_and_no_container_is_reported_after_a_while():
    def on_its_node(ago: float, **more: str) -> Pod:
        return replace(starting(A1), waiting_since=NOW - ago, **more)  # type: ignore[arg-type]

    assert describe(A0, on_its_node(SLOW_START_S - 0.1), S) == []
    (words,) = describe(A0, on_its_node(SLOW_START_S), S)
    assert words.startswith("pod a1 has been on node node-a1 for more than 60 s, and none of its containers runs")
    assert describe(A0, on_its_node(300, trouble="container trainer: ImagePullBackOff"), S) == []  # that is enough
    assert describe(A0, replace(A1, waiting_since=NOW - 300), S) == []


def test_a_few_of_many_stuck_pods_are_reported():
    assert len(describe(*(terminating(a_pod(f"p{i}"), 0.0) for i in range(9)))) == 3


def test_a_restart_that_waits_names_the_pods_it_waits_for():
    policy = FailurePolicy(1, RestartStrategy.BLOCKING_RECREATE, ())
    job = a_job(status=in_round(-1, restarts=1), spec={"failure": policy})
    child = ChildJob("uid-d", "llm-driver-0", "driver", 0, attempt=0, job_attempt=0, desired_pods=1)
    given = replace(
        observed(job, ()),
        previous_pods=Pods((with_finalizer(A0), terminating(A1), S, a_pod("t"), a_pod("u"))),
        children=(child,),
    )
    assert waits_for_previous_attempt(given)
    assert describe_leftovers(given) == "Job llm-driver-0, pod a1, pod s and 2 more"
    assert not waits_for_previous_attempt(replace(given, previous_pods=Pods((with_finalizer(A0),)), children=()))

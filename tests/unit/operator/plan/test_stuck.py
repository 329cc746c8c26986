"""What neither ends nor begins is told once it has lasted, in words that stay; scenarios/stuck.yaml has the plans."""

from dataclasses import replace

from tests.unit.operator.given import A0, A1, NOW, S, a_job, a_pod, in_round, observed, starting, terminating
from understudy_operator.plan.jobset.children import blocked
from understudy_operator.plan.observed import ChildJob, Pod
from understudy_operator.plan.spec import FailurePolicy, RestartStrategy
from understudy_operator.plan.stuck import left_of_former, stuck_ends, stuck_starts

HELD_S = 5.0
OVERDUE_S = 30.0
SLOW_START_S = 60.0


def held(pod: Pod, since: float = NOW - 60) -> Pod:
    return replace(terminating(pod, since), held_by=("example.com/audit",))


def told(*pods: Pod) -> list[str]:
    given = observed(pods=pods)
    return [*stuck_ends(given, NOW), *stuck_starts(given, NOW)]


def test_a_pod_that_only_finalizers_hold_is_over_and_named_with_them():
    assert held(A1).over
    assert not held(A1).alive
    assert told(A0, held(A1, NOW - HELD_S), S) == [
        "pod a1 has ended, but its object stays until its finalizers are removed: example.com/audit"
    ]
    assert told(A0, held(A1, NOW - HELD_S + 0.1), S) == []


def test_a_kubelet_that_does_not_end_a_pod_is_told_after_the_grace_period_and_some_more():
    overdue = A1.grace_s + OVERDUE_S
    assert told(A0, terminating(A1, NOW - overdue + 0.1), S) == []
    (words,) = told(A0, terminating(A1, NOW - overdue), S)
    assert words.startswith("pod a1 has not ended within its grace period: node node-a1 is Ready")
    assert stuck_ends(observed(pods=(A0, terminating(A1, 0.0), S), not_ready=["node-a1"]), NOW) == []  # it is removed


def test_a_pod_that_has_a_node_and_no_container_is_told_after_a_while():
    def on_its_node(ago: float, **more: str) -> Pod:
        return replace(starting(A1), waits_since=NOW - ago, **more)  # type: ignore[arg-type]

    assert told(A0, on_its_node(SLOW_START_S - 0.1), S) == []
    (words,) = told(A0, on_its_node(SLOW_START_S), S)
    assert words.startswith("pod a1 has been on node node-a1 for more than 60 s, and none of its containers runs")
    assert told(A0, on_its_node(300, trouble="container trainer: ImagePullBackOff"), S) == []  # which says more
    assert told(A0, replace(A1, waits_since=NOW - 300), S) == []


def test_the_first_few_are_told():
    assert len(told(*(terminating(a_pod(f"p{i}"), 0.0) for i in range(9)))) == 3


def test_a_restart_that_waits_says_for_whom():
    policy = FailurePolicy(1, RestartStrategy.BLOCKING_RECREATE, ())
    job = a_job(status=in_round(-1, restarts=1), spec={"failure": policy})
    child = ChildJob("uid-d", "llm-driver-0", "driver", 0, attempt=0, own_attempt=0, wanted=1)
    given = replace(observed(job, ()), former=(held(A0), terminating(A1), S, a_pod("t"), a_pod("u")), children=(child,))
    assert blocked(given)
    assert left_of_former(given) == "Job llm-driver-0, pod a1, pod s and 2 more"
    assert not blocked(replace(given, former=(held(A0),), children=()))

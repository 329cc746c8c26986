"""Pods that users drain: what the coordinator gets, and which pods the operator deletes."""

from dataclasses import replace

import pytest

from tests.unit.operator.given import A0, A1, IMAGE, NOW, S, a_job, a_pod, a_snapshot, in_round, member, observed
from understudy_operator.plan.facts.cluster_objects import Pod
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.pods import Pods
from understudy_operator.plan.faults.drains import drain_requests
from understudy_operator.plan.intents import DeletePod, Follow
from understudy_operator.plan.leadership.coordination import plan_leadership, plan_link
from understudy_operator.plan.world.members import plan_members
from understudy_protocol.observer import DrainRequest


def drained(pod: Pod, reason: str = "a new kernel") -> Pod:
    return replace(pod, annotations={**pod.annotations, "understudy.dev/drain": reason})


def deleted(given: Observed) -> dict[str, str]:
    intents = plan_members(given, IMAGE, NOW)
    return {intent.name: intent.reason for intent in intents if isinstance(intent, DeletePod)}


@pytest.mark.parametrize(
    ("value", "reason"),
    [("a new kernel", "a new kernel"), (" x ", "x"), ("", None), ("  ", None), ("false", None), ("x" * 900, "x" * 200)],
)
def test_the_value_of_the_annotation_is_the_reason(value: str, reason: str | None) -> None:
    found = drain_requests(Pods((drained(A1, value), A0)))
    assert found == (() if reason is None else (DrainRequest("uid-a1", reason),))


def test_requests_are_in_the_same_order_whatever_the_order_of_the_pods() -> None:
    assert drain_requests(Pods((drained(A1), drained(A0)))) == drain_requests(Pods((drained(A0), drained(A1))))


def test_the_coordinator_gets_the_drains_of_pods_that_run() -> None:
    pods = (drained(A0), A1, S, drained(a_pod("old", phase="Failed")))
    given = observed(pods=pods, snapshot=a_snapshot())
    link = plan_link(given, plan_leadership(given, NOW), NOW)
    assert isinstance(link, Follow)
    assert link.drains == (DrainRequest("uid-a0", "a new kernel"),)


def test_a_drained_spare_is_deleted_and_a_drained_pod_with_ranks_is_not() -> None:
    given = observed(pods=(drained(A0), A1, drained(S)), snapshot=a_snapshot(coordinator=A0))
    assert deleted(given) == {"s": "a user drains it, and it has no ranks: a new kernel"}


def test_a_drained_spare_that_coordinates_is_deleted_once_another_pod_can_take_over() -> None:
    pods = (A0, A1, drained(S))
    assert deleted(observed(pods=pods, snapshot=a_snapshot(coordinator=S))) == {}
    assert list(deleted(observed(pods=pods, snapshot=a_snapshot(coordinator=S, standby_coordinators=[A0])))) == ["s"]


def test_a_drained_spare_stays_while_ranks_are_vacant() -> None:
    snapshot = a_snapshot((member(A0, 0), member(S, None)), waiting_for="1 of 2 pods (group ranks 1)", coordinator=A0)
    assert deleted(observed(pods=(A0, A1, drained(S)), snapshot=snapshot)) == {}


def test_a_drained_pod_that_is_no_member_yet_stays() -> None:
    snapshot = a_snapshot((member(A0, 0), member(A1, 1)))
    assert deleted(observed(pods=(A0, A1, drained(S)), snapshot=snapshot)) == {}
    before_the_first_round = a_job(status=in_round(-1))
    snapshot = a_snapshot((member(A0, None), member(S, None)), number=-1)
    assert deleted(observed(before_the_first_round, (A0, A1, drained(S)), snapshot)) == {}

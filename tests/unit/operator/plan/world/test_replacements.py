"""Pods of injected Jobs that the operator creates while the Job controller waits after failures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.operator.given import A0, A1, IMAGE, NOW, SUCCEEDED, XID_79, S, a_snapshot, ended, lost, observed
from tests.unit.operator.plan.injection.test_injected_job import an_injected_job, at
from understudy_operator.plan.facts import keys
from understudy_operator.plan.facts.cluster_objects import ChildJob, Controller, Node, Pod
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.intents import CreatePod, DeletePod
from understudy_operator.plan.reconcile import reconcile
from understudy_protocol.enums import Fault
from understudy_protocol.observer import Snapshot

TEMPLATE = {"metadata": {}, "spec": {"containers": [{"name": "trainer"}]}}
#: The Job controller has counted the loss of one of three pods.
WAITS = ChildJob("job-uid", "train", "", 0, 0, 0, 3, active=2, failed=1, template=TEMPLATE)


def pod(of: Pod, index: int, **changes: Any) -> Pod:
    placed = at(of, index)
    annotations = {**placed.annotations, keys.COMPLETION_INDEX: str(index)}
    return replace(placed, annotations=annotations, controller=Controller("Job", "train", "job-uid"), **changes)


IN_ROUND_3 = a_snapshot(number=3)
LOST = pod(A1, 1, phase="Failed")
LEFT = (pod(A0, 0), LOST, pod(S, 2))


def given(pods: tuple[Pod, ...] = LEFT, job: ChildJob = WAITS, snapshot: Snapshot | None = IN_ROUND_3) -> Observed:
    return observed(an_injected_job(), pods, children=(job,), snapshot=snapshot)


def created(facts: Observed) -> list[tuple[str, str]]:
    """The index and the reason of each pod that is created."""
    intents = [x for x in reconcile(facts, IMAGE, NOW).pods if isinstance(x, CreatePod)]
    return [(x.manifest["metadata"]["annotations"][keys.COMPLETION_INDEX], x.reason) for x in intents]


def test_the_pod_is_created_while_the_job_controller_waits() -> None:
    reason = "the Job controller waits before it replaces the pod of index 1 of Job train"
    assert created(given()) == [("1", reason)]
    # and also if the object of the lost pod is gone
    assert created(given((LEFT[0], LEFT[2]))) == [("1", reason)]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"active": 3}, "the Job controller does not know of the loss yet, or has replaced the pod"),
        ({"suspended": True}, "the Job is suspended"),
        ({"deleting": True}, "the Job is deleted"),
        ({"ended": True}, "the Job has ended"),
        ({"succeeded": 1}, "the pod of another index has succeeded, so the Job needs only two"),
    ],
)
def test_no_pod_is_created(changes: dict[str, Any], why: str) -> None:
    assert created(given(job=replace(WAITS, **changes))) == [], why


def test_no_pod_is_created_before_the_first_round_and_after_the_end() -> None:
    # a Job that has just started, or that was resumed, may still create its pods
    assert created(given(snapshot=None)) == []
    assert created(given(snapshot=a_snapshot(number=-1))) == []
    # and a pod that is lost at the end of the training is not needed any more
    done = (ended(pod(A0, 0), SUCCEEDED), LOST, pod(S, 2))
    assert created(given(done, replace(WAITS, active=1, succeeded=1))) == []


def test_an_index_with_a_pod_of_another_job_is_vacant() -> None:
    other = replace(LEFT[0], controller=Controller("Job", "other", "other-uid"))
    assert [index for index, _ in created(given((other, LEFT[2]), replace(WAITS, active=1)))] == ["0", "1"]


def test_no_more_pods_are_created_than_the_job_lacks() -> None:
    # given the newest pod of the Job controller, which the operator has not seen yet
    assert [index for index, _ in created(given((LEFT[2],), replace(WAITS, active=2)))] == ["0"]


def test_a_pod_that_terminates_is_replaced_at_once_unless_the_job_replaces_ended_pods_only() -> None:
    ending = (LEFT[0], pod(A1, 1, deleting_since=NOW - 1), LEFT[2])
    assert [index for index, _ in created(given(ending))] == ["1"]
    only_ended = replace(WAITS, replaces_ended_pods_only=True)
    assert created(given(ending, only_ended)) == []
    # and as soon as it has ended
    assert [index for index, _ in created(given(job=only_ended))] == ["1"]


def test_pods_that_fail_to_start_follow_each_other_after_growing_delays() -> None:
    # given a second pod of the index whose containers could not start, as the first one's
    annotations = {**LOST.annotations, "understudy.dev/failed-starts": "1"}
    fails = replace(LOST, annotations=annotations, could_start=False)

    def after(seconds: float) -> list[str]:
        failed = replace(fails, created_at=NOW - seconds)
        return [index for index, _ in created(given((LEFT[0], failed, LEFT[2])))]

    assert (after(1.9), after(2.1)) == ([], ["1"])


def test_the_pod_avoids_a_node_that_is_silent_and_one_with_broken_hardware() -> None:
    # given a node on which the member of index 1 has stopped responding, and a node that has lost a GPU
    silent = a_snapshot(number=3, lost=[lost(A1, Fault.NODE)])
    nodes = {"n9": Node("n9", ready=True, findings=(XID_79,))}
    facts = observed(an_injected_job(), LEFT, children=(WAITS,), snapshot=silent, nodes=nodes)
    (intent,) = [x for x in reconcile(facts, IMAGE, NOW).pods if isinstance(x, CreatePod)]
    affinity = intent.manifest["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert affinity["nodeSelectorTerms"] == [
        {
            "matchFields": [
                {"key": "metadata.name", "operator": "NotIn", "values": ["n9"]},
                {"key": "metadata.name", "operator": "NotIn", "values": [A1.node]},
            ]
        }
    ]
    assert intent.manifest["metadata"]["annotations"]["understudy.dev/avoided-nodes"] == f"n9,{A1.node}"


def test_a_pod_that_waits_for_a_node_is_created_again_when_the_node_it_avoids_may_be_used_again() -> None:
    annotations = {"understudy.dev/avoided-nodes": A1.node}
    waits = pod(replace(A1, annotations=annotations, node="", phase="Pending", trouble="0/4 nodes are available"), 1)
    waits = replace(waits, annotations={**waits.annotations, **annotations})
    pods = (LEFT[0], waits, LEFT[2])
    nodes = {name: Node(name, ready=True) for name in (A0.node, A1.node, S.node)}

    def dropped(snapshot: Snapshot | None) -> list[str]:
        job = replace(WAITS, active=3)
        facts = observed(an_injected_job(), pods, children=(job,), snapshot=snapshot, nodes=nodes)
        return [x.name for x in reconcile(facts, IMAGE, NOW).pods if isinstance(x, DeletePod)]

    assert dropped(IN_ROUND_3) == [waits.name]
    # but not while the node is silent, and not before the operator knows which nodes are
    former = replace(A1, uid="former")
    assert dropped(a_snapshot(number=3, lost=[lost(former, Fault.NODE)])) == []
    assert dropped(None) == []

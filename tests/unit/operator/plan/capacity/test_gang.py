"""The pods of a gang, the marks of a gang, and how spares stay out of it. Plans: scenarios/queue.yaml."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.operator.given import (
    A0,
    A1,
    IMAGE,
    NOW,
    TEMPLATE,
    XID_79,
    S,
    a_group,
    a_job,
    a_pod,
    a_snapshot,
    ended,
    in_round,
    member,
    observed,
    pending,
    terminating,
)
from understudy_operator.plan.capacity.gang import gang
from understudy_operator.plan.facts import queue as kueue
from understudy_operator.plan.facts.cluster_objects import Pod
from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.queue import Queue
from understudy_operator.plan.facts.spec import FailurePolicy, RestartStrategy, World
from understudy_operator.plan.intents import CreatePod, DeletePod, ReleasePod
from understudy_operator.plan.world.members import plan_members
from understudy_protocol import pod as names

YIELD_S = 5.0

TEAM = Queue("team")


def queued(job: Job, queue: Queue | None = TEAM) -> Job:
    return replace(job, queue=queue)


def enlisted(pod: Pod, group: str = "llm-1", *, of: str = "workers", **changes: Any) -> Pod:
    """The pod in a pod group of the queue."""
    own = {kueue.GROUP_NAME: group, kueue.QUEUE: "team", kueue.MANAGED: "true", names.LABEL_REPLICATED_JOB: of}
    labels = {**pod.labels, **own}
    gang = {} if pod.index is not None else {names.ANNOTATION_GANG_MEMBER: "true"}
    return replace(pod, labels=labels, annotations={**pod.annotations, **gang}, **changes)


def at_the_gate(pod: Pod) -> Pod:
    labels = {**pod.labels, kueue.MANAGED: "true"}
    return replace(pending(pod), gates=(kueue.GATE,), labels=labels, finalizers=(kueue.MANAGED,))


def of_workers(pod: Pod) -> Pod:
    return replace(pod, labels={**pod.labels, names.LABEL_REPLICATED_JOB: "workers"})


def made(given: Observed) -> list[Mapping[str, Any]]:
    return [intent.manifest for intent in plan_members(given, IMAGE, NOW) if isinstance(intent, CreatePod)]


def removed(given: Observed, now: float = NOW) -> list[str]:
    return [intent.name for intent in plan_members(given, IMAGE, now) if isinstance(intent, DeletePod)]


def kept_apart(manifests: list[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """The manifests of the gang, and the others."""
    own = [
        m for m in manifests if m["metadata"]["annotations"].get(names.ANNOTATION_GANG_MEMBER) or "spare" not in name(m)
    ]
    return own, [m for m in manifests if m not in own]


def name(manifest: Mapping[str, Any]) -> str:
    return str(manifest["metadata"]["name"])


# In Kueue's queue ---------------------------------------------------------------------------------------------------


def test_a_gang_is_one_pod_group_of_one_role_that_ends_with_its_pods():
    first, second = made(observed(queued(a_job()), ()))
    for manifest in (first, second):
        labels, annotations = manifest["metadata"]["labels"], manifest["metadata"]["annotations"]
        assert labels[kueue.QUEUE] == "team"
        assert labels[kueue.GROUP_NAME] == first["metadata"]["labels"][kueue.GROUP_NAME]
        assert annotations[kueue.GROUP_SIZE] == "2"
        assert annotations[kueue.ROLE] == "workers"
        assert annotations[kueue.RETRIABLE] == "false"
        # Kueue's webhook sets the gate and the finalizer: without Kueue the pods run
        assert "schedulingGates" not in manifest["spec"]
        assert "finalizers" not in manifest["metadata"]


def test_each_replicated_job_is_a_role_because_its_pods_may_request_other_resources():
    groups = (a_group("leader", parallelism=1), a_group("workers", parallelism=2))
    job = a_job(groups=groups, spec={"replicated_jobs": groups})
    roles = [m["metadata"]["annotations"][kueue.ROLE] for m in made(observed(queued(job), ()))]
    assert roles == ["leader", "workers", "workers"]


def test_a_pod_that_avoids_a_node_has_the_same_role():
    pods = (enlisted(A0), enlisted(ended(A1)))
    given = observed(queued(a_job(status=in_round(1))), pods, a_snapshot([member(A0, 0)], number=1))
    nodes = {name: replace(node, findings=(XID_79,)) for name, node in given.nodes.items() if name == "node-a1"}
    (new, _) = made(replace(given, nodes={**given.nodes, **nodes}))
    assert "affinity" in new["spec"]
    assert new["metadata"]["annotations"][kueue.ROLE] == "workers"


def test_two_gangs_of_a_job_are_two_groups():
    one = made(observed(queued(a_job()), (), entropy="one"))[0]["metadata"]["labels"][kueue.GROUP_NAME]
    two = made(observed(queued(a_job()), (), entropy="two"))[0]["metadata"]["labels"][kueue.GROUP_NAME]
    assert one != two
    assert one.startswith("llm-")


def test_a_spare_is_a_workload_of_its_own():
    given = observed(queued(a_job()), (enlisted(A0), enlisted(A1)))
    (spare,) = made(given)
    assert spare["metadata"]["labels"][kueue.QUEUE] == "team"
    assert kueue.GROUP_NAME not in spare["metadata"]["labels"]
    assert kueue.GROUP_SIZE not in spare["metadata"]["annotations"]


@pytest.mark.parametrize(("spares_class", "result"), [("", "research"), ("spares", None)])
def test_kueue_weighs_spares_by_their_own_priority_class_where_they_have_one(spares_class: str, result: str | None):
    job = queued(a_job(spare_priority_class=spares_class), Queue("team", "research"))
    actives = made(observed(job, ()))
    assert {m["metadata"]["labels"][kueue.PRIORITY_CLASS] for m in actives} == {"research"}
    present = [enlisted(replace(pod, labels={**pod.labels, kueue.PRIORITY_CLASS: "research"})) for pod in (A0, A1)]
    (spare,) = made(observed(job, present))
    assert spare["metadata"]["labels"].get(kueue.PRIORITY_CLASS) == result


N = enlisted(at_the_gate(a_pod("n")))
LOST_ONE = a_snapshot([member(A0, 0), member(S, 1)], number=1)

ROOM: dict[str, tuple[tuple[Pod, ...], int]] = {
    # the pods next to a0 and the spare, which trains, and how many pods join the gang
    "the lost pod has failed": ((enlisted(ended(A1)),), 1),
    "the lost pod is gone": ((), 1),
    "the lost pod ends, on its node": ((enlisted(terminating(A1)),), 0),
    "the lost pod was deleted at its gate": ((enlisted(terminating(at_the_gate(A1))),), 1),
    "its replacement is at the gate": ((enlisted(ended(A1)), N), 0),
    "its replacement has failed, too": ((enlisted(ended(A1)), enlisted(ended(a_pod("n")))), 1),
}


@pytest.mark.parametrize("case", ROOM)
def test_a_pod_joins_the_group_once_kueue_has_room_for_it(case: str):
    others, joins = ROOM[case]
    given = observed(queued(a_job(status=in_round(1))), (enlisted(A0), S, *others), LOST_ONE)
    own, separate = kept_apart(made(given))
    assert (len(own), len(separate)) == (joins, 0)
    assert {m["metadata"]["labels"][kueue.GROUP_NAME] for m in own} <= {"llm-1"}


def test_a_gang_never_has_more_pods_than_the_job_declares():
    """Any of the gang's pods may have failed, be terminating or be gone, and any of the spares too."""
    for a1 in (A1, ended(A1), terminating(A1), None):
        for spare in (S, ended(S), terminating(S), None):
            pods = [enlisted(A0), *([enlisted(a1)] if a1 else []), *([spare] if spare else [])]
            given = observed(queued(a_job(status=in_round(1))), pods, a_snapshot([member(A0, 0)], number=1))
            own, separate = kept_apart(made(given))
            counted = sum(pod.phase != "Failed" for pod in pods if pod.index is not None)
            assert len(own) + counted <= 2
            assert len(separate) + sum(pod.alive for pod in pods if pod.index is None) <= 1


def test_spares_of_a_waiting_gang_are_deleted_after_a_moment_but_not_one_that_trains():
    waits = (replace(enlisted(at_the_gate(A0)), created_at=NOW), replace(enlisted(at_the_gate(A1)), created_at=NOW))
    given = observed(
        queued(a_job(status=in_round(1))), (*waits, S), a_snapshot([member(S, None)], waiting_for="2 of 2")
    )
    assert removed(given) == []
    assert removed(given, NOW + YIELD_S) == ["s"]
    with_ranks = observed(queued(a_job(status=in_round(1), parallelism=1)), (waits[0], S), a_snapshot([member(S, 0)]))
    assert removed(with_ranks, NOW + YIELD_S) == []


def test_a_pod_at_a_gate_does_not_count_as_unschedulable():
    waits = replace(at_the_gate(A1), annotations={names.ANNOTATION_AVOIDED_NODES: "node-x"})
    assert removed(observed(queued(a_job()), (enlisted(A0), enlisted(waits)))) == []


def test_the_queue_is_that_of_the_existing_group():
    given = observed(queued(a_job(status=in_round(1)), Queue("other")), (enlisted(A0), S), LOST_ONE)
    assert gang(given).queue == TEAM
    without = observed(queued(a_job(status=in_round(1))), (A0, S), LOST_ONE)
    assert gang(without).queue is None


# Under a gang scheduler ---------------------------------------------------------------------------------------------

MARK = "scheduling.k8s.io/group-name"
MARKED = {**TEMPLATE, "metadata": {"annotations": {MARK: "llm"}, "labels": {"scheduling.x-k8s.io/pod-group": "llm"}}}
IN_SPEC = {"spec": {**TEMPLATE["spec"], "schedulingGroup": {"podGroupName": "llm"}}}


def test_actives_have_the_schedulers_marks_and_spares_do_not():
    job = a_job(pod_template=MARKED)
    actives = made(observed(job, ()))
    assert [m["metadata"]["annotations"].get(MARK) for m in actives] == ["llm", "llm"]
    (spare,) = made(observed(job, (A0, A1)))
    assert MARK not in spare["metadata"]["annotations"]
    assert "scheduling.x-k8s.io/pod-group" not in spare["metadata"]["labels"]


def test_a_pod_that_replaces_a_lost_active_has_the_marks():
    given = observed(a_job(pod_template=MARKED, status=in_round(1)), (A0, S), LOST_ONE)
    (new,) = made(given)
    assert new["metadata"]["annotations"][MARK] == "llm"
    assert new["metadata"]["labels"][names.LABEL_ROLE] == names.ROLE_SPARE


def test_kubernetes_own_gang_scheduling_is_supported():
    job = a_job(pod_template=IN_SPEC)
    assert len(made(observed(job, ()))) == 2
    (spare,) = made(observed(job, (A0, A1)))
    assert "schedulingGroup" not in spare["spec"]


def test_spares_wait_until_the_gang_has_its_nodes():
    job = a_job(pod_template=MARKED)
    assert made(observed(job, (A0, pending(A1)))) == []
    assert len(made(observed(job, (A0, A1)))) == 1


# Priority -----------------------------------------------------------------------------------------------------------


def test_spares_have_their_own_priority_class_and_actives_that_of_the_template():
    template = {
        "spec": {**TEMPLATE["spec"], "priorityClassName": "training", "priority": 9, "schedulerName": "volcano"}
    }
    *actives, spare = made(observed(a_job(pod_template=template, spare_priority_class="spares"), ()))
    assert [m["spec"]["priorityClassName"] for m in actives] == ["training", "training"]
    assert spare["spec"]["priorityClassName"] == "spares"
    assert "priority" not in spare["spec"]
    assert {m["spec"]["schedulerName"] for m in (*actives, spare)} == {"volcano"}
    same = made(observed(a_job(pod_template=template), ()))
    assert [m["spec"]["priorityClassName"] for m in same] == ["training"] * 3


def test_a_pod_that_replaces_a_lost_active_has_the_actives_priority():
    template = {"spec": {**TEMPLATE["spec"], "priorityClassName": "training"}}
    job = a_job(pod_template=template, spare_priority_class="spares", status=in_round(1))
    present = of_workers(A0)
    (new,) = made(observed(job, (present, terminating(of_workers(A1)), S), LOST_ONE))
    assert new["spec"]["priorityClassName"] == "training"
    later = of_workers(replace(a_pod("n"), annotations={names.ANNOTATION_GANG_MEMBER: "true"}))
    (next_spare,) = made(observed(job, (present, later), a_snapshot([member(A0, 0), member(later, 1)], number=2)))
    assert next_spare["spec"]["priorityClassName"] == "spares"


def test_a_job_without_a_queue_gang_or_priority_has_no_marks():
    given = observed(a_job(status=in_round(1)), (A0, S), LOST_ONE)
    (new,) = made(given)
    assert names.ANNOTATION_GANG_MEMBER not in new["metadata"]["annotations"]
    assert World(groups=()).spare_priority_class == ""


# Kueue's finalizer --------------------------------------------------------------------------------------------------

GATED = replace(terminating(enlisted(A1)), finalizers=(kueue.MANAGED, "example.com/mine"))
DEAD: dict[str, Observed] = {
    "a pod of the gang": observed(queued(a_job(status=in_round(1))), (enlisted(A0), GATED), not_ready=["node-a1"]),
    "a pod of a previous attempt": observed(queued(a_job()), (), previous_pods=(GATED,), not_ready=["node-a1"]),
    "a pod of a job that has ended": observed(
        queued(a_job(status={"terminalState": "Failed"})), (enlisted(ended(A0)), GATED), not_ready=["node-a1"]
    ),
}


@pytest.mark.parametrize("case", DEAD)
def test_only_kueues_finalizer_is_removed_from_a_pod_on_a_dead_node(case: str):
    given = DEAD[case]
    released = [intent for intent in plan_members(given, IMAGE, NOW) if isinstance(intent, ReleasePod)]
    assert [(intent.name, intent.finalizers) for intent in released] == [("a1", ("example.com/mine",))]


def test_kueues_finalizer_is_not_removed_from_a_pod_on_a_ready_node():
    given = observed(queued(a_job(status=in_round(1))), (enlisted(A0), GATED))
    assert not [intent for intent in plan_members(given, IMAGE, NOW) if isinstance(intent, ReleasePod)]


def test_a_previous_pod_that_never_had_a_node_delays_no_restart():
    blocking = FailurePolicy(1, RestartStrategy.BLOCKING_RECREATE)
    job = queued(a_job(spec={"failure": blocking}))
    assert len(made(observed(job, (), previous_pods=(terminating(enlisted(at_the_gate(A1))),)))) == 2
    assert made(observed(job, (), previous_pods=(GATED,))) == []

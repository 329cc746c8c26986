"""The pods that the store remembers once their objects are gone, and for how long: also on a standby replica."""

from __future__ import annotations

import time
from typing import Any

import pytest

from understudy_operator.observe.gone_pods import GonePods
from understudy_operator.observe.store import Kind, Store
from understudy_operator.plan.facts.cluster_objects import Stay
from understudy_protocol import pod as names

JOB, OTHER = ("research", "uid-of-job"), ("research", "uid-of-other")
CREATED, CREATED_AT = "2026-11-20T10:00:00Z", 1795168800.0
NOW = 1795170000.0


class Clock:
    now = NOW


def a_pod(name: str, uid: str = "", node: str = "node-1", owner: str = JOB[1], version: str = "1") -> dict[str, Any]:
    reference = {"apiVersion": "understudy.dev/v1alpha1", "kind": "TrainingJob", "controller": True, "uid": owner}
    metadata = {
        "name": name,
        "namespace": "research",
        "uid": uid or f"uid-{name}",
        "resourceVersion": version,
        "creationTimestamp": CREATED,
        "ownerReferences": [reference],
        "labels": {names.LABEL_JOB_UID: owner},
    }
    return {"metadata": metadata, "spec": {"nodeName": node} if node else {}, "status": {"phase": "Running"}}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> Store:
    return Store(wall=lambda: clock.now)


def stay(name: str, until: float, node: str = "node-1", uid: str = "") -> Stay:
    return Stay(name, uid or f"uid-{name}", node, CREATED_AT, until)


def test_a_pod_that_is_gone_is_remembered_with_its_node_for_ten_minutes(store: Store, clock: Clock):
    for name in ("a", "b"):
        store.put(Kind.POD, a_pod(name))
    assert store.past_stays(JOB) == ()
    store.remove(Kind.POD, a_pod("a"))
    assert store.past_stays(JOB) == (stay("a", NOW),)
    clock.now = NOW + 600
    assert store.past_stays(JOB) == (stay("a", NOW),)
    clock.now = NOW + 601
    assert store.past_stays(JOB) == ()


def test_a_pod_that_a_list_lacks_is_remembered(store: Store):
    store.put(Kind.POD, a_pod("a"))
    store.replace(Kind.POD, [], float("inf"))
    assert store.past_stays(JOB) == (stay("a", NOW),)


def test_a_pod_that_another_one_of_its_name_replaces_is_remembered(store: Store):
    """As those of a PyTorchJob."""
    store.put(Kind.POD, a_pod("a", uid="uid-1"))
    store.put(Kind.POD, a_pod("a", uid="uid-2", node="node-2", version="2"))
    assert store.past_stays(JOB) == (stay("a", NOW, uid="uid-1"),)


def test_a_pod_that_changes_or_has_no_node_is_not_remembered(store: Store):
    store.put(Kind.POD, a_pod("a"))
    store.put(Kind.POD, a_pod("a", version="2"))
    store.put(Kind.POD, a_pod("b", node=""))
    store.remove(Kind.POD, a_pod("b", node=""))
    assert store.past_stays(JOB) == ()


def test_pods_of_another_job_are_not_remembered_for_this_one(store: Store):
    store.put(Kind.POD, a_pod("a", owner=OTHER[1]))
    store.remove(Kind.POD, a_pod("a", owner=OTHER[1]))
    assert (store.past_stays(JOB), store.past_stays(OTHER)) == ((), (stay("a", NOW),))


def test_the_memory_of_jobs_that_nobody_asks_about_ends_too():
    """A standby replica reconciles no job."""
    gone = GonePods()
    for name in ("a", "b"):
        gone.add(JOB, stay(name, NOW), NOW)
    assert len(gone) == 2
    gone.add(OTHER, stay("c", NOW + 601), NOW + 601)
    assert len(gone) == 1


def test_a_namespace_that_deletes_many_pods_takes_limited_memory_and_none_of_other_namespaces():
    """A tenant writes the labels and owners of its pods, so the number of owners is no limit."""
    gone = GonePods()
    other = ("other", "uid")
    gone.add(other, stay("kept", NOW), NOW)
    for number in range(20_100):
        gone.add(("research", f"uid-{number // 2}"), stay(f"pod-{number}", NOW), NOW)
    assert len(gone) == 20_001
    assert gone.of_owner(other, NOW) == (stay("kept", NOW),)
    # then the oldest ones are forgotten, also of a single owner
    last = 20_099
    assert gone.of_owner(("research", f"uid-{last // 2}"), NOW)[-1] == stay(f"pod-{last}", NOW)
    for number in range(20_100):
        gone.add(JOB, stay(f"of-job-{number}", NOW), NOW)
    assert len(gone) == 20_001
    assert gone.of_owner(JOB, NOW)[-1] == stay(f"of-job-{last}", NOW)
    # and the counts are right when all of them are old
    gone.add(("third", "uid"), stay("later", NOW + 601), NOW + 601)
    assert len(gone) == 1
    assert not gone.of_owner(JOB, NOW + 601)


def test_an_end_costs_the_same_however_many_jobs_have_lost_pods():
    """Thousands of jobs of one pod end at once, for example in a sweep."""

    def seconds(gone: GonePods, number: int) -> float:
        begun = time.thread_time()
        for step in range(500):
            gone.add((f"team-{number}", f"uid-{number}-{step}"), stay("a", NOW), NOW)
        return time.thread_time() - begun

    full = GonePods()
    for number in range(20):
        seconds(full, number)
    assert min(seconds(full, number) for number in range(20, 23)) < 5 * min(seconds(GonePods(), 0) for _ in range(3))

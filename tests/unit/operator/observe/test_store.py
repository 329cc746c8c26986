"""The store: a new state replaces the old one, and a removed object does not come back."""

import time
from collections.abc import Mapping
from typing import Any

import pytest

from tests.unit.operator.fake_api import owned_by
from tests.unit.webhook.golden import pod as golden_pod
from understudy_operator.observe.read_node import read_node
from understudy_operator.observe.store import Kind, Store, job_key_of
from understudy_operator.plan.facts.cluster_objects import Node
from understudy_operator.plan.injection.injected_pods import inject
from understudy_protocol import pod as names

JOB = ("research", "job-uid")


def a_raw(
    name: str = "a",
    version: int = 1,
    uid: str = "",
    job_uid: str = "job-uid",
    owners: list[dict[str, Any]] | None = None,
    **more: Any,
) -> dict[str, Any]:
    labels = {names.LABEL_JOB: "llm", names.LABEL_JOB_UID: job_uid}
    metadata = {"namespace": "research", "name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    owned = {"labels": labels, "ownerReferences": owned_by(job_uid) if owners is None else owners}
    return {"metadata": {**metadata, **owned}, "spec": {}, "status": {}, **more}


def names_in(store: Store, job_uid: str = "job-uid") -> list[str]:
    return [raw["metadata"]["name"] for raw in store.of_job(Kind.POD, ("research", job_uid))]


@pytest.fixture
def store() -> Store:
    return Store()


def test_a_new_state_replaces_the_old_one(store: Store):
    store.put(Kind.POD, a_raw(version=1, status={"phase": "Pending"}))
    store.put(Kind.POD, a_raw(version=2))
    assert store.get(Kind.POD, ("research", "a")) == a_raw(version=2)


def test_objects_are_found_by_kind_name_and_job(store: Store):
    store.put(Kind.POD, a_raw("b"))
    store.put(Kind.POD, a_raw("a"))
    store.put(Kind.POD, a_raw("c", job_uid="another"))
    store.put(Kind.SERVICE, a_raw("d"))
    assert names_in(store) == ["a", "b"]
    assert names_in(store, "another") == ["c"]
    assert [raw["metadata"]["name"] for raw in store.all(Kind.SERVICE)] == ["d"]
    assert store.get(Kind.POD, ("research", "d")) is None


def test_an_object_that_changes_its_job_is_found_by_the_new_one_only(store: Store):
    store.put(Kind.POD, a_raw(version=1))
    store.put(Kind.POD, a_raw(version=2, job_uid="another"))
    assert (names_in(store), names_in(store, "another")) == ([], ["a"])


def test_a_spare_of_a_pool_is_found_by_the_pool_and_by_the_job_that_has_claimed_it(store: Store):
    # given a spare that a job has claimed, and a pod of the job that came from the pool
    spare = a_raw("s", job_uid="pool-uid", owners=owned_by("pool-uid", "HotSparePool"))
    replacements = a_raw("l")
    spare["metadata"]["labels"][names.LABEL_CLAIMED_BY_UID] = "job-uid"
    replacements["metadata"]["labels"][names.LABEL_POOL_UID] = "pool-uid"
    store.put(Kind.POD, spare)
    store.put(Kind.POD, replacements)

    # then job and pool find both
    assert names_in(store) == names_in(store, "pool-uid") == ["l", "s"]

    # and only the pool finds the spare once it is released
    store.put(Kind.POD, a_raw("s", version=2, job_uid="pool-uid"))
    assert (names_in(store), names_in(store, "pool-uid")) == (["l"], ["l", "s"])


def test_an_object_with_the_labels_of_a_job_that_does_not_own_it_belongs_to_no_job(store: Store):
    # given a copy of a pod, one that another job owns, and one whose owner is not its controller
    raws = {name: a_raw(name) for name in ("copied", "of-another", "not-controlled")}
    del raws["copied"]["metadata"]["ownerReferences"]
    raws["of-another"]["metadata"]["ownerReferences"] = owned_by("another")
    raws["not-controlled"]["metadata"]["ownerReferences"] = [{"uid": "job-uid"}]
    for raw in raws.values():
        store.put(Kind.POD, raw)

    # then the store has them, and they belong to no job
    assert len(store.all(Kind.POD)) == 3
    assert (names_in(store), names_in(store, "another")) == ([], [])


def test_a_labelled_object_in_another_namespace_does_not_belong_to_the_job(store: Store):
    # given objects with the job's labels, in a namespace that sorts before the job's
    for kind in (Kind.POD, Kind.SERVICE):
        forged = a_raw("b")
        forged["metadata"]["namespace"] = "another"
        store.put(kind, a_raw("a"))
        store.put(kind, forged)

    # then the job does not have them
    assert names_in(store) == ["a"]
    assert [raw["metadata"]["name"] for raw in store.of_job(Kind.SERVICE, JOB)] == ["a"]


def test_managed_fields_are_not_kept_and_the_object_given_is_not_changed(store: Store):
    raw = a_raw()
    raw["metadata"]["managedFields"] = [{"manager": "kubelet"}]
    store.put(Kind.POD, raw)
    assert store.get(Kind.POD, ("research", "a")) == a_raw()
    assert "managedFields" in raw["metadata"]


def test_a_late_removal_does_not_remove_a_new_object_of_the_same_name(store: Store):
    store.put(Kind.POD, a_raw(version=3, uid="new"))
    store.remove(Kind.POD, a_raw(version=2, uid="old"))
    assert names_in(store) == ["a"]
    store.remove(Kind.POD, a_raw(version=4, uid="new"))
    assert names_in(store) == []


def test_an_older_state_of_an_object_does_not_replace_a_newer_one(store: Store):
    # given the answer to a write of the operator, and then the watch and a list, which are a moment behind
    asked_at = time.monotonic()
    store.put(Kind.POD, a_raw(version=10, status={"phase": "Running"}))
    store.put(Kind.POD, a_raw(version=9))
    store.replace(Kind.POD, [a_raw(version=9)], asked_at)
    assert store.get(Kind.POD, ("research", "a")) == a_raw(version=10, status={"phase": "Running"})


def test_another_object_of_the_same_name_replaces_it_and_a_late_event_of_the_previous_one_does_not(store: Store):
    store.put(Kind.POD, a_raw(version=9))
    store.put(Kind.POD, a_raw(version=10, uid="another"))
    store.put(Kind.POD, a_raw(version=9))
    assert store.get(Kind.POD, ("research", "a")) == a_raw(version=10, uid="another")


def test_a_list_replaces_older_knowledge_even_if_versions_restarted(store: Store):
    # given an API server that was restored from a backup: its versions are older than the known ones
    store.put(Kind.POD, a_raw(version=1000, status={"phase": "Running"}))
    store.replace(Kind.POD, [a_raw(version=500)], requested_at=time.monotonic())
    assert store.get(Kind.POD, ("research", "a")) == a_raw(version=500)


def test_an_object_that_a_list_lacks_does_not_come_back_with_a_late_event(store: Store):
    store.put(Kind.POD, a_raw(version=1))
    store.replace(Kind.POD, [], requested_at=time.monotonic())
    store.put(Kind.POD, a_raw(version=2))
    assert names_in(store) == []


def test_an_object_in_a_list_exists_although_it_counted_as_removed(store: Store):
    # given a pod that was deleted with grace period 0, and that has a finalizer
    store.put(Kind.POD, a_raw(version=1))
    store.remove(Kind.POD, a_raw(version=2))
    store.replace(Kind.POD, [a_raw(version=2)], requested_at=time.monotonic())
    assert names_in(store) == ["a"]


def test_the_store_keeps_nothing_of_removed_objects(store: Store):
    for number in range(100):
        raw = a_raw(f"p{number}", job_uid=f"job-{number}")
        store.put(Kind.POD, raw)
        store.of_job(Kind.POD, ("research", f"another-{number}"))
        if number % 2:
            store.remove(Kind.POD, raw)
    store.replace(Kind.POD, [], requested_at=time.monotonic())
    store.replace(Kind.POD, [], requested_at=time.monotonic())
    assert store.size() == 0


def test_an_object_is_read_once_for_each_of_its_states(store: Store):
    read: list[str] = []

    def reader(raw: Any) -> str:
        read.append(raw["metadata"]["resourceVersion"])
        return str(raw["metadata"]["name"])

    store.put(Kind.POD, a_raw(version=1))
    for _ in range(3):
        assert store.facts_of_job(Kind.POD, JOB, reader, tuple) == ("a",)
        assert store.fact(Kind.POD, ("research", "a"), reader) == "a"
    store.put(Kind.POD, a_raw(version=2))
    assert store.facts(Kind.POD, reader) == ["a"]
    assert store.facts_of_job(Kind.POD, JOB, reader, tuple) == ("a",)
    assert read == ["1", "2"]
    # all callers get one object, until one of the job's objects changes
    assert store.facts_of_job(Kind.POD, JOB, reader, tuple) is store.facts_of_job(Kind.POD, JOB, reader, tuple)
    store.put(Kind.POD, a_raw("b"))
    assert store.facts_of_job(Kind.POD, JOB, reader, tuple) == ("a", "b")
    store.remove(Kind.POD, a_raw("a"))
    assert store.facts_of_job(Kind.POD, JOB, reader, tuple) == ("b",)
    assert store.fact(Kind.POD, ("research", "c"), reader) is None


def test_a_state_that_arrives_twice_is_read_once(store: Store):
    read: list[str] = []

    def reader(raw: Any) -> str:
        read.append(raw["metadata"]["resourceVersion"])
        return str(raw["metadata"]["name"])

    # given the answer to a write of the operator, the watch event of it, and the event of a later write
    for version in (7, 7, 8):
        store.put(Kind.POD, a_raw(version=version))
        store.facts(Kind.POD, reader)
    assert read == ["7", "8"]


def a_node(name: str = "n", version: int = 1, heartbeat: int = 0, *, ready: bool = True) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": str(ready), "lastHeartbeatTime": f"2026-11-21T10:00:{heartbeat:02}Z"}]
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {}, "status": {"conditions": conditions}}


def test_a_heartbeat_neither_replaces_the_map_of_nodes_nor_reads_other_nodes(store: Store):
    read = list[str]()

    def reader(raw: Mapping[str, Any]) -> Node:
        read.append(raw["metadata"]["name"])
        return read_node(raw)

    store.put(Kind.NODE, a_node("a"))
    store.put(Kind.NODE, a_node("b"))
    nodes = store.nodes(reader)
    read.clear()
    store.put(Kind.NODE, a_node("a", version=2, heartbeat=7))
    assert store.nodes(reader) is nodes
    assert read == ["a"]


def test_a_map_of_nodes_is_of_one_moment_and_the_next_one_has_all_changes(store: Store):
    for name in ("changed", "deleted", "same"):
        store.put(Kind.NODE, a_node(name))
    before = store.nodes(read_node)
    store.put(Kind.NODE, a_node("changed", version=2, ready=False))
    store.remove(Kind.NODE, a_node("deleted", version=2))
    store.put(Kind.NODE, a_node("new"))
    after = store.nodes(read_node)
    assert {name: node.ready for name, node in before.items()} == {"changed": True, "deleted": True, "same": True}
    assert {name: node.ready for name, node in after.items()} == {"changed": False, "same": True, "new": True}


def test_a_late_state_of_a_removed_object_does_not_bring_it_back(store: Store):
    # given a pod that the operator removed with grace period 0, and then states from just before by watch and list
    store.put(Kind.POD, a_raw(version=1))
    asked_at = time.monotonic()
    store.remove(Kind.POD, a_raw(version=2))
    store.put(Kind.POD, a_raw(version=2))
    store.replace(Kind.POD, [a_raw(version=2)], asked_at)
    assert names_in(store) == []


def test_an_object_that_a_list_lacks_is_gone(store: Store):
    store.put(Kind.POD, a_raw("a"))
    store.put(Kind.POD, a_raw("b"))
    store.put(Kind.SERVICE, a_raw("s"))
    store.replace(Kind.POD, [a_raw("b", version=2), a_raw("c")], requested_at=time.monotonic())
    assert names_in(store) == ["b", "c"]
    assert store.get(Kind.SERVICE, ("research", "s")) is not None


def test_an_event_that_arrived_after_a_lists_request_outlasts_the_list(store: Store):
    asked_at = time.monotonic()
    store.put(Kind.POD, a_raw("new"))
    store.put(Kind.POD, a_raw("changed", version=5))
    store.replace(Kind.POD, [a_raw("changed", version=4)], asked_at)
    assert names_in(store) == ["changed", "new"]
    assert store.get(Kind.POD, ("research", "changed")) == a_raw("changed", version=5)


def test_an_object_reports_the_job_that_it_belongs_to():
    assert job_key_of(a_raw()) == ("research", "llm")
    assert job_key_of({"metadata": {"namespace": "research", "name": "x"}}) is None


def test_an_object_that_a_list_repeats_is_not_read_again(store: Store):
    # given a pod that was read
    reads = list[str]()

    def reader(raw: Mapping[str, Any]) -> str:
        reads.append(raw["metadata"]["resourceVersion"])
        return "read"

    store.put(Kind.POD, a_raw("a", version=5))
    store.facts(Kind.POD, reader)
    # when a list has it unchanged, and then a newer state
    for version in (5, 6):
        store.replace(Kind.POD, [a_raw("a", version=version)], requested_at=time.monotonic())
        store.facts(Kind.POD, reader)
    # then only the newer state was read again
    assert reads == ["5", "6"]


# Injected jobs: their pods and Jobs are owned by a Job, a JobSet or a PyTorchJob --------------------------------------


def an_injected_pod(kind: str) -> dict[str, Any]:
    raw = inject(golden_pod(kind), "sidecar:1").pod
    raw["metadata"] |= {"name": kind, "uid": f"uid-{kind}", "resourceVersion": "1"}
    return raw


@pytest.mark.parametrize("kind", ["job", "jobset", "pytorchjob", "torchrun"])
def test_an_injected_pod_belongs_to_the_job_that_controls_it_and_a_copy_to_none(store: Store, kind: str):
    pod = an_injected_pod(kind)
    namespace, uid = pod["metadata"]["namespace"], pod["metadata"]["labels"][names.LABEL_JOB_UID]
    copied = an_injected_pod(kind)
    copied["metadata"] |= {"name": "copy", "uid": "uid-copy", "ownerReferences": []}
    for raw in (pod, copied):
        store.put(Kind.POD, raw)
    assert [raw["metadata"]["name"] for raw in store.of_job(Kind.POD, (namespace, uid))] == [kind]


def test_a_job_with_the_name_of_a_jobsets_job_adds_pods_to_an_injected_training(store: Store):
    """A limit that docs/explanation/security.md states: the operator does not read which JobSet owns the Job."""
    pod = an_injected_pod("jobset")
    namespace, uid = pod["metadata"]["namespace"], pod["metadata"]["labels"][names.LABEL_JOB_UID]
    (controller,) = pod["metadata"]["ownerReferences"]
    pod["metadata"]["ownerReferences"] = [{**controller, "uid": "forged"}]
    store.put(Kind.POD, pod)
    assert [raw["metadata"]["name"] for raw in store.of_job(Kind.POD, (namespace, uid))] == ["jobset"]


def test_jobs_of_an_injected_jobset_and_an_injected_job_itself_are_known_and_copies_are_not(store: Store):
    # given a JobSet in its second attempt; its members' membership is its uid and the attempt
    jobset = [{"kind": "JobSet", "uid": "jobset-uid", "controller": True}]
    raws = {
        "own": a_raw("own", job_uid="jobset-uid-1", owners=jobset),
        "copied": a_raw("copied", job_uid="jobset-uid-1", owners=[]),
        "of-another": a_raw("of-another", job_uid="another-1", owners=jobset),
        "itself": a_raw("itself", uid="job-1", job_uid="job-1", owners=[]),
    }
    for raw in raws.values():
        raw["metadata"]["labels"][names.LABEL_JOB] = "jobset.llm.1"
        store.put(Kind.CHILD, raw)
    for uid, found in (("jobset-uid-1", ["own"]), ("another-1", []), ("job-1", ["itself"])):
        assert [raw["metadata"]["name"] for raw in store.of_job(Kind.CHILD, ("research", uid))] == found


def test_a_malformed_object_is_logged_once_and_not_for_each_change_of_its_status(
    store: Store, caplog: pytest.LogCaptureFixture
):
    # given a pod that cannot be read, and changes of it that do not correct it
    for version in (1, 2, 3):
        store.put(Kind.POD, a_raw(version=version, spec={"containers": 3}))
    store.replace(Kind.POD, [a_raw(version=4, spec={"containers": 3})], requested_at=time.monotonic())
    # then one line reports it
    assert [record.getMessage() for record in caplog.records] == [
        "pods research/a is malformed: spec.containers: Expected `array | null`, got `int`"
    ]
    # and another line reports the next error, or another pod of its name
    store.put(Kind.POD, a_raw(version=5, spec={"containers": "x"}))
    store.put(Kind.POD, a_raw(version=6, spec={"containers": "x"}, uid="another"))
    assert len(caplog.records) == 3
    # and the store keeps nothing of it once the pod is gone
    store.remove(Kind.POD, a_raw(version=7, spec={"containers": "x"}, uid="another"))
    assert store.size() == 1  # the uid of the removed object

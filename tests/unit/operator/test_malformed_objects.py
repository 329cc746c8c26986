"""Objects of a tenant that cannot be read: they affect only themselves."""

import asyncio
import json
from typing import Any

import pytest

from tests.unit.operator.controllers.test_job_worker import links
from tests.unit.operator.fake_api import CREATED, Raw, owned_by
from tests.unit.operator.given_operator import PODS, ClusterApi, Running, running
from tests.unit.virtual_time import in_virtual_time
from understudy_operator.observe.read import read_job
from understudy_operator.observe.resync import PATHS
from understudy_operator.observe.store import Kind, Store
from understudy_operator.runtime.decoding import decoder

__all__ = ["links"]  # a fixture

pytestmark = pytest.mark.usefixtures("links")


def a_pod(name: str, labels: Raw, *, spec: Raw, **metadata: Any) -> Raw:
    whole = {"namespace": "tenant", "name": name, "uid": f"uid-{name}", "resourceVersion": "50", "labels": labels}
    metadata = {**whole, "creationTimestamp": CREATED, **metadata}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}


def a_pod_of_an_injected_job() -> Raw:
    """A pod with the webhook's fields, and an invalid number of workers."""
    labels = {"understudy.dev/job-name": "a.b", "understudy.dev/job-uid": "x"}
    env = [{"name": "UNDERSTUDY_NPROC_PER_NODE", "value": "eight"}]
    return a_pod("nproc", labels, spec={"containers": [{"name": "c", "env": env}]})


def a_pod_of_a_pool() -> Raw:
    """A pod with a pool's label, and an invalid index."""
    labels = {"understudy.dev/job-uid": "x", "understudy.dev/pool": "p", "understudy.dev/claimed-by-uid": "y"}
    env = [{"name": "UNDERSTUDY_INDEX", "value": "x"}]
    return a_pod("index", labels, spec={"initContainers": [{"name": "c", "env": env}], "containers": []})


def a_pod_without_a_shape() -> Raw:
    return a_pod("shape", {"understudy.dev/job-uid": "x"}, spec={"containers": 3})


async def trains(cluster: Running, name: str = "llm") -> None:
    await cluster.until(lambda: len(cluster.api.pods_of(name)) == 2)


@pytest.mark.attack(
    "A1",
    "creates one malformed pod before the operator starts",
    before="no replica could lead again: ValueError in plan/injection/targets.py and observe/read.py",
)
@pytest.mark.parametrize(
    "pod",
    [a_pod_of_an_injected_job(), a_pod_of_a_pool(), a_pod_without_a_shape()],
    ids=lambda raw: str(raw["metadata"]["name"]),
)
@in_virtual_time
async def test_an_existing_malformed_pod_does_not_stop_the_operator(pod: Raw) -> None:
    # given the pod, and a job of another tenant
    api = ClusterApi()
    api.put(f"/api/v1/namespaces/tenant/pods/{pod['metadata']['name']}", pod)
    api.apply_job()
    # when an operator starts, then the job gets its pods, and no task ends
    async with running(api) as cluster:
        await trains(cluster)
        assert cluster.operator.alive
        assert dict(cluster.operator.waiting) == {}
        # and so do later jobs
        api.send_event(Kind.JOB, "ADDED", api.apply_job("later"))
        await trains(cluster, "later")


@pytest.mark.attack(
    "A1", "creates one malformed pod while the operator runs", before="the watch of pods ended, for the whole cluster"
)
@pytest.mark.parametrize(
    "pod",
    [a_pod_of_an_injected_job(), a_pod_of_a_pool(), a_pod_without_a_shape()],
    ids=lambda raw: str(raw["metadata"]["name"]),
)
@in_virtual_time
async def test_a_new_malformed_pod_does_not_end_the_watch_of_pods(pod: Raw) -> None:
    # given an operator
    api = ClusterApi()
    async with running(api) as cluster:
        await cluster.until(lambda: cluster.operator.synced)
        watch = cluster.task("watch of pods")
        # when a pod is created that cannot be read, and then a pod of a job ends
        api.send_event(Kind.POD, "ADDED", pod)
        api.send_event(Kind.JOB, "ADDED", api.apply_job())
        await trains(cluster)
        lost = api.pods_of("llm")[0]
        del api.objects[f"{PODS}/{lost['metadata']['name']}"]
        api.send_event(Kind.POD, "DELETED", {**lost, "metadata": {**lost["metadata"], "resourceVersion": "900"}})
        # then the operator is notified by the same watch, and replaces the pod
        await trains(cluster)
        assert lost["metadata"]["name"] not in {pod["metadata"]["name"] for pod in api.pods_of("llm")}
        assert cluster.task("watch of pods") is watch


@in_virtual_time
async def test_a_malformed_pod_is_reported_once_on_the_pod_itself() -> None:
    # given an unreadable pod of a job, which every list and every reconcile repeats
    api = ClusterApi()
    pod = a_pod_of_an_injected_job()
    api.put("/api/v1/namespaces/tenant/pods/nproc", pod)
    async with running(api) as cluster:
        # when it has been listed several times
        await asyncio.sleep(300.0)
        # then one event on it reports the field, the error and the fix
        (event,) = api.events_on("nproc")
        assert (event["type"], event["reason"], event["metadata"]["namespace"]) == (
            "Warning",
            "MalformedObject",
            "tenant",
        )
        assert event["regarding"]["kind"] == "Pod"
        assert "UNDERSTUDY_NPROC_PER_NODE of container c is 'eight'" in event["note"]
        assert "delete the pod" in event["note"]
        # and a metric counts the pod until it is gone
        assert cluster.logged()[("understudy_malformed_objects", "pods")] == 1
        del api.objects["/api/v1/namespaces/tenant/pods/nproc"]
        api.send_event(Kind.POD, "DELETED", pod)
        await cluster.until(lambda: cluster.logged()[("understudy_malformed_objects", "pods")] == 0)


def a_job_from_the_future() -> Raw:
    """A status that a user with write access has written, or that has times of a coordinator with a wrong clock."""
    recovery = {"fault": "Node", "cause": {"node": "n1"}, "detectedAt": "2036-11-20T10:00:00.000000Z"}
    return {"recoveries": [recovery, {"fault": "Node", "cause": {"node": "n1"}}, {"detectedAt": "yesterday"}]}


MALFORMED: list[tuple[Kind, Raw]] = [
    (Kind.JOB, {"spec": {"replicatedJobs": "none"}}),
    (Kind.JOB, {"spec": {}, "status": a_job_from_the_future()}),
    (
        Kind.JOB,
        {
            "spec": {"replicatedJobs": []},
            "status": {"round": "three", "conditions": [{}], "recoveriesByStrategy": {"": 1}},
        },
    ),
    (Kind.JOB, {"metadata": {"creationTimestamp": "0000-00-00T00:00:00Z"}}),
    (Kind.INJECTED, {"spec": {"target": 3}}),
    (Kind.INJECTED, {}),
    (Kind.POOL, {"spec": {"replicas": 1}}),
    (Kind.POOL, {"spec": {"autoSize": {}, "template": {}}, "status": {"desired": "x", "autoSize": {"nodeDays": "x"}}}),
    (Kind.CHILD, {"spec": {"parallelism": "many"}}),
    (Kind.SERVICE, {"spec": {"clusterIP": 3}}),
    (Kind.CLAIM, {"spec": 3}),
    (Kind.NODE, {"status": {"conditions": "none"}}),
    (
        Kind.NODE,
        {"metadata": {"annotations": {"understudy.dev/faulty": "x", "understudy.dev/fault-expires": "9" * 400}}},
    ),
    (Kind.NODE, {"metadata": {"creationTimestamp": "soon"}}),
]


NO_OBJECTS: list[Any] = [
    3,
    [],
    {},
    {"metadata": 3},
    {"metadata": {"name": 3}},
    {"metadata": {"name": "m", "labels": []}},
]


def malformed(kind: Kind, name: str, changes: Raw) -> Raw:
    """A malformed object of that kind, in the namespace and of the job of these tests."""
    labels = {"understudy.dev/job-name": "llm", "understudy.dev/job-uid": "uid-llm"}
    metadata: Raw = {"name": name, "uid": f"uid-{name}", "resourceVersion": "60", "creationTimestamp": CREATED}
    if kind is not Kind.NODE:
        metadata |= {"namespace": "research", "labels": labels, "ownerReferences": owned_by("uid-llm")}
    return {**changes, "metadata": metadata | changes.get("metadata", {})}


def path_of(kind: Kind, name: str) -> str:
    group, _, plural = PATHS[kind][0].rpartition("/")
    return f"{group}/nodes/{name}" if kind is Kind.NODE else f"{group}/namespaces/research/{plural}/{name}"


@pytest.mark.attack(
    "A1", "creates a malformed object of each kind", before="reconciles, node memory and policies ended"
)
@in_virtual_time
async def test_malformed_objects_of_all_kinds_stop_nothing() -> None:
    # given an operator with a running job
    api = ClusterApi()
    api.put("/api/v1/nodes/n1", {"kind": "Node", "metadata": {"name": "n1"}})
    api.apply_job()
    async with running(api) as cluster:
        await trains(cluster)
        # when unreadable objects of all kinds are created, some of them with the job's labels
        for number, (kind, changes) in enumerate(MALFORMED):
            api.send_event(kind, "ADDED", api.put(path_of(kind, f"m{number}"), malformed(kind, f"m{number}", changes)))
        for kind in Kind:
            for raw in NO_OBJECTS:
                api.send_event(kind, "MODIFIED", raw)
        await asyncio.sleep(120.0)
        # then the operator does its work for others, and serves metrics
        api.send_event(Kind.JOB, "ADDED", api.apply_job("later"))
        await trains(cluster, "later")
        await cluster.until(
            lambda: "/apis/networking.k8s.io/v1/namespaces/research/networkpolicies/later-members" in api.objects
        )
        assert dict(cluster.operator.waiting) == {}
        assert cluster.logged()[("understudy_malformed_objects", "nodes")] >= 2
        assert not any(
            value for name, value in cluster.logged().items() if name[0] == "understudy_watch_event_errors_total"
        )
        assert not any(
            value
            for name, value in cluster.logged().items()
            if name[:2] == ("understudy_reconcile_errors_total", "Bug")
        )
        # and the operator rewrites an invalid status; all other objects have their events
        assert "round" not in api.objects[path_of(Kind.JOB, "m2")]["status"]
        assert "spec.parallelism: Expected `int | null`, got `str`" in api.events_on("m8")[0]["note"]
        assert "conditions" in api.events_on("m11")[0]["note"]


@pytest.mark.attack(
    "A1",
    "nests the template of a TrainingJob 9,000 times, which the CRD lets through",
    before="RecursionError ended kopf, and the operator with it, after each restart again",
)
def test_an_object_that_is_nested_too_deeply_is_skipped() -> None:
    # given an API server whose list has such a job between two others
    first, deep, last = (ClusterApi().apply_job(name) for name in ("a", "b", "c"))
    text = ",".join(json.dumps(raw) for raw in (first, deep, last))
    text = text.replace('"replicatedJobs"', '"deep": ' + "[" * 9000 + "]" * 9000 + ', "replicatedJobs"', 2)
    page = decoder("GET", PATHS[Kind.JOB][0])(f'{{"metadata": {{}}, "items": [{text}]}}'.encode())
    # when the list is decoded, then it has the others, and only the name of the deeply nested one
    items = list(page["items"])
    assert [raw["metadata"]["name"] for raw in items] == ["a", "b", "c"]
    assert ["spec" in raw for raw in items] == [False, False, True]
    # and the store reports the error
    store = Store()
    store.replace(Kind.JOB, items, 0.0)
    assert [job.name for job in store.facts(Kind.JOB, read_job)] == ["c"]
    assert [found.name for found in store.malformed(Kind.JOB)] == ["a", "b"]
    assert "nested" in store.malformed(Kind.JOB)[0].message


@in_virtual_time
async def test_a_job_whose_object_becomes_malformed_does_not_count_as_deleted() -> None:
    # given a job with its pods
    api = ClusterApi()
    job = api.apply_job()
    async with running(api) as cluster:
        await trains(cluster)
        # when its object becomes unreadable
        metadata = {**job["metadata"], "resourceVersion": "900"}
        api.send_event(Kind.JOB, "MODIFIED", {**job, "metadata": metadata, "status": 3})
        await asyncio.sleep(30.0)
        # then its worker does not treat it as deleted, and continues when it is corrected
        assert cluster.operator.store.is_malformed(Kind.JOB, ("research", "llm"))
        assert ("research", "llm") in cluster.operator._workers
        api.send_event(Kind.JOB, "MODIFIED", {**job, "metadata": {**metadata, "resourceVersion": "901"}})
        await cluster.until(lambda: not cluster.operator.store.is_malformed(Kind.JOB, ("research", "llm")))
        assert len(api.pods_of("llm")) == 2

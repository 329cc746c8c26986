"""A bug that one object triggers, in code that handles all objects: it affects only that object."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.operator.controllers.test_job_worker import links
from tests.unit.operator.given import TEMPLATE
from tests.unit.operator.given_operator import ClusterApi, running
from tests.unit.operator.given_pool import a_pool
from tests.unit.virtual_time import in_virtual_time
from tests.unit.webhook.golden import pod as golden_pod
from understudy_operator.controllers import node_memory
from understudy_operator.controllers.injected_jobs import InjectedJobCreator
from understudy_operator.controllers.job_worker import JobWorker
from understudy_operator.observe import read_injected, read_pool
from understudy_operator.observe.store import Kind, Store, job_key_of
from understudy_operator.operator import Operator
from understudy_operator.plan.injection.injected_pods import inject
from understudy_operator.plan.manifests import network_policy
from understudy_operator.plan.times.rfc3339 import micro_time

__all__ = ["links"]  # a fixture

pytestmark = pytest.mark.usefixtures("links")
POLICIES = "/apis/networking.k8s.io/v1/namespaces/research/networkpolicies"
RECOVERY = {"fault": "Node", "strategy": "SpareSwap", "cause": {"node": "n1"}}


def make_it_fail(owner: Any, name: str, is_evil: Callable[..., bool], patch: pytest.MonkeyPatch) -> None:
    """Let this function raise for one object."""
    ordinary = getattr(owner, name)

    def fails(*args: Any) -> Any:
        if is_evil(*args):
            raise IndexError("a bug")
        return ordinary(*args)

    patch.setattr(owner, name, fails)


@pytest.mark.attack(
    "A1",
    "has a job over which the code of NetworkPolicies fails",
    before="all later jobs got none, after each restart again",
)
@in_virtual_time
async def test_a_job_whose_network_policy_fails_does_not_block_policies_of_other_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_it_fail(network_policy, "network_policy", lambda job, _: job.name == "evil", monkeypatch)
    api = ClusterApi()
    for name in ("evil", "llm"):
        api.apply_job(name)
    async with running(api) as cluster:
        await cluster.until(lambda: f"{POLICIES}/llm-members" in api.objects)
        assert f"{POLICIES}/evil-members" not in api.objects
        assert dict(cluster.operator.waiting) == {}
        await events_on(cluster, "evil")


@pytest.mark.attack(
    "A1", "has a job over whose recoveries the memory of nodes fails", before="no fault of any job was remembered"
)
@in_virtual_time
async def test_a_job_on_which_the_memory_of_nodes_fails_does_not_block_other_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_it_fail(node_memory, "offences_of", lambda job: job.name == "research/evil", monkeypatch)
    api = ClusterApi()
    for name in ("evil", "llm"):
        api.apply_job(name, status={"recoveries": [{**RECOVERY, "detectedAt": micro_time(time.time() - 60.0)}]})
    async with running(api) as cluster:
        known = cluster.operator._node_memory
        await cluster.until(lambda: bool(known._memory.by_node))
        assert {x.job for offences in known._memory.by_node.values() for x in offences} == {"research/llm"}
        assert dict(cluster.operator.waiting) == {}
        await events_on(cluster, "evil")


@pytest.mark.attack("A1", "has a job over which a wake-up fails", before="nothing else was woken, for good")
@in_virtual_time
async def test_a_job_whose_enqueue_fails_does_not_block_other_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_it_fail(Operator, "_enqueue", lambda _, key: key[1] == "evil", monkeypatch)
    api = ClusterApi()
    for name in ("evil", "llm"):
        api.apply_job(name)
    async with running(api) as cluster:
        await cluster.until(lambda: len(api.pods_of("llm")) == 2)
        assert dict(cluster.operator.waiting) == {}
        await events_on(cluster, "evil")


@pytest.mark.attack("A1", "has a pod over which the code of injection fails", before="nothing else was woken, for good")
@in_virtual_time
async def test_a_pod_on_which_injection_fails_does_not_block_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_it_fail(InjectedJobCreator, "_handle_pod", lambda _, __, pod: pod["metadata"]["name"] == "evil", monkeypatch)
    api = ClusterApi()
    pod = inject(golden_pod("job"), "example.com/sidecar:1").pod
    pod["metadata"] |= {"name": "evil", "uid": "pod-evil"}
    api.put("/api/v1/namespaces/research/pods/evil", {"kind": "Pod", **pod})
    api.apply_job()
    async with running(api) as cluster:
        await cluster.until(lambda: len(api.pods_of("llm")) == 2)
        assert dict(cluster.operator.waiting) == {}
        await events_on(cluster, "evil")


@in_virtual_time
async def test_a_label_of_a_node_enqueues_only_jobs_whose_topology_has_that_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    enqueued = list[str]()
    api = ClusterApi()
    api.apply_job("llm")
    spec = api.apply_job("zoned")["spec"]
    api.apply_job("zoned", spec={**spec, "spares": {"replicas": 1, "topologyKey": "zone"}})
    node = api.put("/api/v1/nodes/n1", {"kind": "Node", "metadata": {"labels": {"zone": "a", "rack": "1"}}})
    async with running(api) as cluster:
        await cluster.until(lambda: len(api.pods_of("llm")) == 2)
        monkeypatch.setattr(JobWorker, "enqueue", lambda worker: enqueued.append(worker._key[1]))

        def change(labels: dict[str, str], version: int) -> None:
            changed = {**node["metadata"], "labels": labels, "resourceVersion": str(version)}
            cluster.operator.on_watch_event(Kind.NODE, "MODIFIED", {**node, "metadata": changed})

        # when another label changes, then no job is enqueued; and with the topology key, only the one that has it
        change({"zone": "a", "rack": "2"}, 9998)
        assert enqueued == []
        change({"zone": "b", "rack": "2"}, 9999)
        assert enqueued == ["zoned"]


@pytest.mark.attack("A1", "has a job over which a node's change fails", before="no later job was woken by it")
@in_virtual_time
async def test_a_job_on_which_the_change_of_a_node_fails_does_not_block_other_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_it_fail(JobWorker, "is_concerned", lambda worker, *_: worker._key[1] == "evil", monkeypatch)
    concerned, enqueued = JobWorker.is_concerned, list[str]()
    monkeypatch.setattr(JobWorker, "is_concerned", lambda worker, *nodes: concerned(worker, *nodes) or True)
    api = ClusterApi()
    for name in ("evil", "llm"):
        api.apply_job(name)
    node = api.put("/api/v1/nodes/n1", {"kind": "Node", "metadata": {"labels": {"zone": "a"}}})
    async with running(api) as cluster:
        await cluster.until(lambda: len(api.pods_of("llm")) == 2)
        monkeypatch.setattr(JobWorker, "enqueue", lambda worker: enqueued.append(worker._key[1]))
        # when a label of the node changes, then the other job is enqueued
        changed = {**node["metadata"], "labels": {"zone": "b"}, "resourceVersion": "9999"}
        cluster.operator.on_watch_event(Kind.NODE, "MODIFIED", {**node, "metadata": changed})
        assert enqueued == ["llm"]
        await events_on(cluster, "evil")


@pytest.mark.attack("A1", "has a pod over which a wake-up of its Job fails", before="no later pod was looked at")
@in_virtual_time
async def test_a_pod_on_which_the_deletion_of_an_injectedjob_fails_does_not_block_other_pods(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = list[str]()

    def look(_: InjectedJobCreator, pod: Any) -> None:
        looked.append(pod["metadata"]["name"])
        raise IndexError("a bug")

    api = ClusterApi()
    key = None
    for name in ("evil", "other"):
        pod = inject(golden_pod("job"), "example.com/sidecar:1").pod
        pod["metadata"] |= {"name": name, "uid": f"pod-{name}"}
        api.put(f"/api/v1/namespaces/research/pods/{name}", {"kind": "Pod", **pod})
        key = job_key_of(pod)
    async with running(api) as cluster:
        await cluster.until(lambda: cluster.operator._acts)
        monkeypatch.setattr(InjectedJobCreator, "on_pod", look)
        assert key is not None
        cluster.operator._injection.check_pods_of_job(key)
    assert looked == ["evil", "other"]


@pytest.mark.attack("A1", "has a pool over which a wake-up fails", before="no later pool was woken")
@in_virtual_time
async def test_a_pool_whose_enqueue_fails_does_not_block_other_pools(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    enqueued = list[str]()
    api = ClusterApi()
    for name in ("evil", "other"):
        pool = {"kind": "HotSparePool", "spec": {"replicas": 0, "template": TEMPLATE}}
        api.put(f"/apis/understudy.dev/v1alpha1/namespaces/research/hotsparepools/{name}", in_research(name, pool))
    async with running(api) as cluster:
        await cluster.until(lambda: len(cluster.operator._pool_workers) == 2)
        ordinary = Operator._enqueue_pool

        def enqueue(operator: Operator, key: Any) -> None:
            enqueued.append(key[1])
            ordinary(operator, key)

        monkeypatch.setattr(Operator, "_enqueue_pool", enqueue)
        make_it_fail(Operator, "_enqueue_pool", lambda _, key: key[1] == "evil", monkeypatch)
        cluster.operator._pool_workers = dict(sorted(cluster.operator._pool_workers.items()))
        # when a job of the namespace changes
        cluster.operator.on_watch_event(Kind.JOB, "ADDED", api.apply_job())
        assert enqueued == ["other"]
        await events_on(cluster, "evil")


@pytest.mark.attack("A1", "has a job whose recoveries a pool cannot read", before="the pool was reconciled no more")
def test_a_job_on_which_the_sizing_of_a_pool_fails_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    for name in ("evil", "other"):
        raw = ClusterApi().apply_job(name)
        raw["spec"]["spares"] = {"replicas": 0, "pool": "shared"}
        store.put(Kind.JOB, raw)
    make_it_fail(read_pool, "_client", lambda _, job: job.name == "evil", monkeypatch)
    assert len(read_pool.clients(store, a_pool(name="shared"))) == 1
    assert store.is_malformed(Kind.JOB, ("research", "evil"))


@pytest.mark.attack("A1", "has a job whose status metrics cannot read", before="there were no metrics of any job")
def test_a_job_on_which_metrics_fail_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    for name in ("evil", "other"):
        store.put(Kind.JOB, ClusterApi().apply_job(name))
    make_it_fail(read_injected, "read_job_status", lambda raw: raw["metadata"]["name"] == "evil", monkeypatch)
    assert [raw["metadata"]["name"] for raw, _ in read_injected.job_statuses(store)] == ["other"]
    assert store.is_malformed(Kind.JOB, ("research", "evil"))


def in_research(name: str, raw: dict[str, Any]) -> dict[str, Any]:
    return {**raw, "metadata": {"namespace": "research", "name": name, "uid": f"uid-{name}"}}


async def events_on(cluster: Any, name: str) -> None:
    """One event on the object reports the bug, however often it is triggered."""
    await asyncio.sleep(300.0)
    (event,) = [event for event in cluster.api.events_on(name) if event["reason"] == "MalformedObject"]
    assert "IndexError: a bug" in event["note"]

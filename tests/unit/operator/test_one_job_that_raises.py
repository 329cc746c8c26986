"""A bug that one object brings to light, in what looks at all objects: it concerns that object alone."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.operator.given_operator import ClusterApi, running
from tests.unit.operator.test_worker import links
from tests.unit.virtual_time import in_virtual_time
from tests.unit.webhook.golden import pod as golden_pod
from understudy_operator.apply import node_memory
from understudy_operator.injection import Injection
from understudy_operator.operator import Operator
from understudy_operator.plan import network_policy
from understudy_operator.plan.injection.pods import inject
from understudy_operator.plan.rfc3339 import micro_time

__all__ = ["links"]  # a fixture

pytestmark = pytest.mark.usefixtures("links")
POLICIES = "/apis/networking.k8s.io/v1/namespaces/research/networkpolicies"
RECOVERY = {"fault": "Node", "strategy": "SpareSwap", "cause": {"node": "n1"}}


def fails_over(owner: Any, name: str, is_evil: Callable[..., bool], patch: pytest.MonkeyPatch) -> None:
    """That function raises over one object."""
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
async def test_a_job_over_which_network_policies_fail_keeps_no_other_from_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fails_over(network_policy, "network_policy", lambda job, _: job.name == "evil", monkeypatch)
    api = ClusterApi()
    for name in ("evil", "llm"):
        api.apply_job(name)
    async with running(api) as cluster:
        await cluster.until(lambda: f"{POLICIES}/llm-members" in api.objects)
        assert f"{POLICIES}/evil-members" not in api.objects
        assert dict(cluster.operator.waiting) == {}
        await told_on(cluster, "evil")


@pytest.mark.attack(
    "A1", "has a job over whose recoveries the memory of nodes fails", before="no fault of any job was remembered"
)
@in_virtual_time
async def test_a_job_over_which_the_memory_of_nodes_fails_keeps_no_other_from_being_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fails_over(node_memory, "offences_of", lambda job: job["metadata"]["name"] == "evil", monkeypatch)
    api = ClusterApi()
    for name in ("evil", "llm"):
        api.apply_job(name, status={"recoveries": [{**RECOVERY, "detectedAt": micro_time(time.time() - 60.0)}]})
    async with running(api) as cluster:
        known = cluster.operator._node_memory
        await cluster.until(lambda: bool(known._memory.by_node))
        assert {x.job for offences in known._memory.by_node.values() for x in offences} == {"research/llm"}
        assert dict(cluster.operator.waiting) == {}
        await told_on(cluster, "evil")


@pytest.mark.attack("A1", "has a job over which a wake-up fails", before="nothing else was woken, for good")
@in_virtual_time
async def test_a_job_over_which_a_wake_up_fails_keeps_no_other_from_being_woken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fails_over(Operator, "_wake", lambda _, key: key[1] == "evil", monkeypatch)
    api = ClusterApi()
    for name in ("evil", "llm"):
        api.apply_job(name)
    async with running(api) as cluster:
        await cluster.until(lambda: len(api.pods_of("llm")) == 2)
        assert dict(cluster.operator.waiting) == {}
        await told_on(cluster, "evil")


@pytest.mark.attack("A1", "has a pod over which the code of injection fails", before="nothing else was woken, for good")
@in_virtual_time
async def test_a_pod_over_which_injection_fails_keeps_no_job_from_being_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    fails_over(Injection, "_look", lambda _, __, pod: pod["metadata"]["name"] == "evil", monkeypatch)
    api = ClusterApi()
    pod = inject(golden_pod("job"), "example.com/sidecar:1").pod
    pod["metadata"] |= {"name": "evil", "uid": "pod-evil"}
    api.put("/api/v1/namespaces/research/pods/evil", {"kind": "Pod", **pod})
    api.apply_job()
    async with running(api) as cluster:
        await cluster.until(lambda: len(api.pods_of("llm")) == 2)
        assert dict(cluster.operator.waiting) == {}
        await told_on(cluster, "evil")


async def told_on(cluster: Any, name: str) -> None:
    """One event on the object says it, however often it is met."""
    await asyncio.sleep(300.0)
    (event,) = [event for event in cluster.api.events_on(name) if event["reason"] == "Malformed"]
    assert "IndexError: a bug" in event["note"]

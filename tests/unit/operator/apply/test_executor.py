"""The executor's writes, and how it handles writes that are rejected, late, in conflict or unanswered."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.unit.operator.counted_manifests import CountedManifests
from tests.unit.operator.fake_api import FakeApi, Raw, owned_by
from tests.unit.operator.given import a_job
from tests.unit.virtual_time import in_virtual_time
from understudy_operator.apply.executor import Executor
from understudy_operator.observe.store import Kind, Store
from understudy_operator.plan.facts.refusals import RefusalKind
from understudy_operator.plan.facts.status import JobStatus
from understudy_operator.plan.intents import Create, CreatePod, DeletePod, ReleasePod
from understudy_operator.runtime.api import ApiError
from understudy_operator.runtime.clock import Clock
from understudy_protocol import pod as names

ADDRESS_TAKEN = "already allocated"

ADDRESS_PAUSES_S = (0.1, 0.2, 0.4, 0.8)
AT_ONCE = 64

PODS = "/api/v1/namespaces/research/pods"
JOB_PATH = "/apis/understudy.dev/v1alpha1/namespaces/research/trainingjobs/llm"
JOB = a_job()


class Server(FakeApi):
    """Raises `after` once it has created the object: the answer is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.after: Exception | None = None
        self.at_once, self.most_at_once = 0, 0

    async def create(self, path: str, body: Mapping[str, Any]) -> Raw:
        raw = await super().create(path, body)
        if self.after is not None:
            raise self.after
        return raw

    async def delete(self, path: str, body: Mapping[str, Any]) -> Raw:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        return await super().delete(path, body)


class Given:
    def __init__(self) -> None:
        self.api, self.store = Server(), Store()
        self.executor = Executor(self.api, self.store, Clock())

    def known(self) -> list[str]:
        return [raw["metadata"]["name"] for raw in self.store.of_job(Kind.POD, (JOB.namespace, JOB.uid))]


@pytest.fixture
def given() -> Given:
    return Given()


def a_creation(name: str = "a") -> CreatePod:
    labels = {names.LABEL_JOB: JOB.name, names.LABEL_JOB_UID: JOB.uid}
    owned = {"labels": labels, "ownerReferences": owned_by(JOB.uid)}
    metadata = {"name": name, "namespace": "research", **owned}
    return CreatePod({"kind": "Pod", "metadata": metadata, "spec": {}}, "it is missing")


@pytest.mark.attack(
    "A1",
    "creates a TrainingJob of 1,000 pods whose template has 75,000 values",
    before="the operator kept all manifests, of 5 GB, until the last one was sent",
)
async def test_a_manifest_is_in_memory_only_while_it_is_sent(given: Given):
    manifests = CountedManifests()
    build = [partial(manifests.made, a_creation(f"pod-{number}").manifest) for number in range(20)]
    assert await given.executor.pods(JOB, [CreatePod(each, "it is missing") for each in build]) == []
    assert len(given.known()) == 20
    assert manifests.most <= 4


@pytest.mark.parametrize("lost", [TimeoutError(), OSError("reset"), ApiError(504, "Timeout", "not in time")])
async def test_a_creation_that_was_done_without_an_answer_is_found_and_not_repeated(given: Given, lost: Exception):
    # given a creation that was done without an answer
    given.api.after = lost
    if isinstance(lost, ApiError):
        assert [refusal.kind for refusal in await given.executor.pods(JOB, [a_creation()])] == [RefusalKind.SERVER]
    else:
        with pytest.raises(type(lost)):
            await given.executor.pods(JOB, [a_creation()])
    assert given.known() == []

    # when the next reconcile begins
    given.api.after = None
    await given.executor.resolve_unanswered(JOB)

    # then the operator knows the pod, and no creation is unanswered
    assert given.known() == ["a"]
    assert len(given.api.of_kind("Pod")) == 1
    assert await given.executor.pods(JOB, [a_creation("b")]) == []
    assert given.known() == ["a", "b"]


async def test_an_unanswered_creation_blocks_further_ones_and_the_servers_error_is_reported(given: Given):
    given.api.after = ApiError(500, "InternalError", "etcdserver: request timed out")
    await given.executor.pods(JOB, [a_creation()])
    await given.executor.resolve_unanswered(JOB)  # AlreadyExists is an answer: the pod exists
    given.api.objects.clear()
    given.store.replace(Kind.POD, [], float("inf"))
    await given.executor.pods(JOB, [a_creation("b")])
    given.api.objects.clear()
    await given.executor.resolve_unanswered(JOB)
    refusals = await given.executor.pods(JOB, [a_creation("c")])
    assert [refusal.message for refusal in refusals] == ["etcdserver: request timed out"]
    assert f"{PODS}/c" not in given.api.objects


async def test_a_webhook_that_fails_leaves_no_creation_unanswered(given: Given):
    given.api.after = ApiError(500, "InternalError", 'failed calling webhook "v": context deadline exceeded')
    (refusal,) = await given.executor.pods(JOB, [a_creation()])
    assert refusal.kind is RefusalKind.WEBHOOK
    given.api.after = None
    assert await given.executor.pods(JOB, [a_creation("b")]) == []


@in_virtual_time
@pytest.mark.parametrize("soon", [True, False], ids=["soon", "never"])
async def test_a_service_is_recreated_once_the_api_server_has_freed_its_address(soon: bool):
    # given a Service that is recreated at its address, which the API server still counts as taken
    given = Given()
    answers = [ADDRESS_TAKEN] * (len(ADDRESS_PAUSES_S) if soon else len(ADDRESS_PAUSES_S) + 1)
    given.api.refuse = lambda _: answers.pop(0) if answers else ""
    metadata = {"name": "llm-coordinator", "namespace": "research", "labels": {names.LABEL_JOB_UID: JOB.uid}}
    service = Create({"kind": "Service", "metadata": metadata, "spec": {"clusterIP": "10.0.0.9"}})

    # then the Service exists once the address is free; if another Service has the address, the refusal is reported
    refusal = await given.executor.create(service)
    assert (refusal is None) is soon
    assert [raw["spec"]["clusterIP"] for raw in given.api.of_kind("Service")] == (["10.0.0.9"] if soon else [])


async def test_unanswered_creations_are_forgotten_with_the_job(given: Given):
    given.api.after = TimeoutError()
    with pytest.raises(TimeoutError):
        await given.executor.pods(JOB, [a_creation()])
    given.api.after = None
    given.executor.forget(JOB.uid)
    given.api.objects.clear()
    await given.executor.resolve_unanswered(JOB)
    assert given.api.of_kind("Pod") == []


async def test_a_status_in_conflict_reads_the_job_again(given: Given):
    raw = {"kind": "TrainingJob", "metadata": {"namespace": "research", "name": "llm", "uid": JOB.uid}}
    now = given.api.put(JOB_PATH, raw)
    old = replace(JOB, resource_version="1")
    assert not await given.executor.subjects.status(old, JobStatus(phase="Running"))
    assert given.store.get(Kind.JOB, ("research", "llm")) == now
    assert await given.executor.subjects.status(
        replace(JOB, resource_version=now["metadata"]["resourceVersion"]), JobStatus(phase="x")
    )
    assert given.api.objects[JOB_PATH]["status"]["phase"] == "x"


async def test_a_status_of_a_job_that_is_gone_is_no_error_and_the_job_is_forgotten(given: Given):
    metadata = {"namespace": "research", "name": "llm", "uid": JOB.uid, "resourceVersion": "7"}
    given.store.put(Kind.JOB, {"metadata": metadata})
    assert not await given.executor.subjects.status(JOB, JobStatus())
    assert given.store.get(Kind.JOB, ("research", "llm")) is None


def _deletion(given: Given, name: str, reason: str, grace_s: int | None = None, **metadata: Any) -> DeletePod:
    """The deletion of a pod that the API server and the store have."""
    pod = {"kind": "Pod", "metadata": {"namespace": "research", **metadata}, "spec": {}}
    seen = given.api.put(f"{PODS}/{name}", pod)
    given.store.put(Kind.POD, seen)
    return DeletePod(name, seen["metadata"]["uid"], grace_s, reason, seen["metadata"]["resourceVersion"])


async def test_a_limited_number_of_deletions_runs_in_parallel(given: Given):
    intents = [_deletion(given, f"p{number}", "surplus") for number in range(3 * AT_ONCE)]
    await given.executor.pods(JOB, intents)
    assert given.api.of_kind("Pod") == []
    assert given.api.most_at_once == AT_ONCE


async def test_an_error_of_one_deletion_does_not_stop_the_others(given: Given):
    deletion = _deletion(given, "old", "lost")
    given.api.after = OSError("reset")
    with pytest.raises(OSError, match="reset"):
        await given.executor.pods(JOB, [a_creation(), deletion])
    assert f"{PODS}/old" not in given.api.objects


async def test_a_deleted_pod_with_a_finalizer_does_not_count_as_gone(given: Given):
    labels = {names.LABEL_JOB_UID: JOB.uid}
    metadata = {"finalizers": ["example.com/mine"], "labels": labels, "ownerReferences": owned_by(JOB.uid)}
    deletion = _deletion(given, "held", "its node is gone", 0, **metadata)
    await given.executor.pods(JOB, [deletion])
    assert given.known() == ["held"]


async def test_a_pod_that_has_changed_since_it_was_observed_is_not_force_deleted(given: Given):
    """Its node is back. Found by the simulation (seed 15), where the pod had got its rank a moment before."""
    seen = given.api.put(f"{PODS}/late", {"kind": "Pod", "metadata": {"namespace": "research"}, "spec": {}})
    version, uid = seen["metadata"]["resourceVersion"], seen["metadata"]["uid"]
    given.api.put(f"{PODS}/late", {**seen, "status": {"phase": "Running"}})
    await given.executor.pods(JOB, [DeletePod("late", uid, 0, "its node is gone", version)])
    assert f"{PODS}/late" in given.api.objects


async def test_a_pod_is_released_from_one_finalizer_and_keeps_the_others(given: Given):
    kept = ["kueue.x-k8s.io/managed", "example.com/mine"]
    metadata = {"namespace": "research", "finalizers": kept, "labels": {names.LABEL_JOB_UID: JOB.uid}}
    given.store.put(Kind.POD, given.api.put(f"{PODS}/held", {"kind": "Pod", "metadata": metadata, "spec": {}}))
    seen = given.api.objects[f"{PODS}/held"]["metadata"]
    release = ReleasePod("held", seen["uid"], ("example.com/mine",), "its node is dead", seen["resourceVersion"])
    await given.executor.pods(JOB, [release])
    assert given.api.objects[f"{PODS}/held"]["metadata"]["finalizers"] == ["example.com/mine"]


async def test_a_finalizer_that_was_removed_meanwhile_does_not_come_back(given: Given):
    # given a pod that was read with two finalizers, one of which has been removed since
    metadata = {"namespace": "research", "labels": {names.LABEL_JOB_UID: JOB.uid}}
    seen = given.api.put(f"{PODS}/held", {"kind": "Pod", "metadata": metadata, "spec": {}})["metadata"]
    given.api.put(f"{PODS}/held", given.api.objects[f"{PODS}/held"])
    release = ReleasePod("held", seen["uid"], ("example.com/mine",), "its node is dead", seen["resourceVersion"])
    assert await given.executor.pods(JOB, [release]) == []
    assert "finalizers" not in given.api.objects[f"{PODS}/held"]["metadata"]


async def test_a_finalizer_of_a_new_pod_of_the_same_name_is_not_removed(given: Given):
    metadata = {"namespace": "research", "finalizers": ["example.com/mine"], "uid": "second"}
    given.api.put(f"{PODS}/held", {"kind": "Pod", "metadata": metadata, "spec": {}})
    await given.executor.pods(JOB, [ReleasePod("held", "first", (), "its node is dead", "1")])
    assert given.api.objects[f"{PODS}/held"]["metadata"]["finalizers"] == ["example.com/mine"]

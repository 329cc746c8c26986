"""Rejected writes: the rest of the reconcile continues, they are reported, and retried after growing pauses."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.operator.controllers.test_job_worker import APPOINTED, PATH, SECRET, World, at_work
from tests.unit.operator.fake_api import Raw, owned_by
from tests.unit.virtual_time import in_virtual_time
from understudy_operator.observe.store import Kind
from understudy_operator.runtime.api import ApiError
from understudy_operator.runtime.clock import Clock
from understudy_protocol import pod as names

TRY_AGAIN_S = 10.0
WORDS_S = 60.0

PODS = "/api/v1/namespaces/research/pods"
POLICY = "ValidatingAdmissionPolicy 'labels' with binding 'all' denied request: leave them alone"


def virtual_clock() -> Clock:
    loop = asyncio.get_running_loop()
    return Clock(wall=lambda: 1_790_000_000.0 + loop.time(), steady=loop.time)


@pytest.fixture
def world() -> World:
    return World()


def deny(world: World, method: str, answer: Callable[[str], ApiError]) -> None:
    world.api.deny = lambda requests, path: answer(path) if requests == method and path.startswith(PODS) else None


def policy(status: int) -> Callable[[str], ApiError]:
    return lambda path: ApiError(status, "Invalid", f'pods "{path.rpartition("/")[2]}" is forbidden: {POLICY}')


def a_previous_holder(world: World) -> str:
    """A pod with the coordinator's label that does not coordinate: its label should be removed. Returns its path."""
    job = world.api.objects[PATH]["metadata"]
    labels = {names.LABEL_JOB: "llm", names.LABEL_JOB_UID: job["uid"], names.LABEL_COORDINATOR: "true"}
    path = f"{PODS}/llm-workers-0-0-aaaaa"
    metadata = {"namespace": "research", "labels": labels, "ownerReferences": owned_by(job["uid"])}
    body = {"kind": "Pod", "metadata": metadata, "spec": {"containers": []}, "status": {"phase": "Running"}}
    world.store.put(Kind.POD, world.api.put(path, body))
    return path


def calls(world: World, method: str, path: str) -> int:
    return sum(1 for requests in world.api.calls if requests == (method, path))


async def count_reconciles(world: World, every_s: float, for_s: float) -> None:
    """Enqueues the job repeatedly, as pods that change all the time do."""
    loop = asyncio.get_running_loop()
    until = loop.time() + for_s
    while loop.time() < until:
        world.enqueue()
        await asyncio.sleep(every_s)


@pytest.mark.parametrize("status", [403, 422])
@in_virtual_time
async def test_a_refused_patch_of_a_pod_is_reported_and_all_else_is_done(world: World, status: int):
    # given a pod whose labels a policy protects
    world.apply_job(status=APPOINTED, spares={"replicas": 1})
    path = a_previous_holder(world)
    deny(world, "PATCH", policy(status))
    async with at_work(world, virtual_clock()):
        # then the condition reports it, missing pods are created, and events are sent
        await world.until(lambda: world.condition("Blocked")[0] == "True")
        assert POLICY in world.condition("Blocked")[1]
        assert world.condition("Invalid") == ("False", "")
        await world.until(lambda: len(world.api.of_kind("Pod")) > 1)
        await world.until(lambda: "Rejected" in [raw["reason"] for raw in world.api.of_kind("Event")])
        # when the policy is gone, then the patch is done, and not reported any more
        world.api.deny = lambda *_: None
        await world.until(lambda: names.LABEL_COORDINATOR not in world.api.objects[path]["metadata"]["labels"])
        await world.until(lambda: world.condition("Blocked") == ("False", ""))


@in_virtual_time
async def test_a_refused_deletion_of_a_pod_is_reported_and_all_else_is_done(world: World):
    # given a job that is suspended, and a pod whose deletion is forbidden
    world.apply_job(suspend=True, status={"coordinator": {"epoch": 7, "formerEpoch": 7}})
    a_previous_holder(world)
    deny(world, "DELETE", policy(422))
    async with at_work(world, virtual_clock()):
        await world.until(lambda: world.condition("Blocked")[0] == "True")
        assert world.status()["phase"] == "Suspended"


@in_virtual_time
async def test_a_refused_write_is_retried_after_growing_pauses_whatever_enqueues_the_job(world: World):
    world.apply_job(status=APPOINTED)
    path = a_previous_holder(world)
    deny(world, "PATCH", policy(422))
    async with at_work(world, virtual_clock()):
        await count_reconciles(world, 0.05, 60.0)
    assert 60 / TRY_AGAIN_S <= calls(world, "PATCH", path) <= 60 / TRY_AGAIN_S + 6


def varying() -> Callable[[Any], str]:
    """A webhook whose messages always differ."""
    numbers = itertools.count()
    return lambda _: f'admission webhook "w" denied the request: no (request {next(numbers):08x}-ce)'


@pytest.mark.parametrize("description", ["Pod", "Secret"])
@in_virtual_time
async def test_varying_messages_do_not_change_status_each_time_and_do_not_shorten_pauses(
    world: World, description: str
):
    words = varying()
    world.api.refuse = lambda body: words(body) if body["kind"] == description else ""
    world.apply_job()
    async with at_work(world, virtual_clock()):
        await asyncio.sleep(WORDS_S - 5.0)
        requests = ("CHECK", PODS) if description == "Pod" else ("POST", SECRET)
        tried = calls(world, *requests)
        assert WORDS_S / TRY_AGAIN_S - 1 <= tried <= WORDS_S / TRY_AGAIN_S + 6
        result = [raw["status"]["conditions"] for raw in world.api.history if "conditions" in raw.get("status", {})]
        messages = {x["message"] for conditions in result for x in conditions if x["type"] == "Blocked"} - {""}
        assert len(messages) == 1
        # and the newest message is reported after a while, without another event
        await asyncio.sleep(2 * TRY_AGAIN_S)
        assert world.condition("Blocked")[1] not in {"", *messages}
        assert [raw["reason"] for raw in world.api.of_kind("Event")].count("Rejected") == 1


@in_virtual_time
async def test_server_errors_with_varying_messages_cause_no_hot_loop(world: World):
    # given an API server that answers creations of pods with errors, which may have been executed
    words = varying()
    world.api.deny = lambda method, path: (
        ApiError(500, "InternalError", words(path).replace("admission webhook", "internal"))
        if method == "POST" and path.startswith(PODS)
        else None
    )
    world.apply_job()
    async with at_work(world, virtual_clock()):
        await count_reconciles(world, 0.05, 60.0)
        tried = sum(method == "POST" and path.startswith(PODS) for method, path in world.api.calls)
        assert tried <= 2 * (60 / TRY_AGAIN_S + 6)  # both pods
        # when it recovers, then each pod is created once
        world.api.deny = lambda *_: None
        await world.until(lambda: len(world.api.of_kind("Pod")) == 2)


@in_virtual_time
async def test_a_fixed_spec_is_retried_at_once(world: World):
    # given spares that have been rejected for a long time
    world.api.refuse = lambda body: "no such field" if "spare" in body["metadata"].get("name", "") else ""
    world.apply_job(spares={"replicas": 1})
    async with at_work(world, virtual_clock()):
        await asyncio.sleep(40.0)
        assert world.condition("Invalid") == ("True", "no such field")
        # when the spec is changed
        world.api.refuse = lambda _: ""
        raw: Raw = world.api.objects[PATH]
        raw["metadata"]["generation"] = 2
        world.store.put(Kind.JOB, world.api.put(PATH, raw))
        world.enqueue()
        # then the job does not wait for the end of the pause
        await asyncio.sleep(1.0)
        assert len(world.api.of_kind("Pod")) == 3


@in_virtual_time
async def test_the_worker_of_a_deleted_job_ends_although_its_pods_may_not_be_changed(world: World):
    # given a job with an unanswered creation, and with a pod that must not be changed
    world.apply_job(status=APPOINTED)
    path = a_previous_holder(world)
    world.api.deny = lambda method, _: ApiError(504, "Timeout", "not in time") if method == "POST" else None
    async with at_work(world, virtual_clock()):
        await world.until(lambda: any(method == "POST" for method, _ in world.api.calls))
        deny(world, "PATCH", policy(422))
        await world.until(lambda: calls(world, "PATCH", path) > 0)
        # when the job is deleted, and waits for its dependents
        world.mark_deleted("foregroundDeletion")
        await asyncio.sleep(1.0)
        # then the operator creates and changes nothing for it
        before = len(world.api.calls)
        await count_reconciles(world, 0.1, 60.0)
        assert len(world.api.calls) == before
        # and when it is gone the worker ends
        world.delete_job()
        world.enqueue()
        await world.until(lambda: bool(world.gone))

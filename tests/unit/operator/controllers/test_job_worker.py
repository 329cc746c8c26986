"""The reconciles of one job: the state that survives, and that no error ends them or causes a hot loop."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from tests.unit.operator.fake_api import CREATED, FakeApi, Raw, owned_by
from tests.unit.operator.given import (
    IMAGE,
    KEYRING,
    NOW,
    SUCCEEDED,
    TEMPLATE,
    a_group,
    a_job,
    a_pod,
    a_recovery,
    a_snapshot,
    pending,
)
from tests.unit.operator.metrics.reading import scraped
from tests.unit.virtual_time import in_virtual_time
from understudy_operator.apply.executor import Executor
from understudy_operator.controllers import job_worker as worker
from understudy_operator.controllers import reconcile_loop
from understudy_operator.controllers.job_worker import JobWorker, concerning_nodes
from understudy_operator.observe.store import Kind, Store
from understudy_operator.plan import reconcile as planner
from understudy_operator.plan.facts.cluster_objects import Pod
from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.observed import Coordination, Observed
from understudy_operator.plan.facts.pods import Pods
from understudy_operator.plan.facts.queue import QUEUE
from understudy_operator.plan.intents import Follow, Plan
from understudy_operator.plan.times.rfc3339 import parse_time
from understudy_operator.runtime.api import ApiError, NotLeading
from understudy_operator.runtime.clock import Clock
from understudy_operator.runtime.line import Keys, Share
from understudy_protocol import pod as names
from understudy_protocol import wire
from understudy_protocol.enums import CloseReason, Fault, RoundToken
from understudy_protocol.membership import Close
from understudy_protocol.observer import End, Lost

KEY = ("research", "llm")
PATH = "/apis/understudy.dev/v1alpha1/namespaces/research/trainingjobs/llm"
POD = "/api/v1/namespaces/research/pods/llm-workers-0-0-a"
SERVICE = "/api/v1/namespaces/research/services/llm-coordinator"
SECRET = "/api/v1/namespaces/research/secrets/llm-job-uid-membership"
LIMIT_S = 10.0


class World:
    """A job, its worker, and the API server's objects."""

    def __init__(self) -> None:
        self.api, self.store = FakeApi(), Store()
        self.gone: list[Any] = []
        self.worker: JobWorker | None = None
        self.has_kueue: bool | None = None

    def apply_job(self, uid: str = "job-uid", status: Raw | None = None, **spec: Any) -> None:
        replicated = {"name": "workers", "template": {"spec": {"parallelism": 2, "template": TEMPLATE}}}
        job = {
            "apiVersion": "understudy.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"namespace": "research", "name": "llm", "uid": uid, "creationTimestamp": CREATED},
            "spec": {"replicatedJobs": [replicated], "launcher": {"nprocPerNode": 1}, **spec},
        } | ({"status": status} if status else {})
        self.store.put(Kind.JOB, self.api.put(PATH, job))

    def delete_job(self) -> None:
        self.store.remove(Kind.JOB, self.api.objects.pop(PATH))

    def mark_deleted(self, finalizer: str) -> None:
        raw = self.api.objects[PATH]
        raw["metadata"] |= {"deletionTimestamp": CREATED, "finalizers": [finalizer]}
        self.store.put(Kind.JOB, self.api.put(PATH, raw))
        self.enqueue()

    def enqueue(self) -> None:
        assert self.worker is not None
        self.worker.enqueue()

    def status(self) -> dict[str, Any]:
        return dict(self.api.objects[PATH].get("status", {}))

    def condition(self, kind: str) -> tuple[str, str]:
        found = [x for x in self.status().get("conditions", ()) if x["type"] == kind]
        return (found[0]["status"], found[0]["message"]) if found else ("", "")

    def child(self, **status: int) -> Raw:
        """Set another status of the first child Job."""
        return next(raw for raw in self.api.of_kind("Job")) | {"status": status}

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not holds():  # noqa: ASYNC110 (what it waits for is in the fake API server, which tells nobody)
                await asyncio.sleep(0.001)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(reconcile_loop, "FIRST_BACKOFF_S", 0.01)
    return World()


class FakeLink:
    """A CoordinatorLink that calls no pod, and records its calls."""

    made: ClassVar[list["FakeLink"]] = []

    def __init__(
        self, job_uid: str, keys: Keys, before: Coordination, on_change: Callable[[], None], share: Share
    ) -> None:
        del on_change, share
        self.key = keys.membership.hex()
        self.job_uid, self.coordination = job_uid, replace(before, since=time.time())
        self.done: list[object] = []
        self.has_ended = False
        self.closed: Close | None = None
        FakeLink.made.append(self)

    def follow(self, follow: Follow) -> None:
        self.done.append(follow)

    async def end(self, end: End) -> Close | None:
        self.done.append(end)
        if self.closed is not None:  # by itself, just before
            self.coordination = replace(self.coordination, snapshot=a_snapshot(closed=self.closed))
        return self.closed

    async def close(self) -> None:
        self.done.append("closed")


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> list[FakeLink]:
    FakeLink.made = []
    monkeypatch.setattr(worker, "CoordinatorLink", FakeLink)
    return FakeLink.made


def virtual() -> Clock:
    """The event loop's time, which begins when the job is created."""
    loop = asyncio.get_running_loop()
    return Clock(steady=loop.time, wall=lambda: parse_time(CREATED) + loop.time())


@asynccontextmanager
async def at_work(world: World, clock: Clock | None = None, key: tuple[str, str] = KEY) -> AsyncIterator[None]:
    clock = clock or Clock()
    executor = Executor(world.api, world.store, clock)
    gone = world.gone.append
    world.worker = JobWorker(key, world.store, executor, KEYRING, IMAGE, gone, clock, has_kueue=lambda: world.has_kueue)
    try:
        yield
    finally:
        await world.worker.stop()


@pytest.mark.attack(
    "A5",
    "2,000 jobs are created at once",
    before="their plans followed one another for 7 s: meanwhile nothing was read or written for any job",
)
async def test_the_event_loop_makes_one_plan_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch):
    turn, planned_in = 0, list[int]()

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    def plan(observed: Observed, sidecar_image: str, now: float) -> Plan:
        planned_in.append(turn)
        return planner.reconcile(observed, sidecar_image, now)

    monkeypatch.setattr(worker, "reconcile", plan)
    world.apply_job()
    executor, turns = Executor(world.api, world.store, Clock()), worker.planning_turns()
    counting = asyncio.create_task(count_turns())
    # given 20 workers that begin at the same time
    workers = [
        JobWorker(KEY, world.store, executor, KEYRING, IMAGE, world.gone.append, Clock(), turns=turns)
        for _ in range(20)
    ]
    await world.until(lambda: len(planned_in) >= 20)
    for each in workers:
        await each.stop()
    counting.cancel()
    # then each plan is made in another turn of the event loop
    assert len(set(planned_in)) == len(planned_in)


async def test_a_new_job_gets_its_objects_then_its_pods(world: World):
    world.apply_job(spares={"replicas": 1})
    async with at_work(world):
        await world.until(lambda: len(world.api.of_kind("Pod")) == 3)
    created = [
        path.split("/")[5] for method, path in world.api.calls if method == "POST" and path.startswith("/api/v1")
    ]
    assert created == ["secrets", "services", "services", "secrets", "pods", "pods", "pods"]


async def test_a_worker_whose_job_is_gone_reports_it_and_ends(world: World):
    world.apply_job()
    async with at_work(world):
        await world.until(lambda: len(world.api.of_kind("Pod")) == 2)
        world.delete_job()
        world.enqueue()
        await world.until(lambda: world.gone == [KEY])


async def test_a_job_that_is_recreated_while_its_worker_ends_is_reconciled(world: World):
    # given a suspended job, and an event about it whose write gets no answer
    create, waits = world.api.create, asyncio.Event()

    async def create_or_wait(path: str, body: Mapping[str, Any]) -> Raw:
        if body["kind"] != "Event" or waits.is_set():
            return await create(path, body)
        waits.set()
        try:
            answer: asyncio.Future[Raw] = asyncio.get_running_loop().create_future()
            return await answer
        except asyncio.CancelledError:
            world.apply_job("another-uid")
            world.enqueue()
            raise

    world.api.create = create_or_wait  # type: ignore[method-assign]
    world.apply_job(suspend=True)
    async with at_work(world):
        await waits.wait()
        # when it is deleted, and created again just as the worker drops the event
        world.delete_job()
        world.enqueue()
        # then the new job gets a status
        await world.until(lambda: PATH in world.api.objects and world.status().get("phase") == "Pending")
    assert world.gone == []


DELETED = End(CloseReason.DELETED, "the TrainingJob was deleted")
#: A job with a coordinator that a previous operator has appointed.
APPOINTED = {"coordinator": {"epoch": 7, "podName": "gone", "podUID": "gone"}, "round": 0}


async def test_the_coordinator_of_a_job_that_is_gone_gets_the_end(world: World, links: list[FakeLink]):
    world.apply_job(status=APPOINTED)
    async with at_work(world):
        await world.until(lambda: bool(links))
        world.delete_job()
        world.enqueue()
        await world.until(lambda: links[0].done[-2:] == [DELETED, "closed"])


async def test_a_job_counts_as_running_while_the_operator_follows_its_coordinator(world: World, links: list[FakeLink]):
    # given 399 running jobs
    world.apply_job(status=APPOINTED)
    others = {("research", f"other-{number}") for number in range(399)}
    async with at_work(world):
        assert world.worker is not None
        followed = world.worker._executor.followed
        followed |= others
        # when the operator follows the coordinator of one more
        await world.until(lambda: bool(links))
        # then each plan is for 400 of them
        job = world.worker._read()
        assert job is not None
        assert world.worker._observe(job).running_jobs == 400
        # and for 399, once it is gone
        world.delete_job()
        world.enqueue()
        await world.until(lambda: world.gone == [KEY])
        assert followed == others


async def test_the_coordinator_of_a_job_that_waits_for_its_deletion_gets_the_end(world: World, links: list[FakeLink]):
    world.apply_job(status=APPOINTED)
    async with at_work(world):
        await world.until(lambda: bool(links))
        world.mark_deleted("foregroundDeletion")
        await world.until(lambda: links[0].done[-2:] == [DELETED, "closed"])


async def test_the_coordinator_of_a_replaced_job_gets_the_end(world: World, links: list[FakeLink]):
    world.apply_job("first", status=APPOINTED)
    async with at_work(world):
        await world.until(lambda: bool(links))
        world.delete_job()
        world.apply_job("second")
        world.enqueue()
        await world.until(lambda: links[0].done[-2:] == [DELETED, "closed"])
    assert links[0].job_uid == "first"


async def test_orphaned_pods_of_a_deleted_job_keep_training(world: World, links: list[FakeLink]):
    world.apply_job(status=APPOINTED)
    async with at_work(world):
        await world.until(lambda: bool(links))
        world.mark_deleted("orphan")
        await world.until(lambda: links[0].done[-1] == "closed")
        world.delete_job()
        world.enqueue()
        await world.until(lambda: world.gone == [KEY])
    assert DELETED not in links[0].done


async def test_failed_lines_are_recreated_with_the_known_coordination(world: World, links: list[FakeLink]):
    world.apply_job(status=APPOINTED)
    async with at_work(world):
        await world.until(lambda: bool(links))
        links[0].coordination = Coordination(a_snapshot(), since=time.time())
        links[0].has_ended = True
        world.enqueue()
        await world.until(lambda: len(links) == 2)
    assert links[1].coordination.snapshot == a_snapshot()
    assert world.worker is not None
    assert scraped(world.worker._metrics.book.text())["understudy_task_restarts_total", "lines to coordinators"] == 1


async def test_an_operator_that_stops_ends_no_job(world: World, links: list[FakeLink]):
    world.apply_job(status=APPOINTED)
    async with at_work(world):
        await world.until(lambda: bool(links))
    assert links[0].done[-1] == "closed"
    assert DELETED not in links[0].done


async def test_the_state_of_a_job_does_not_count_for_another_job_of_the_same_name(world: World):
    # given a job whose pods are refused
    world.api.refuse = lambda body: "no such field" if body["kind"] == "Pod" else ""
    world.apply_job("first")
    async with at_work(world):
        await world.until(lambda: world.condition("Invalid") == ("True", "no such field"))
        await world.until(lambda: bool(world.api.of_kind("Event")))  # the last write of the reconcile

        # when the job is deleted and recreated at once, with valid pods
        world.api.refuse = lambda _: ""
        world.delete_job()
        for path in [path for path, raw in world.api.objects.items() if raw["kind"] in ("Secret", "Service")]:
            del world.api.objects[path]
        world.apply_job("second")
        world.enqueue()

        # then the new job never had the condition Invalid
        await world.until(lambda: len(world.api.of_kind("Pod")) == 2)
    states = [raw for raw in world.api.history if raw["metadata"]["uid"] == "second"]
    result = [raw["status"]["conditions"] for raw in states if "status" in raw]
    assert result
    assert {x["status"] for conditions in result for x in conditions if x["type"] == "Invalid"} == {"False"}
    owners = {raw["metadata"]["ownerReferences"][0]["uid"] for raw in world.api.of_kind("Pod")}
    assert owners == {"second"}


def a_pod_of_the_job(world: World) -> Raw:
    labels = {names.LABEL_JOB: "llm", names.LABEL_JOB_UID: "job-uid"}
    owned = {"namespace": "research", "labels": labels, "ownerReferences": owned_by("job-uid")}
    pod = {"kind": "Pod", "metadata": owned, "spec": {"nodeName": "n"}, "status": {"phase": "Running"}}
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    world.store.put(Kind.NODE, world.api.put("/api/v1/nodes/n", {"metadata": {"name": "n"}, "status": ready}))
    raw = world.api.put(POD, pod)
    world.store.put(Kind.POD, raw)
    return raw


def a_lost_pod(world: World) -> Coordination:
    """A pod that its coordinator lost more than 15 s ago."""
    uid = a_pod_of_the_job(world)["metadata"]["uid"]
    entry = Lost(uid, "llm-workers-0-0-a", "n", Fault.POD, "its connection ended", time.time() - 60)
    return Coordination(a_snapshot(lost=(entry,)), since=time.time())


async def test_a_lost_pod_that_came_back_while_a_list_was_awaited_is_not_deleted(world: World, links: list[FakeLink]):
    # given a job that has lost a pod; the loss is 60 s old when the operator receives it
    world.apply_job(status=APPOINTED)
    lost = a_lost_pod(world)
    async with at_work(world):
        await world.until(lambda: bool(links))
        # and a Job that waits for pods: the pod comes back while they are listed
        some = world.api.list_first

        async def pod_comes_back(*asked: Any) -> list[Raw]:
            links[0].coordination = Coordination(a_snapshot(number=2), since=time.time())
            return await some(*asked)

        world.api.list_first = pod_comes_back  # type: ignore[method-assign,assignment]
        labels = {names.LABEL_JOB: "llm", names.LABEL_JOB_UID: "job-uid"}
        owned = {"namespace": "research", "labels": labels, "ownerReferences": owned_by("job-uid")}
        path = "/apis/batch/v1/namespaces/research/jobs/llm-driver-0"
        child = {"kind": "Job", "metadata": owned, "spec": {}, "status": {"active": 1}}
        world.store.put(Kind.CHILD, world.api.put(path, child))
        links[0].coordination = lost
        world.enqueue()
        # then the state after the list counts
        await world.until(lambda: world.status().get("round") == 2)
    assert ("DELETE", POD) not in world.api.calls


async def test_a_plan_that_waited_for_a_slow_write_deletes_nothing(world: World, links: list[FakeLink]):
    # given a job that has lost a pod, and an API server that needs 6 s to write its status
    world.apply_job(status=APPOINTED)
    lost, later_s = a_lost_pod(world), 0.0

    async with at_work(world, Clock(steady=lambda: time.monotonic() + later_s)):
        await world.until(lambda: bool(links))
        replace_status = world.api.replace

        async def pod_comes_back(path: str, body: Any) -> Raw:
            nonlocal later_s
            later_s += 6.0
            links[0].coordination = Coordination(a_snapshot(number=2), since=time.time())
            return await replace_status(path, body)

        world.api.replace = pod_comes_back  # type: ignore[method-assign]
        # when the pod comes back in that time
        assert lost.snapshot is not None
        links[0].coordination = replace(lost, snapshot=replace(lost.snapshot, token=RoundToken(1, 1, 1)))
        world.enqueue()
        await world.until(lambda: world.status().get("round") == 2)
    # then the operator does not delete it because of its earlier state
    assert ("DELETE", POD) not in world.api.calls


def events_of(world: World, reason: str) -> list[Raw]:
    return [raw for raw in world.api.of_kind("Event") if raw["reason"] == reason]


async def test_a_fault_in_status_has_its_event_although_the_next_write_fails(world: World, links: list[FakeLink]):
    # given a job that runs, and an API server that accepts a status and no pod
    world.apply_job(status=APPOINTED)
    world.api.deny = lambda method, path: ApiError(409, "Conflict", "later") if "/pods/" in path else None
    async with at_work(world):
        await world.until(lambda: bool(links))
        # when a fault is reported that is over at once
        fault = a_recovery(time.time() - 2, resumed_at=time.time())
        links[0].coordination = Coordination(a_snapshot(recoveries=[fault], number=1), since=time.time())
        world.enqueue()
        # then status has it, and both events are written
        await world.until(lambda: "lastRecovery" in world.status())
        await world.until(lambda: bool(events_of(world, "Recovered")))
        await world.until(
            lambda: "POST pods" in {f"{method} {path.split('/')[-2]}" for method, path in world.api.calls}
        )
    assert len(events_of(world, "FaultDetected")) == 1


async def test_a_fault_has_its_object_once_status_has_it(world: World, links: list[FakeLink]):
    # given a job that runs
    world.apply_job(status=APPOINTED)
    async with at_work(world):
        await world.until(lambda: bool(links))
        # when a fault is reported, and then its end
        fault = a_recovery(time.time() - 2)
        links[0].coordination = Coordination(a_snapshot(recoveries=[fault], number=1), since=time.time())
        world.enqueue()
        await world.until(lambda: bool(world.api.of_kind("Recovery")))
        assert "lastRecovery" in world.status()
        is_done = replace(fault, resumed_at=time.time())
        links[0].coordination = Coordination(a_snapshot(recoveries=[is_done], number=1), since=time.time())
        world.enqueue()
        # then one object has both
        await world.until(lambda: world.api.of_kind("Recovery")[0].get("outcome") == "Recovered")
    assert len(world.api.of_kind("Recovery")) == 1


async def test_a_job_without_a_right_to_write_recoveries_is_reconciled_as_before(world: World, links: list[FakeLink]):
    # given an API server that has no such kind
    world.apply_job(status=APPOINTED)
    world.api.deny = lambda _, path: ApiError(404, "NotFound", "no such kind") if "/recoveries" in path else None
    async with at_work(world):
        await world.until(lambda: bool(links))
        fault = a_recovery(time.time() - 2, resumed_at=time.time())
        links[0].coordination = Coordination(a_snapshot(recoveries=[fault], number=1), since=time.time())
        world.enqueue()
        # then status and events do not wait for it
        await world.until(lambda: bool(events_of(world, "Recovered")))
        assert "lastRecovery" in world.status()


async def test_a_fault_has_its_event_although_its_write_had_no_answer_and_later_ones_failed(
    world: World, links: list[FakeLink]
):
    # given an API server that executes the next status write without an answer, then fails, without watch events
    replace_status, writes = world.api.replace, list[str]()

    async def answer_nothing(path: str, body: Any) -> Raw:
        writes.append(path)
        if len(writes) == 1:
            await replace_status(path, body)
            raise TimeoutError
        raise ApiError(500, "InternalError", "etcdserver: leader changed")

    world.apply_job(status=APPOINTED)
    async with at_work(world):
        await world.until(lambda: bool(links))
        world.api.replace = answer_nothing  # type: ignore[method-assign]
        # when a fault is reported that is over before status is written again
        fault = a_recovery(time.time() - 2)
        links[0].coordination = Coordination(a_snapshot(recoveries=[fault], number=1), since=time.time())
        world.enqueue()
        await world.until(lambda: len(writes) == 1)
        is_done = replace(fault, resumed_at=time.time())
        links[0].coordination = Coordination(a_snapshot(recoveries=[is_done], number=2), since=time.time())
        await world.until(lambda: len(writes) > 2)
        # and the API server recovers, and the watch first reports the first write
        world.api.replace = replace_status  # type: ignore[method-assign]
        world.store.put(Kind.JOB, world.api.objects[PATH])
        world.enqueue()
        # then both events are written, each once
        await world.until(lambda: bool(events_of(world, "Recovered")))
    assert len(events_of(world, "FaultDetected")) == 1
    assert len(events_of(world, "Recovered")) == 1


async def test_an_end_in_status_has_its_event_although_the_leader_could_not_send_it(
    world: World, links: list[FakeLink]
):
    # given a leader that loses the lease right after it has written the end of the job
    def deny(_: str, path: str) -> Exception | None:
        return NotLeading("the lease is lost") if "/events/" in path and "terminalState" in world.status() else None

    world.apply_job(status=APPOINTED)
    world.api.deny = deny
    async with at_work(world):
        await world.until(lambda: bool(links))
        links[0].coordination = Coordination(a_snapshot(closed=SUCCEEDED), since=time.time())
        world.enqueue()
        await world.until(lambda: world.status().get("terminalState") == "Completed")
    assert events_of(world, "Completed") == []

    # when another replica leads
    world.api.deny = lambda *_: None
    async with at_work(world):
        # then the event is written
        await world.until(lambda: bool(events_of(world, "Completed")))
    assert events_of(world, "Completed")[0]["note"] == SUCCEEDED.message

    # and it is written once, whichever replica leads after that
    async with at_work(world):
        await world.until(lambda: sum("/events/" in path for _, path in world.api.calls[-9:]) > 0)
    assert len(events_of(world, "Completed")) == 1


@pytest.mark.attack("B4", "creates a Service under the name of a job's", before="refused, too")
@in_virtual_time
async def test_an_object_of_another_owner_under_our_name_is_reported_and_delays_the_job(world: World):
    # given that the name that the job needs is taken, perhaps by an earlier job of the same name
    taken = world.api.put(SERVICE, {"kind": "Service", "metadata": {"namespace": "research"}, "spec": {}})
    world.store.put(Kind.SERVICE, taken)
    world.apply_job()
    async with at_work(world, virtual()):
        await world.until(lambda: world.condition("Blocked")[0] == "True")
        assert world.condition("Blocked")[1] == (
            "Service llm-coordinator exists and does not belong to this job, which needs an object of this name: "
            "delete that object, or give the job another name"
        )
        # and meanwhile there is no hot loop, and no pod is created that would use the other object
        before = len(world.api.calls)
        await asyncio.sleep(60.0)
        assert 0 < len(world.api.calls) - before <= 24
        assert world.api.of_kind("Pod") == []

        # when that object is gone
        del world.api.objects[SERVICE]
        world.enqueue()

        # then the job continues
        await world.until(lambda: len(world.api.of_kind("Pod")) == 2)
        await world.until(lambda: world.condition("Invalid") == ("False", ""))


async def test_a_condition_of_refused_pods_ends_when_they_are_no_longer_wanted(world: World):
    # given spares that are refused
    world.api.refuse = lambda body: "no such field" if "spare" in body["metadata"].get("name", "") else ""
    world.apply_job(spares={"replicas": 1})
    async with at_work(world):
        await world.until(lambda: world.condition("Invalid") == ("True", "no such field"))
        raw = world.api.objects[PATH]
        raw["spec"]["spares"]["replicas"] = 0
        world.store.put(Kind.JOB, world.api.put(PATH, raw))
        world.enqueue()
        await world.until(lambda: world.condition("Invalid") == ("False", ""))


async def test_a_deleted_service_is_recreated_unchanged(world: World):
    # given a job whose pods run
    world.apply_job(status=APPOINTED)
    async with at_work(world):
        await world.until(lambda: len(world.api.of_kind("Pod")) == 2)
        address = world.api.objects[SERVICE]["spec"]["clusterIP"]

        # when it is deleted by hand, and the watch reports it
        world.store.remove(Kind.SERVICE, world.api.objects.pop(SERVICE))
        world.enqueue()

        # then new pods get the same address
        await world.until(lambda: SERVICE in world.api.objects)
        assert world.api.objects[SERVICE]["spec"]["clusterIP"] == address


def secret_calls(world: World) -> list[tuple[str, str]]:
    return [(method, path.rpartition("/")[2]) for method, path in world.api.calls if "/secrets" in path]


NAME, FACTS = "llm-job-uid-membership", "llm-job-uid-facts-12ea777093"


def secrets_with_keys(world: World) -> list[Raw]:
    return [raw for raw in world.api.of_kind("Secret") if "-facts-" not in raw["metadata"].get("name", "")]


#: A job in its second attempt, before its first round.
SECOND_ATTEMPT = {"epoch": 9, "podUID": "p", "podName": "p", "formerEpoch": 7, "previousAttempt": 0}


def suspend(world: World, suspended: bool = True) -> None:
    """Suspend or resume the job."""
    world.apply_job(status=world.status(), suspend=suspended)
    world.enqueue()


async def reconciles(world: World, count: int = 5) -> None:
    """Wait for this many reconciles, the last of which has been executed. In virtual time."""
    for _ in range(count):
        world.enqueue()
        await world.until(lambda: not world.worker.loop.is_queued)  # type: ignore[union-attr]
        await asyncio.sleep(1.0)


@in_virtual_time
async def test_a_secret_is_created_once_and_is_not_read(world: World):
    world.apply_job()
    async with at_work(world, virtual()):
        await world.until(lambda: len(world.api.of_kind("Pod")) == 2)
        await reconciles(world)
    assert secret_calls(world) == [("POST", NAME), ("POST", FACTS)]


@in_virtual_time
async def test_a_secret_that_exists_counts_as_created_and_is_not_read(world: World):
    """An earlier operator or somebody else has created it: a sidecar with another key fails the handshake."""
    world.api.put(SECRET, {"kind": "Secret", "metadata": {"namespace": "research"}, "data": {}})
    world.apply_job()
    async with at_work(world, virtual()):
        await world.until(lambda: len(world.api.of_kind("Pod")) == 2)
        await reconciles(world)
    assert secret_calls(world) == [("POST", NAME), ("POST", FACTS)]


async def test_a_secret_that_an_editor_creates_for_the_next_attempt_is_that_of_its_pods(world: World):
    """A limit that docs/explanation/security.md states: the operator reads no Secret."""
    world.apply_job()
    async with at_work(world, virtual()):
        await world.until(lambda: len(world.api.of_kind("Pod")) == 2)
        suspend(world)
        await world.until(lambda: secrets_with_keys(world) == world.api.of_kind("Pod") == [])
        # given an editor who creates the Secret of the next attempt with a chosen key, before the job is resumed
        path = f"{SECRET}-{world.status()['coordinator']['formerEpoch']}"
        world.api.put(path, {"kind": "Secret", "metadata": {"namespace": "research"}, "data": {"key": "chosen"}})
        suspend(world, False)
        await world.until(lambda: len(world.api.of_kind("Pod")) == 2)
        await reconciles(world)
    # then the pods of this attempt mount it, and nothing reports it
    assert world.api.objects[path]["data"] == {"key": "chosen"}
    assert {key_secret(pod) for pod in world.api.of_kind("Pod")} == {path.rpartition("/")[2]}
    assert world.condition("Blocked") == ("False", "")


def key_secret(pod: Raw) -> str:
    """The Secret with the key that a pod mounts."""
    (volume,) = [x for x in pod["spec"]["volumes"] if x["name"] == names.POD_VOLUME]
    return str(volume["projected"]["sources"][0]["secret"]["name"])


def run_pods(world: World, *, waits_since: str = "") -> None:
    """On a node that is Ready, with a sidecar that has started, or that has waited since then."""
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    world.store.put(
        Kind.NODE, world.api.put("/api/v1/nodes/n", {"kind": "Node", "metadata": {"name": "n"}, "status": ready})
    )
    sidecar = {"name": names.SIDECAR_CONTAINER, "started": True, "state": {"running": {}}}
    status: Raw = {"phase": "Running", "podIP": "10.1.0.1", "initContainerStatuses": [sidecar]}
    if waits_since:
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": waits_since}
        status = {"phase": "Pending", "conditions": [scheduled]}
    for raw in world.api.of_kind("Pod"):
        raw["spec"]["nodeName"] = "n"
        path = f"/api/v1/namespaces/research/pods/{raw['metadata']['name']}"
        world.store.put(Kind.POD, world.api.put(path, {**raw, "status": status}))
    world.enqueue()


@pytest.mark.usefixtures("links")
async def test_a_new_leader_creates_pods_although_a_quota_rejects_a_secret_that_exists(world: World):
    # given a job whose pods have mounted their Secret, in a namespace whose quota for Secrets is exhausted
    world.apply_job()
    async with at_work(world):
        await world.until(lambda: len(world.api.of_kind("Pod")) == 2)
        run_pods(world)
    quota = ApiError(403, "Forbidden", "secrets is forbidden: exceeded quota: q")
    world.api.deny = lambda method, path: quota if method == "POST" and "/secrets" in path else None
    # when another operator leads, and a pod is lost
    lost = next(path for path, raw in world.api.objects.items() if raw["kind"] == "Pod")
    world.store.remove(Kind.POD, world.api.objects.pop(lost))
    async with at_work(world):
        # then it creates another pod, and reports no refusal
        await world.until(lambda: len(world.api.of_kind("Pod")) == 2)
    assert world.condition("Blocked") == ("False", "")


@pytest.mark.attack("C3", "deletes the Secret for which the pods of a job wait", before="refused, too")
@in_virtual_time
async def test_a_secret_that_pods_wait_for_is_created_again_every_30_s(world: World):
    # given a job whose pods wait on their nodes because their Secret was deleted
    world.apply_job()
    async with at_work(world, virtual()):
        await world.until(lambda: len(world.api.of_kind("Pod")) == 2)
        before = world.api.objects.pop(SECRET)["data"]
        run_pods(world, waits_since=CREATED)
        # when they have waited for half a minute, then the Secret exists again, with the same content
        await asyncio.sleep(29.0)
        assert SECRET not in world.api.objects
        await asyncio.sleep(4.0)
        assert world.api.objects[SECRET]["data"] == before
        # and while they keep waiting, perhaps for an image, the operator creates it twice a minute
        await asyncio.sleep(300.0)
    assert 10 <= secret_calls(world).count(("POST", NAME)) <= 12
    assert set(secret_calls(world)) == {("POST", NAME), ("POST", FACTS)}


@pytest.mark.attack(
    "C3", "a thief of a job's key in the next attempt of the job", before="all attempts of a job had one key"
)
@pytest.mark.usefixtures("links")
@in_virtual_time
async def test_the_secret_of_an_attempt_is_deleted_with_it_and_the_next_one_has_another_key(world: World):
    # given a job whose pods are about to train
    world.apply_job()
    async with at_work(world, virtual()):
        await world.until(lambda: len(world.api.of_kind("Pod")) == 2)
        first = world.api.objects[SECRET]["data"]
        # when it is suspended
        suspend(world)
        await world.until(lambda: SECRET not in world.api.objects)
        # then it has no Secret, and each deletion was sent once
        await reconciles(world)
        attempt = world.status()["coordinator"]["formerEpoch"]
        assert secrets_with_keys(world) == []
        assert secret_calls(world)[2:] == [("DELETE", NAME), ("DELETE", f"{NAME}-{attempt}")]
        # and when it is resumed, it has another one
        suspend(world, False)
        await world.until(lambda: f"{SECRET}-{attempt}" in world.api.objects)
        second = world.api.objects[f"{SECRET}-{attempt}"]["data"]
        assert second[names.KEY_FILE] != first[names.KEY_FILE]
        assert second[names.OPERATOR_KEY_FILE] == first[names.OPERATOR_KEY_FILE]


async def test_the_operator_calls_the_pods_of_an_attempt_with_the_key_of_that_attempt(
    world: World, links: list[FakeLink]
):
    # given a job in its second attempt, in which a pod may coordinate
    world.apply_job(status={"coordinator": SECOND_ATTEMPT})
    async with at_work(world):
        await world.until(lambda: bool(links))
        # when it is suspended
        suspend(world)
        await world.until(lambda: world.status().get("phase") == "Suspended")
        await world.until(lambda: links[-1].done[-1] == "closed")
    # then its final message went to the pods of the attempt that has ended, under the key of that one
    assert [link.key for link in links] == [KEYRING.of_job("research", "job-uid", 7)]
    assert CloseReason.SUSPENDED in [message.reason for message in links[0].done if isinstance(message, End)]


async def test_pods_of_an_ended_job_are_called_with_the_key_of_their_attempt(world: World, links: list[FakeLink]):
    # given a job that has succeeded in its second attempt while no operator ran, and whose pods keep running
    values = {"type": "Completed", "status": "True", "message": "done", "reason": "AllJobsCompleted"}
    values["lastTransitionTime"] = CREATED
    world.apply_job(status={"coordinator": SECOND_ATTEMPT})
    async with at_work(world):
        await world.until(lambda: len(world.api.of_kind("Pod")) == 2)
        run_pods(world)
    links.clear()
    ended: Raw = {"coordinator": SECOND_ATTEMPT, "terminalState": "Completed", "completionTime": CREATED}
    ended["conditions"] = [values]
    raw = world.api.objects[PATH]
    world.store.put(Kind.JOB, world.api.put(PATH, {**raw, "status": ended}))
    # when an operator starts
    async with at_work(world):
        await world.until(lambda: bool(links))
    # then it sends them the end, under the key of their attempt
    assert {link.key for link in links} == {KEYRING.of_job("research", "job-uid", 7)}


async def test_refusals_of_many_pods_are_one_event(world: World):
    world.api.refuse = lambda body: f"Pod {body['metadata']['name']} is bad" if body["kind"] == "Pod" else ""
    world.apply_job()
    async with at_work(world):
        await world.until(lambda: world.condition("Invalid") == ("True", "Pod <pod> is bad"))
        await world.until(lambda: bool(world.api.of_kind("Event")))
    assert [raw["note"] for raw in world.api.of_kind("Event")] == ["Pod <pod> is bad"]


@pytest.mark.parametrize("trouble", [ValueError("an unexpected fact"), OSError("no route")])
async def test_a_failed_reconcile_is_retried(
    world: World, trouble: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    plan, failures = planner.reconcile, [trouble, trouble]

    def reconcile(*given: Any) -> Any:
        if failures:
            raise failures.pop()
        return plan(*given)

    monkeypatch.setattr(worker, "reconcile", reconcile)
    world.apply_job()
    async with at_work(world):
        await world.until(lambda: len(world.api.of_kind("Pod")) == 2)
    assert str(trouble) in caplog.text


async def test_a_job_that_changes_during_a_reconcile_is_read_again_and_no_reconcile_fails(
    world: World, caplog: pytest.LogCaptureFixture
):
    # given a job that was changed, which no watch has reported
    world.apply_job()
    raw = world.api.objects[PATH]
    world.api.put(PATH, {**raw, "spec": {**raw["spec"], "spares": {"replicas": 1}}})
    async with at_work(world):
        await world.until(lambda: len(world.api.of_kind("Pod")) == 3)
        await world.until(lambda: world.status().get("phase") == "Pending")
    assert "reconcile failed" not in caplog.text


@pytest.mark.parametrize(("thinks_s", "pause_s"), [(0.05, 0.2), (10.0, 0.5)], ids=["large", "huge"])
@in_virtual_time
async def test_a_job_with_long_reconciles_is_not_reconciled_at_each_of_its_changes(
    world: World, monkeypatch: pytest.MonkeyPatch, thinks_s: float, pause_s: float
):
    # given a job whose reconciles take this long, and that changes all the time
    loop, thought_s, decided = asyncio.get_running_loop(), 0.0, list[float]()

    def reconcile(*given: Any) -> Any:
        nonlocal thought_s
        thought_s += thinks_s
        decided.append(loop.time())
        return planner.reconcile(*given)

    monkeypatch.setattr(worker, "reconcile", reconcile)
    world.apply_job()
    async with at_work(world, Clock(steady=lambda: loop.time() + thought_s)):
        while len(decided) < 10:
            world.enqueue()
            await asyncio.sleep(0.001)
    # then there is a pause after each, which the next one waits for
    assert min(later - previous for previous, later in itertools.pairwise(decided)) >= pause_s - 0.001


@pytest.mark.parametrize(("exists", "deleted"), [(True, 0), (False, 1)])
@in_virtual_time
async def test_a_node_that_no_watch_has_reported_is_read_before_its_pods_count_as_lost(
    world: World, exists: bool, deleted: int
):
    # given a pod that was just bound to a node, which the watch of nodes may not have reported yet
    world.apply_job()
    if exists:
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        world.api.put("/api/v1/nodes/new", {"metadata": {}, "status": ready})
    async with at_work(world, virtual()):
        await world.until(lambda: len(world.api.of_kind("Pod")) == 2)
        path = next(path for path, raw in world.api.objects.items() if raw.get("kind") == "Pod")
        raw = world.api.objects[path]
        raw["spec"]["nodeName"] = "new"
        world.store.put(Kind.POD, world.api.put(path, raw))
        world.enqueue()
        await world.until(lambda: ("GET", "/api/v1/nodes/new") in world.api.calls)
        await asyncio.sleep(60.0)
    assert [method for method, _ in world.api.calls].count("DELETE") == deleted


# Suspensions that no operator observes ------------------------------------------------------------------------------


def change_unseen(world: World, changes: int = 3) -> None:
    """While no operator runs, the job is suspended, given another image, and resumed."""
    raw = world.api.objects[PATH]
    template = {"spec": {"containers": [{**TEMPLATE["spec"]["containers"][0], "image": "example.com/trainer:2"}]}}
    raw["spec"]["replicatedJobs"][0]["template"]["spec"]["template"] = template
    raw["metadata"]["generation"] = 1 + changes
    world.store.put(Kind.JOB, world.api.put(PATH, raw))


def images(world: World, kind: str) -> set[str]:
    specs = [x["spec"]["template"]["spec"] if kind == "Job" else x["spec"] for x in world.api.of_kind(kind)]
    return {spec["containers"][0]["image"] for spec in specs}


@pytest.mark.parametrize("kind", ["Pod", "Job"])
async def test_objects_of_previous_templates_are_recreated_after_an_unobserved_suspension(world: World, kind: str):
    world.apply_job()
    if kind == "Job":
        without_launcher(world)
    async with at_work(world):
        await world.until(lambda: len(world.api.of_kind(kind)) == (2 if kind == "Pod" else 1))
        await world.until(lambda: world.status().get("observedGeneration") == 1)
    previous = {raw["metadata"]["uid"] for raw in world.api.of_kind(kind)}
    change_unseen(world)
    async with at_work(world):
        await world.until(lambda: not previous & {raw["metadata"]["uid"] for raw in world.api.of_kind(kind)})
        # as the watch would report
        for uid in previous:
            gone = next(raw for raw in world.api.history if raw["metadata"]["uid"] == uid)
            world.store.remove(Kind.POD if kind == "Pod" else Kind.CHILD, gone)
        world.enqueue()
        await world.until(lambda: images(world, kind) == {"example.com/trainer:2"})
        await world.until(lambda: world.status()["observedGeneration"] == 4)
        assert len(world.api.of_kind(kind)) == len(previous)


@pytest.mark.parametrize(
    "changed",
    [
        {"launcher": {"nprocPerNode": 4}},
        {"termination": {"onSigterm": "Never"}},
        {"faults": {"hang": {"stepTimeout": "10m"}}},
        {"elastic": {"minPods": 1}},
        {"snapshots": {"size": "1Gi"}},
        {"recovery": {"coordinatorLossTimeout": "1m"}},
        {"recovery": {"launcherTimeout": "1m"}},
    ],
    ids=lambda changed: next(iter(changed)),
)
async def test_pods_with_previous_settings_are_recreated_after_an_unobserved_suspension(
    world: World, changed: dict[str, Any]
) -> None:
    # given pods that run
    world.apply_job()
    async with at_work(world):
        await world.until(lambda: len(world.api.of_kind("Pod")) == 2)
        await world.until(lambda: world.status().get("observedGeneration") == 1)
    previous = {raw["metadata"]["uid"] for raw in world.api.of_kind("Pod")}
    # when the job is suspended, changed and resumed while no operator runs
    raw = world.api.objects[PATH]
    raw["spec"].update(changed)
    raw["metadata"]["generation"] = 4
    world.store.put(Kind.JOB, world.api.put(PATH, raw))
    # then they are replaced
    async with at_work(world):
        await world.until(lambda: not previous & {raw["metadata"]["uid"] for raw in world.api.of_kind("Pod")})


@in_virtual_time
async def test_templates_that_differ_without_a_suspension_change_nothing(world: World):
    world.apply_job()
    async with at_work(world, virtual()):
        await world.until(lambda: len(world.api.of_kind("Pod")) == 2)
        await world.until(lambda: world.status().get("observedGeneration") == 1)
    previous = {raw["metadata"]["uid"] for raw in world.api.of_kind("Pod")}
    change_unseen(world, changes=1)
    async with at_work(world, virtual()):
        await world.until(lambda: world.status()["observedGeneration"] == 2)
        world.enqueue()
        await asyncio.sleep(60.0)
    assert {raw["metadata"]["uid"] for raw in world.api.of_kind("Pod")} == previous


# Child Jobs ---------------------------------------------------------------------------------------------------------

JOBS = "/apis/batch/v1/namespaces/research/jobs"


def without_launcher(world: World, status: Raw | None = None, **spec: Any) -> None:
    world.apply_job(status=status, **spec)
    world.api.objects[PATH]["spec"]["launcher"] = {"mode": "Off"}
    world.store.put(Kind.JOB, world.api.put(PATH, world.api.objects[PATH]))


async def test_a_job_without_a_launcher_gets_its_jobs_and_no_secret(world: World):
    without_launcher(world)
    async with at_work(world):
        await world.until(lambda: f"{JOBS}/llm-workers-0" in world.api.objects)
    assert [raw["kind"] for raw in world.api.objects.values()] == ["TrainingJob", "Service", "Job"]
    assert ("CHECK", JOBS) not in world.api.calls  # the creation of its only Job is the check


@in_virtual_time
async def test_a_pod_of_a_child_job_is_listed_and_reported_while_its_job_waits_for_it(world: World):
    # given a Job whose pod is Pending
    without_launcher(world)
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}
    metadata = {"namespace": "research", "labels": {"job-name": "llm-workers-0"}}
    pods = "/api/v1/namespaces/research/pods"
    status = {"phase": "Pending", "conditions": [scheduled]}
    pod = {"metadata": metadata, "spec": {"containers": []}, "status": status}
    async with at_work(world, virtual()):
        await world.until(lambda: bool(world.api.of_kind("Job")))
        owner = owned_by(world.api.of_kind("Job")[0]["metadata"]["uid"])
        world.api.put(f"{pods}/llm-workers-0-0", pod | {"metadata": {**metadata, "ownerReferences": owner}})
        world.api.put(f"{pods}/a-copy", pod)
        world.store.put(Kind.CHILD, world.api.put(f"{JOBS}/llm-workers-0", world.child(active=1)))
        world.enqueue()
        await world.until(lambda: "pod llm-workers-0-0: Unschedulable: no room" in world.condition("Ready")[1])
        assert "a-copy" not in world.condition("Ready")[1]
        # when it is ready
        world.store.put(Kind.CHILD, world.api.put(f"{JOBS}/llm-workers-0", world.child(ready=2, active=2)))
        world.enqueue()
        # then nothing is reported or listed any more
        await world.until(lambda: world.condition("Ready") == ("True", ""))
        requests = [call for call in world.api.calls if call[0] == "LIST"]
        world.enqueue()
        await asyncio.sleep(60.0)
        assert [call for call in world.api.calls if call[0] == "LIST"] == requests


def put_into_queue(world: World) -> None:
    """From now on Kueue's webhook puts each new Job into the queue that is the default of the namespace."""
    create = world.api.create

    async def create_in_queue(path: str, body: Mapping[str, Any]) -> Raw:
        if body["kind"] != "Job":
            return await create(path, body)
        metadata = body["metadata"] | {"labels": body["metadata"]["labels"] | {QUEUE: "default"}}
        return await create(path, {**body, "metadata": metadata, "spec": body["spec"] | {"suspend": True}})

    world.api.create = create_in_queue  # type: ignore[method-assign]


def report_deleted_jobs(world: World) -> None:
    """As the watch would."""
    present = {raw["metadata"]["uid"] for raw in world.api.of_kind("Job")}
    for raw in world.store.all(Kind.CHILD):
        if raw["metadata"]["uid"] not in present:
            world.store.remove(Kind.CHILD, raw)
            world.enqueue()


def created_jobs(world: World) -> int:
    return world.api.calls.count(("POST", f"{JOBS}/llm-workers-0"))


@in_virtual_time
async def test_a_suspended_job_does_not_create_and_delete_its_jobs_again_and_again_in_the_default_queue(world: World):
    # given a suspended job without a queue, whose new Jobs get one
    put_into_queue(world)
    without_launcher(world, suspend=True)
    async with at_work(world, virtual()):
        # when a minute passes
        for _ in range(60):
            await asyncio.sleep(1.0)
            report_deleted_jobs(world)
        # then its Job, which Kueue could start, was created and deleted once
        assert (created_jobs(world), world.api.of_kind("Job")) == (1, [])
        # and when the job is resumed, its Job is created in the queue
        raw = world.api.objects[PATH]
        raw["spec"]["suspend"] = False
        world.store.put(Kind.JOB, world.api.put(PATH, raw))
        world.enqueue()
        await world.until(lambda: len(world.api.of_kind("Job")) == 1)
        assert world.api.of_kind("Job")[0]["metadata"]["labels"][QUEUE] == "default"


@in_virtual_time
async def test_a_suspended_job_creates_no_job_whose_template_names_a_queue(world: World):
    workers = {"name": "workers", "template": {"metadata": {"labels": {QUEUE: "team"}}, "spec": {"template": TEMPLATE}}}
    without_launcher(world, suspend=True, replicatedJobs=[workers])
    async with at_work(world, virtual()):
        await asyncio.sleep(60.0)
    assert created_jobs(world) == 0


async def test_a_failed_list_of_such_pods_does_not_delay_the_job(world: World):
    # given two Jobs that wait for their pods, which cannot be listed; the success of one is enough
    pods = "/api/v1/namespaces/research/pods"
    world.api.deny = lambda method, path: (
        ApiError(503, "ServiceUnavailable", "try again") if method == "LIST" and path.startswith(pods) else None
    )
    workers = {"name": "workers", "replicas": 2, "template": {"spec": {"parallelism": 2, "template": TEMPLATE}}}
    without_launcher(world, replicatedJobs=[workers], successPolicy={"operator": "Any"})
    async with at_work(world):
        await world.until(lambda: len(world.api.of_kind("Job")) == 2)
        world.store.put(Kind.CHILD, world.api.put(f"{JOBS}/llm-workers-0", world.child(active=2)))
        world.enqueue()
        await world.until(lambda: any(method == "LIST" for method, _ in world.api.calls))
        # when one succeeds, then so does the TrainingJob
        ended = {"conditions": [{"type": "Complete", "status": "True", "lastTransitionTime": CREATED}]}
        job = next(raw for raw in world.api.of_kind("Job")) | {"status": ended}
        world.store.put(Kind.CHILD, world.api.put(f"{JOBS}/llm-workers-0", job))
        world.enqueue()
        await world.until(lambda: world.status().get("terminalState") == "Completed")


async def test_a_template_that_the_api_server_would_reject_is_reported_before_anything_is_created(world: World):
    world.api.refuse = lambda manifest: 'unknown field "spec.contaners"' if manifest["kind"] == "Job" else ""
    workers = {"name": "workers", "replicas": 2, "template": {"spec": {"template": TEMPLATE}}}
    without_launcher(world, replicatedJobs=[workers])
    async with at_work(world):
        await world.until(lambda: world.condition("Invalid") == ("True", 'unknown field "spec.contaners"'))
    assert ("POST", f"{JOBS}/llm-workers-0") not in world.api.calls


@in_virtual_time
async def test_a_job_that_starts_has_few_writes_of_its_status(world: World):
    world.apply_job()
    async with at_work(world, virtual()):
        await world.until(lambda: len(world.api.of_kind("Pod")) == 2)
        world.enqueue()
        await asyncio.sleep(0.1)
        # when its pods get a node, soon after each other
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        node = world.api.put("/api/v1/nodes/n", {"kind": "Node", "metadata": {"name": "n"}, "status": ready})
        world.store.put(Kind.NODE, node)
        for pod in world.api.of_kind("Pod"):
            path = f"/api/v1/namespaces/research/pods/{pod['metadata']['name']}"
            changed = {**pod, "spec": {**pod["spec"], "nodeName": node["metadata"]["name"]}}
            world.store.put(Kind.POD, world.api.put(path, changed))
            world.enqueue()
            await asyncio.sleep(0.1)
        await world.until(lambda: world.status()["phase"] == "Starting")
    # then one write has the first status, and one what has changed within a second
    assert world.api.calls.count(("PUT", PATH)) == 2


async def test_a_job_whose_ttl_has_expired_is_deleted(world: World):
    conditions = [{"type": "Completed", "status": "True", "reason": "R", "message": "", "lastTransitionTime": CREATED}]
    ended = {"terminalState": "Completed", "completionTime": CREATED, "conditions": conditions}
    without_launcher(world, ended, ttlSecondsAfterFinished=1)
    async with at_work(world):
        await world.until(lambda: PATH not in world.api.objects)


async def test_a_volume_claim_that_outlives_jobs_is_reused_unchanged(world: World):
    claims = "/api/v1/namespaces/research/persistentvolumeclaims"
    template = {"metadata": {"name": "data"}, "spec": {}}
    world.api.put(f"{claims}/data-llm", {"kind": "PersistentVolumeClaim", "metadata": {"namespace": "research"}})
    without_launcher(
        world, volumeClaimPolicies=[{"templates": [template], "retentionPolicy": {"whenDeleted": "Retain"}}]
    )
    async with at_work(world):
        await world.until(lambda: f"{JOBS}/llm-workers-0" in world.api.objects)
    assert world.api.calls.count(("POST", f"{claims}/data-llm")) == 1


async def test_no_pod_mounts_a_volume_claim_of_somebody_else_that_the_job_would_delete(world: World):
    # given a claim of somebody else, with the name of a claim that is deleted with the job
    claim = "/api/v1/namespaces/research/persistentvolumeclaims/data-llm"
    world.api.put(claim, {"kind": "PersistentVolumeClaim", "metadata": {"namespace": "research"}})
    without_launcher(world, volumeClaimPolicies=[{"templates": [{"metadata": {"name": "data"}, "spec": {}}]}])
    async with at_work(world):
        # when the job is reconciled, then the condition reports the claim, and there is no Job
        def blocked() -> str:
            conditions = world.api.objects[PATH].get("status", {}).get("conditions", ())
            return "".join(x["message"] for x in conditions if x["type"] == "Blocked")

        await world.until(lambda: "PersistentVolumeClaim data-llm exists and does not belong to this job" in blocked())
        assert f"{JOBS}/llm-workers-0" not in world.api.objects

        # when that claim is gone, then the job creates its own, and its Job
        del world.api.objects[claim]
        await world.until(lambda: f"{JOBS}/llm-workers-0" in world.api.objects)
        assert world.api.objects[claim]["metadata"]["ownerReferences"][0]["uid"] == "job-uid"


async def test_lines_to_members_of_a_previous_attempt_are_recreated(world: World, links: list[FakeLink]):
    world.apply_job(status={"round": 0, "coordinator": {"epoch": 1, "term": 1, "podUID": "a", "podName": "a"}})
    async with at_work(world):
        await world.until(lambda: bool(links))
        term = {"epoch": 9, "term": 1, "podUID": "b", "podName": "b", "formerEpoch": 7}
        raw = world.api.objects[PATH] | {"status": {"round": 0, "coordinator": term}}
        world.store.put(Kind.JOB, world.api.put(PATH, raw))
        world.enqueue()
        await world.until(lambda: len(links) == 2)
    assert [link.job_uid for link in links] == ["job-uid", "job-uid-7"]
    assert "closed" in links[0].done


@pytest.mark.parametrize(
    ("closed", "state", "phase"),
    [(SUCCEEDED, "Completed", "Succeeded"), (Close(CloseReason.SUSPENDED, "suspended"), None, "Suspended")],
)
async def test_a_job_that_is_suspended_just_after_it_has_succeeded_has_succeeded(
    world: World, links: list[FakeLink], closed: Close, state: str | None, phase: str
):
    # given a job whose coordinator closes the rendezvous, which the operator has not received yet
    world.apply_job(status=APPOINTED)
    async with at_work(world):
        await world.until(lambda: bool(links))
        links[0].coordination = Coordination(a_snapshot(), since=time.time())
        links[0].closed = closed
        # when the job is suspended
        world.apply_job(status=world.status(), suspend=True)
        world.enqueue()
        # then the operator asks the coordinator before it writes status, and the close counts
        await world.until(lambda: world.status().get("phase") == phase)
    assert world.status().get("terminalState") == state


async def test_a_success_that_a_pod_reports_counts_although_the_job_was_suspended_and_its_coordinator_is_gone(
    world: World, links: list[FakeLink]
):
    # given a job whose coordinator ends while the operator asks how the rendezvous was closed
    world.apply_job(status=APPOINTED, spares={"replicas": 1})
    pod = a_pod_of_the_job(world)
    async with at_work(world):
        await world.until(lambda: bool(links))
        links[0].coordination = Coordination(a_snapshot(), coordinator_uid="uid-s", since=time.time())
        requests = 0

        async def end_coordinator(end: End) -> Close | None:
            del end
            nonlocal requests
            requests += 1
            links[0].coordination = Coordination(a_snapshot(), since=time.time())
            return None

        links[0].end = end_coordinator  # type: ignore[method-assign]
        # when the job is suspended
        world.apply_job(status=world.status(), spares={"replicas": 1}, suspend=True)
        world.enqueue()
        await world.until(lambda: requests == 1 and world.status().get("phase") == "Suspended")
        # and the kubelet then reports that the pod has succeeded
        pod_succeeds(world, pod)
        # then the job has succeeded
        await world.until(lambda: world.status().get("phase") == "Succeeded")
    assert world.status()["terminalState"] == "Completed"


def virtual_clock() -> Clock:
    loop = asyncio.get_running_loop()
    return Clock(lambda: NOW + loop.time(), loop.time)


def pod_succeeds(world: World, pod: Raw) -> None:
    """As its kubelet reports, with the close that its sidecar has left."""
    message = wire.encode(SUCCEEDED)
    sidecar = {"name": names.SIDECAR_CONTAINER, "state": {"terminated": {"exitCode": 0, "message": message}}}
    pod["status"] = {"phase": "Succeeded", "initContainerStatuses": [sidecar]}
    world.store.put(Kind.POD, world.api.put(POD, pod))
    world.enqueue()


@pytest.mark.parametrize(
    ("report_after_s", "phase", "trains_again"), [(9.5, "Succeeded", False), (11.0, "Suspended", True)]
)
@in_virtual_time
async def test_pods_have_10_s_to_report_a_success_before_a_suspension_if_the_coordinator_is_gone(
    world: World, links: list[FakeLink], report_after_s: float, phase: str, trains_again: bool
):
    # given a training that has succeeded: its coordinator has ended, and no kubelet has reported a pod's end yet
    clock = virtual_clock()
    world.apply_job(status=APPOINTED, spares={"replicas": 1})
    pod = a_pod_of_the_job(world)
    async with at_work(world, clock):
        await world.until(lambda: bool(links))
        links[0].coordination = Coordination(a_snapshot(), since=clock.wall())
        # when the job is suspended 0.03 s later
        await asyncio.sleep(0.03)
        world.apply_job(status=world.status(), spares={"replicas": 1}, suspend=True)
        world.enqueue()
        await world.until(lambda: world.status().get("phase") == "Suspended")
        attempt = world.status()["coordinator"].get("formerEpoch")
        # and a kubelet reports late
        await asyncio.sleep(report_after_s)
        ended = world.status()["coordinator"].get("formerEpoch") != attempt
        pod_succeeds(world, pod)
        # then the success counts, unless the attempt has ended by then
        await asyncio.sleep(1.0)
        assert (world.status()["phase"], ended) == (phase, trains_again)
    assert world.status().get("terminalState") == (None if trains_again else "Completed")


RUNNING = {"phase": "Running"}
PLACED = [a_pod("a", 0), a_pod("b", 1), a_pod("s")]


def test_only_the_nodes_of_its_pods_concern_a_job_that_runs() -> None:
    assert concerning_nodes(a_job(status=RUNNING), Pods(PLACED)) == frozenset({"node-a", "node-b", "node-s"})


@pytest.mark.parametrize(
    ("job", "pods"),
    [
        pytest.param(a_job(status={"phase": "Starting"}), PLACED, id="it starts"),
        pytest.param(a_job(status={"phase": "Recovering"}), PLACED, id="it recovers"),
        pytest.param(a_job(status=RUNNING), [*PLACED, pending(a_pod("new", 2))], id="a pod waits for a node"),
        pytest.param(a_job(status=RUNNING), [], id="its pods are not known"),
        pytest.param(a_job(status=RUNNING, pool="spares"), PLACED, id="it may claim a spare on any node"),
        pytest.param(a_job(status=RUNNING, spec={"world": None}), PLACED, id="it has no launcher"),
        pytest.param(
            a_job(status=RUNNING, spec={"replicated_jobs": (a_group(), a_group("rollouts"))}),
            PLACED,
            id="it has Jobs besides its world",
        ),
    ],
)
def test_any_node_may_concern_a_job_that_may_wait_for_one(job: Job, pods: list[Pod]) -> None:
    assert concerning_nodes(job, Pods(pods)) is None

"""What enqueues a job or a pool, and the cost of enqueueing everything, as after each change of a node: CPU time in
proportion to the objects.
"""

import asyncio
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from tests.unit.operator.fake_api import CREATED, Raw, owned_by
from tests.unit.operator.given_operator import JOBS, PODS, ClusterApi, Running, running
from tests.unit.virtual_time import in_virtual_time
from understudy_operator.controllers.reconcile_loop import ReconcileLoop
from understudy_operator.observe.store import Kind


def of_a_pool(number: int, pool_uid: str = "") -> Raw:
    """A pod with the label of its own pool. pool_uid: the pool that controls it according to its ownerReferences."""
    labels = {"understudy.dev/job-uid": pool_uid or "x", "understudy.dev/pool": f"p{number}"}
    metadata: Raw = {"namespace": "evil", "name": f"e{number}", "uid": f"u{number}", "resourceVersion": "5"}
    metadata |= {"creationTimestamp": CREATED, "labels": labels}
    if pool_uid:
        metadata["ownerReferences"] = owned_by(pool_uid, "HotSparePool")
    return {"kind": "Pod", "metadata": metadata, "spec": {"containers": []}, "status": {"phase": "Pending"}}


def calls_of_waking_all(cluster: Running) -> int:
    """The number of function calls, which is the same on each machine."""
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        cluster.operator._enqueue_all()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.attack(
    "A1",
    "creates 4,000 pods, each with the label of another pool",
    before="each wake-up took the square of their number: 0.8 s for 3,000 pods, in which nothing else ran",
)
@pytest.mark.parametrize("pool_uid", ["", "forged"], ids=["a label", "a label and a forged owner"])
@in_virtual_time
async def test_enqueueing_everything_takes_time_in_proportion_to_the_pods(pool_uid: str) -> None:
    async with running(ClusterApi()) as cluster:
        await cluster.until(lambda: cluster.operator.synced)
        # given 1,000 pods, and then 4,000
        for number in range(1000):
            cluster.operator.store.put(Kind.POD, of_a_pool(number, pool_uid))
        few = calls_of_waking_all(cluster)
        for number in range(1000, 4000):
            cluster.operator.store.put(Kind.POD, of_a_pool(number, pool_uid))
        # when a node changes, then four times the pods cost at most four times the calls
        assert 1000 < calls_of_waking_all(cluster) <= 4.0 * few
        # and no pool has a worker for them
        assert not cluster.operator._pool_workers


@in_virtual_time
async def test_an_event_of_a_pod_that_no_pool_controls_enqueues_no_pool() -> None:
    async with running(ClusterApi()) as cluster:
        await cluster.until(lambda: cluster.operator.synced)
        enqueued: list[object] = []
        cluster.operator._enqueue_pool = enqueued.append  # type: ignore[method-assign,assignment]
        cluster.operator.on_watch_event(Kind.POD, "ADDED", of_a_pool(1))
        assert enqueued == []
        cluster.operator.on_watch_event(Kind.POD, "ADDED", of_a_pool(2, "pool-uid"))
        assert enqueued == [("evil", "p2")]


class ApiWithLateAnswers(ClusterApi):
    """The watch reports each write of a job's status 0.5 s before the write gets its answer.

    A test sets `between` to what it wants to see or do just before the answer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.between: Callable[[], None] = lambda: None

    async def replace(self, path: str, body: Mapping[str, Any]) -> Raw:
        raw = await super().replace(path, body)
        if path.startswith(JOBS):
            self.send_event(Kind.JOB, "MODIFIED", raw)
            await asyncio.sleep(0.4)
            self.between()
            await asyncio.sleep(0.1)
        return raw


async def a_job_that_waits(cluster: Running, api: ApiWithLateAnswers) -> ReconcileLoop:
    """Given a job whose pods wait for nodes, and whose status has been written."""
    await cluster.until(lambda: cluster.operator.synced)
    api.send_event(Kind.JOB, "ADDED", api.apply_job())
    await cluster.until(lambda: len(api.pods_of("llm")) == 2)
    await asyncio.sleep(30.0)
    return cluster.operator._workers["research", "llm"].loop


def get_a_node(api: ClusterApi) -> None:
    """A pod of the job gets a node. Status counts such pods."""
    pod = api.pods_of("llm")[0]
    path = f"{PODS}/{pod['metadata']['name']}"
    api.send_event(Kind.POD, "MODIFIED", api.put(path, {**pod, "spec": {**pod["spec"], "nodeName": "n"}}))


@in_virtual_time
async def test_a_watch_event_of_our_own_write_that_comes_before_its_answer_enqueues_no_job() -> None:
    api, queued = ApiWithLateAnswers(), list[bool]()
    async with running(api) as cluster:
        loop = await a_job_that_waits(cluster, api)
        api.between = lambda: queued.append(loop.is_queued)
        get_a_node(api)
        await cluster.until(lambda: bool(queued))
    assert queued == [False]


@in_virtual_time
async def test_a_change_of_the_job_between_our_own_write_and_its_answer_enqueues_it() -> None:
    api, queued = ApiWithLateAnswers(), list[bool]()
    async with running(api) as cluster:
        loop = await a_job_that_waits(cluster, api)

        def suspend() -> None:
            raw = api.objects[f"{JOBS}/llm"]
            metadata, spec = {**raw["metadata"], "generation": 2}, {**raw["spec"], "suspend": True}
            changed = api.put(f"{JOBS}/llm", {**raw, "metadata": metadata, "spec": spec})
            api.send_event(Kind.JOB, "MODIFIED", changed)
            asyncio.get_running_loop().call_later(0.05, lambda: queued.append(loop.is_queued))
            api.between = lambda: None

        api.between = suspend
        get_a_node(api)
        await cluster.until(lambda: bool(queued))
        # and the job is suspended
        await cluster.until(lambda: not api.pods_of("llm"))
    assert queued == [True]


@in_virtual_time
async def test_a_job_enqueues_the_pools_of_its_namespace_only_by_what_they_read_of_it() -> None:
    api = ClusterApi()
    async with running(api) as cluster:
        # given a running job, and a pool in its namespace
        await cluster.until(lambda: cluster.operator.synced)
        raw = api.apply_job(status={"phase": "Running"})
        cluster.operator.on_watch_event(Kind.JOB, "ADDED", raw)
        enqueued: list[object] = []
        cluster.operator._enqueue_pool = enqueued.append  # type: ignore[method-assign,assignment]
        cluster.operator._pool_workers["research", "spares"] = None  # type: ignore[assignment]

        def enqueues(**changes: Any) -> bool:
            enqueued.clear()
            changed = api.put(f"{JOBS}/llm", {**api.objects[f"{JOBS}/llm"], **changes})
            cluster.operator.on_watch_event(Kind.JOB, "MODIFIED", changed)
            return bool(enqueued)

        try:
            # then its progress enqueues no pool
            progress = {"step": 7, "at": "2026-11-20T10:00:07Z"}
            assert not enqueues(status={"phase": "Running", "progress": progress})
            # but each of these does: a fault and a named pool, for the number of spares; a suspension, a spec that
            # cannot be read, an end and a deletion, for its claims
            recovery = {"round": 1, "fault": "Node", "detectedAt": "2026-11-20T10:00:08Z"}
            assert enqueues(status={"phase": "Running", "recoveries": [recovery]})
            spec = raw["spec"]
            assert enqueues(spec={**spec, "suspend": True})
            assert enqueues(spec={"replicatedJobs": 5})
            assert enqueues(spec=spec)
            assert enqueues(spec={**spec, "spares": {"pool": "spares"}})
            assert enqueues(status={"phase": "Completed", "terminalState": "Completed"})
            enqueued.clear()
            cluster.operator.on_watch_event(Kind.JOB, "DELETED", api.objects.pop(f"{JOBS}/llm"))
            assert enqueued
        finally:
            cluster.operator._pool_workers.clear()


@in_virtual_time
async def test_the_lists_of_each_minute_enqueue_only_jobs_that_would_not_be_reconciled_soon_one_after_another() -> None:
    api, enqueued = ClusterApi(), list[tuple[str, float]]()
    async with running(api) as cluster:
        await cluster.until(lambda: cluster.operator.synced)
        # given a job that waits for nodes, and 20 jobs that have ended
        api.send_event(Kind.JOB, "ADDED", api.apply_job("waits"))
        for number in range(20):
            ended = {"phase": "Completed", "terminalState": "Completed"}
            api.send_event(Kind.JOB, "ADDED", api.apply_job(f"ended-{number}", status=ended))
        await asyncio.sleep(300.0)
        loop = asyncio.get_running_loop()

        def record(name: str) -> None:
            enqueued.append((name, loop.time()))

        for (_, name), worker in cluster.operator._workers.items():
            worker.enqueue = partial(record, name)  # type: ignore[method-assign]
        began = loop.time()
        # when ten minutes pass, in which the lists repeat every 45 to 75 s
        await asyncio.sleep(600.0)
    # then the job that waits is reconciled by itself, and the others are enqueued in each minute, at most two in 2 s
    assert {name for name, _ in enqueued} == {f"ended-{number}" for number in range(20)}
    assert 20 * 7 <= len(enqueued) <= 20 * 14
    times = [at for _, at in enqueued]
    assert max(sum(at <= other < at + 2.0 for other in times) for at in times) == 2
    assert times[0] - began <= 75.0

"""The long-lived tasks: each one that ends is restarted, and the restart is reported."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from tests.unit.operator.controllers.test_job_worker import links
from tests.unit.operator.given_operator import PODS, ClusterApi, running
from tests.unit.operator.metrics.reading import scraped
from tests.unit.virtual_time import in_virtual_time
from understudy_operator import health
from understudy_operator.controllers.supervisor import TaskSupervisor
from understudy_operator.metrics.operator_metrics import OperatorMetrics
from understudy_operator.observe.store import Kind
from understudy_operator.runtime.api import Keep

__all__ = ["links"]  # a fixture

pytestmark = pytest.mark.usefixtures("links")
TASKS = (
    "resync",
    "discovery of Kueue",
    "memory of nodes",
    "network policies",
    "events of malformed objects",
    "watch of trainingjobs",
    "watch of hotsparepools",
    "watch of injectedjobs",
    "watch of pods",
    "watch of nodes",
    "watch of services",
    "watch of jobs",
    "watch of persistentvolumeclaims",
)
BEGIN, ELECTION = "begin to lead", "election"
LEASE = ("understudy", "understudy-operator")


class Task:
    """Ends in each of these ways in turn, after this time, and then keeps running."""

    def __init__(self, *ends: Exception | None, after_s: float = 0.0) -> None:
        self.ends, self.after_s, self.started_at = list(ends), after_s, list[float]()

    async def run(self) -> None:
        self.started_at.append(asyncio.get_running_loop().time())
        if self.ends:
            await asyncio.sleep(self.after_s)
            end = self.ends.pop(0)
            if end is not None:
                raise end
            return
        await asyncio.Event().wait()


@asynccontextmanager
async def supervised(task: Task, *, once: bool = False) -> AsyncIterator[tuple[TaskSupervisor, OperatorMetrics]]:
    metrics = OperatorMetrics()
    supervisor = TaskSupervisor(metrics)
    supervisor.start("it", task.run, once=once)
    try:
        yield supervisor, metrics
    finally:
        await supervisor.stop()


def restarts(metrics: OperatorMetrics, name: str) -> float:
    return scraped(metrics.book.text())[("understudy_task_restarts_total", name)]


@in_virtual_time
async def test_a_task_that_raises_or_returns_runs_again_after_growing_pauses() -> None:
    # given a task that ends at once, in different ways
    task = Task(ValueError("a"), None, KeyError("b"), OverflowError("c"), ValueError("d"))
    async with supervised(task) as (supervisor, metrics):
        assert restarts(metrics, "it") == 0
        await asyncio.sleep(60.0)
        # then it is restarted each time, with the pauses of clock.Backoffs
        pauses = [later - previous for previous, later in zip(task.started_at, task.started_at[1:], strict=False)]
        for pause_s, expected_s in zip(pauses, (0.5, 1.0, 2.0, 4.0, 4.0), strict=True):
            assert 0.75 * expected_s <= pause_s <= 1.25 * expected_s
        assert restarts(metrics, "it") == 5
        assert dict(supervisor.waiting) == {}


@in_virtual_time
async def test_a_task_that_has_run_for_a_minute_is_restarted_soon() -> None:
    task = Task(*[ValueError("x")] * 6, after_s=61.0)
    async with supervised(task):
        await asyncio.sleep(3000.0)
    pauses = [later - previous - 61.0 for previous, later in zip(task.started_at, task.started_at[1:], strict=False)]
    assert len(pauses) == 6
    assert max(pauses) <= 0.5 * 1.25


@in_virtual_time
async def test_a_task_that_runs_once_is_retried_until_it_succeeds() -> None:
    task = Task(ValueError("not yet"), None)
    async with supervised(task, once=True) as (supervisor, _):
        assert list(supervisor.names) == ["it"]
        await asyncio.sleep(60.0)
        assert len(task.started_at) == 2
        assert list(supervisor.names) == []


@in_virtual_time
async def test_a_stopped_task_is_not_restarted() -> None:
    task = Task(ValueError("x"))
    async with supervised(task) as (supervisor, _):
        await asyncio.sleep(0.1)
        assert dict(supervisor.waiting) == {"it": "ValueError('x')"}
        await supervisor.stop("it")
        await asyncio.sleep(60.0)
    assert len(task.started_at) == 1


@pytest.mark.attack(
    "A2",
    "ends one of the leader's background tasks",
    before="nothing noticed, and it did not run again until a restart",
)
@pytest.mark.parametrize("name", TASKS)
@in_virtual_time
async def test_each_long_lived_task_of_the_operator_that_is_killed_runs_again(name: str) -> None:
    # given an operator at work
    api = ClusterApi()
    api.apply_job()
    async with running(api) as cluster:
        await cluster.until(lambda: len(api.pods_of("llm")) == 2)
        # when one of its tasks is killed
        killed = cluster.task(name)
        killed.cancel()
        await asyncio.sleep(0.01)
        # then /healthz and a metric report it
        assert dict(cluster.operator.waiting) == {name: "cancelled"}
        assert cluster.operator.alive
        assert cluster.logged()[("understudy_task_restarts_total", name)] == 1
        # and it is restarted
        await asyncio.sleep(1.0)
        assert dict(cluster.operator.waiting) == {}
        assert cluster.task(name) is not killed
        assert not cluster.task(name).done()


@in_virtual_time
async def test_the_list_has_all_long_lived_tasks() -> None:
    async with running(ClusterApi(), LEASE) as cluster:
        await cluster.until(lambda: cluster.operator.synced)
        assert {*cluster.operator._supervisor.names} >= {ELECTION}
        await asyncio.sleep(10.0)
        assert sorted(cluster.operator._supervisor.names) == sorted((ELECTION, *TASKS))


@pytest.mark.attack("A2", "ends the task that renews the lease", before="the task was not among those that were tested")
@in_virtual_time
async def test_an_election_that_is_killed_runs_again_and_the_replica_leads() -> None:
    # given a leader
    async with running(ClusterApi(), LEASE) as cluster:
        await cluster.until(lambda: cluster.operator.leads() and cluster.operator.synced)
        # when its election is killed
        cluster.task(ELECTION).cancel()
        await asyncio.sleep(0.01)
        assert dict(cluster.operator.waiting) == {ELECTION: "cancelled"}
        # then it is restarted before the lease has expired
        await asyncio.sleep(2.0)
        assert dict(cluster.operator.waiting) == {}
        assert cluster.operator.leads()
        await asyncio.sleep(60.0)
        assert cluster.operator.leads()
        assert cluster.logged()[("understudy_task_restarts_total", ELECTION)] == 1


@pytest.mark.attack("A2", "ends the task that begins to lead", before="the task was not among those that were tested")
@in_virtual_time
async def test_a_start_to_lead_that_is_killed_runs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a replica that starts to lead, and waits for a list
    api, begins, goes_on = ClusterApi(), asyncio.Event(), asyncio.Event()
    api.apply_job()
    lists = api.list

    async def list_slowly(path: str, selector: str = "", keep: Keep = lambda raw: raw) -> Any:
        if asyncio.current_task().get_name() == BEGIN:  # type: ignore[union-attr]
            begins.set()
            await goes_on.wait()
        return await lists(path, selector, keep)

    monkeypatch.setattr(api, "list", list_slowly)
    async with running(api) as cluster:
        await begins.wait()
        # when this task is killed
        cluster.task(BEGIN).cancel()
        goes_on.set()
        await asyncio.sleep(0.01)
        assert cluster.operator.waiting[BEGIN] == "cancelled"
        # then the replica leads after all
        await cluster.until(lambda: len(api.pods_of("llm")) == 2)
        assert dict(cluster.operator.waiting) == {}


def a_pool(api: ClusterApi) -> None:
    template = {"spec": {"containers": [{"name": "hold", "image": "example.com/pause:1"}]}}
    metadata = {"namespace": "research", "name": "shared"}
    pool = {"kind": "HotSparePool", "metadata": metadata, "spec": {"replicas": 1, "template": template}}
    api.put("/apis/understudy.dev/v1alpha1/namespaces/research/hotsparepools/shared", pool)


@pytest.mark.attack(
    "A2",
    "ends the reconciles of one job, or of one pool",
    before="the job was never reconciled again, and neither /healthz nor a metric reported it",
)
@pytest.mark.parametrize(
    ("of", "shown"), [("job research/llm", "reconciles of jobs"), ("pool research/shared", "reconciles of pools")]
)
@in_virtual_time
async def test_reconciles_that_are_killed_run_again(of: str, shown: str) -> None:
    # given a job and a pool at work
    api = ClusterApi()
    api.apply_job()
    a_pool(api)
    async with running(api) as cluster:
        await cluster.until(lambda: len(api.of_kind("Pod")) == 3)
        # when the reconciles of one of them are killed
        killed = next(task for task in asyncio.all_tasks() if task.get_name().startswith(of))
        killed.cancel()
        await asyncio.sleep(0.01)
        # then /healthz and a metric report it
        assert dict(cluster.operator.waiting) == {shown: "cancelled"}
        assert cluster.logged()[("understudy_task_restarts_total", shown)] == 1
        # and lost pods are replaced
        await asyncio.sleep(1.0)
        assert dict(cluster.operator.waiting) == {}
        for lost in api.of_kind("Pod"):
            del api.objects[f"{PODS}/{lost['metadata']['name']}"]
            api.send_event(Kind.POD, "DELETED", {**lost, "metadata": {**lost["metadata"], "resourceVersion": "900"}})
        await cluster.until(lambda: len(api.of_kind("Pod")) == 3)
    # and no task of it runs when the operator has stopped
    assert [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith(of)] == []


@in_virtual_time
async def test_an_operator_whose_start_to_lead_fails_leads_after_all(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a bug, or an object, that makes the start fail twice
    failures = [KeyError("metadata"), ValueError("eight")]
    api = ClusterApi()
    api.apply_job()
    fails = api.list

    async def list_or_fail(path: str, selector: str = "", keep: Keep = lambda raw: raw) -> Any:
        if failures and asyncio.current_task().get_name() == "begin to lead":  # type: ignore[union-attr]
            raise failures.pop(0)
        return await fails(path, selector, keep)

    monkeypatch.setattr(api, "list", list_or_fail)
    # when the replica starts, then it retries
    async with running(api) as cluster:
        await cluster.until(lambda: len(api.pods_of("llm")) == 2)
        assert cluster.logged()[("understudy_task_restarts_total", "begin to lead")] == 2


async def test_healthz_names_the_tasks_that_wait_to_run_again() -> None:
    # given an operator with a task that was killed
    async with running(ClusterApi()) as cluster:
        await cluster.until(lambda: cluster.operator.synced)
        server = await health.serve(cluster.operator, 0)
        try:
            cluster.task("watch of pods").cancel()
            await asyncio.sleep(0)
            # when the kubelet sends a probe
            port = server.port
            async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/healthz") as answer:
                status, text = answer.status, await answer.text()
        finally:
            await server.close()
    # then the operator is alive, and the answer reports the task
    assert status == 200
    assert "watch of pods ended (cancelled)" in text

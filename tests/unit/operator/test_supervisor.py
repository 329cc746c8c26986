"""The long-lived tasks: whatever ends one of them, it runs again, and everybody is told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from tests.unit.operator.given_operator import ClusterApi, running
from tests.unit.operator.metrics.reading import scraped
from tests.unit.operator.test_worker import links
from tests.unit.virtual_time import in_virtual_time
from understudy_operator import health
from understudy_operator.apply.api import Keep
from understudy_operator.metrics.operator import OperatorMetrics
from understudy_operator.supervisor import Supervisor

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


class Task:
    """It comes to each of these ends in turn, after so long, and then runs on."""

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
async def supervised(task: Task, *, once: bool = False) -> AsyncIterator[tuple[Supervisor, OperatorMetrics]]:
    metrics = OperatorMetrics()
    supervisor = Supervisor(metrics)
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
        # then it has run again each time, with the pauses of clock.Backoffs
        pauses = [later - former for former, later in zip(task.started_at, task.started_at[1:], strict=False)]
        for pause_s, expected_s in zip(pauses, (0.5, 1.0, 2.0, 4.0, 4.0), strict=True):
            assert 0.75 * expected_s <= pause_s <= 1.25 * expected_s
        assert restarts(metrics, "it") == 5
        assert dict(supervisor.waiting) == {}


@in_virtual_time
async def test_one_that_has_run_for_a_minute_is_soon_back() -> None:
    task = Task(*[ValueError("x")] * 6, after_s=61.0)
    async with supervised(task):
        await asyncio.sleep(3000.0)
    pauses = [later - former - 61.0 for former, later in zip(task.started_at, task.started_at[1:], strict=False)]
    assert len(pauses) == 6
    assert max(pauses) <= 0.5 * 1.25


@in_virtual_time
async def test_one_that_is_to_be_done_once_is_tried_until_it_is() -> None:
    task = Task(ValueError("not yet"), None)
    async with supervised(task, once=True) as (supervisor, _):
        assert list(supervisor.names) == ["it"]
        await asyncio.sleep(60.0)
        assert len(task.started_at) == 2
        assert list(supervisor.names) == []


@in_virtual_time
async def test_one_that_was_stopped_stays_so_also_while_it_waits_to_run_again() -> None:
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
        # then /healthz and a metric tell it
        assert dict(cluster.operator.waiting) == {name: "cancelled"}
        assert cluster.operator.alive
        assert cluster.said()[("understudy_task_restarts_total", name)] == 1
        # and it runs again
        await asyncio.sleep(1.0)
        assert dict(cluster.operator.waiting) == {}
        assert cluster.task(name) is not killed
        assert not cluster.task(name).done()


@in_virtual_time
async def test_these_are_all_of_them() -> None:
    async with running(ClusterApi()) as cluster:
        await cluster.until(lambda: cluster.operator.synced)
        await asyncio.sleep(10.0)
        assert sorted(cluster.operator._supervisor.names) == sorted(TASKS)


@in_virtual_time
async def test_an_operator_whose_start_to_lead_fails_leads_after_all(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a bug, or an object, over which the start fails twice
    failures = [KeyError("metadata"), ValueError("eight")]
    api = ClusterApi()
    api.apply_job()
    fails = api.list

    async def list_or_fail(path: str, selector: str = "", keep: Keep = lambda raw: raw) -> Any:
        if failures and asyncio.current_task().get_name() == "begin to lead":  # type: ignore[union-attr]
            raise failures.pop(0)
        return await fails(path, selector, keep)

    monkeypatch.setattr(api, "list", list_or_fail)
    # when it starts, then it tries again
    async with running(api) as cluster:
        await cluster.until(lambda: len(api.pods_of("llm")) == 2)
        assert cluster.said()[("understudy_task_restarts_total", "begin to lead")] == 2


async def test_healthz_names_the_tasks_that_wait_to_run_again() -> None:
    # given an operator with a task that was killed
    async with running(ClusterApi()) as cluster:
        await cluster.until(lambda: cluster.operator.synced)
        server = await health.serve(cluster.operator, 0)
        try:
            cluster.task("watch of pods").cancel()
            await asyncio.sleep(0)
            # when the kubelet asks
            port = server.port
            async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/healthz") as answer:
                status, text = answer.status, await answer.text()
        finally:
            await server.close()
    # then the operator lives, and the answer says what is wrong
    assert status == 200
    assert "watch of pods ended (cancelled)" in text

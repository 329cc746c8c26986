"""Metrics over whole reconciles: a recovery counts once, when its end is written, also over a failover."""

import time
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.operator.controllers.test_job_worker import APPOINTED, KEY, PATH, FakeLink, World
from tests.unit.operator.fake_api import FakeApi, Raw
from tests.unit.operator.given import IMAGE, KEYRING, a_snapshot
from tests.unit.operator.metrics.reading import scraped
from understudy_operator.apply.executor import Executor
from understudy_operator.controllers import job_worker as worker
from understudy_operator.controllers import reconcile_loop
from understudy_operator.controllers.job_worker import JobWorker
from understudy_operator.metrics.operator_metrics import OperatorMetrics
from understudy_operator.observe.store import Kind, Store
from understudy_operator.plan.facts.observed import Coordination
from understudy_operator.runtime.clock import Clock
from understudy_protocol.enums import Fault, Strategy
from understudy_protocol.observer import Cause, Recovery

CAUSE = Cause(0, "llm-workers-0-0-aaaaa", "n1", 1, None, "exit code 1")
OPEN = Recovery(1, Fault.PROCESS, Strategy.IN_PLACE, CAUSE, 1_800_000_000.0, None, "")
DONE = replace(OPEN, resumed_at=1_800_000_000.5)
COUNTED = ("understudy_recoveries_total", "Process", "Recovered", "InPlace")


class Replica:
    """A worker that leads, with metrics of its own; its store has the API server's objects."""

    def __init__(self, api: FakeApi, store: Store) -> None:
        self.metrics = OperatorMetrics()
        executor = Executor(api, store, Clock())
        self.worker = JobWorker(KEY, store, executor, KEYRING, IMAGE, lambda _: None, Clock(), metrics=self.metrics)

    def logged(self) -> dict[tuple[str, ...], float]:
        return scraped(self.metrics.book.text())


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(reconcile_loop, "FIRST_BACKOFF_S", 0.01)
    FakeLink.made = []
    monkeypatch.setattr(worker, "CoordinatorLink", FakeLink)
    world = World()
    world.apply_job(status=APPOINTED)
    return world


def report_snapshot(*recoveries: Recovery) -> None:
    FakeLink.made[-1].coordination = Coordination(
        a_snapshot(recoveries=recoveries), coordinator_uid="p", since=time.time()
    )


def read_samples(world: World) -> list[Any]:
    return [entry for entry in world.status().get("recoveries", ()) if "resumedAt" in entry]


async def test_a_recovery_counts_when_its_end_is_written_and_once_over_all_reconciles_and_leaders(world: World):
    first = Replica(world.api, world.store)
    await world.until(lambda: bool(FakeLink.made))
    # given an open recovery
    report_snapshot(OPEN)
    first.worker.enqueue()
    await world.until(lambda: bool(world.status().get("recoveries")))
    assert first.logged()[COUNTED] == 0
    # when training continues, and reconciles follow each other
    report_snapshot(DONE)
    first.worker.enqueue()
    await world.until(lambda: bool(read_samples(world)))
    reconciles = first.logged()[("understudy_reconcile_seconds_count", "TrainingJob")]
    first.worker.enqueue()
    await world.until(lambda: first.logged()[("understudy_reconcile_seconds_count", "TrainingJob")] > reconciles)
    # then the recovery was counted once
    assert first.logged()[COUNTED] == 1
    assert first.logged()[("understudy_recovery_seconds_sum", "Process", "InPlace")] == 0.5
    await first.worker.stop()
    # and if another replica leads, and its coordinator reports the recovery once more, it is not counted again
    second = Replica(world.api, world.store)
    await world.until(lambda: len(FakeLink.made) == 2)
    report_snapshot(DONE)
    second.worker.enqueue()
    await world.until(lambda: second.logged()[("understudy_reconcile_seconds_count", "TrainingJob")] >= 2)
    assert second.logged()[COUNTED] == 0
    await second.worker.stop()


async def test_a_leader_whose_store_is_behind_does_not_count_the_recovery_of_its_predecessor(world: World):
    first = Replica(world.api, world.store)
    await world.until(lambda: bool(FakeLink.made))
    report_snapshot(OPEN)
    first.worker.enqueue()
    await world.until(lambda: bool(world.status().get("recoveries")))
    # given a second replica whose store has the current job
    behind = Store()
    behind.put(Kind.JOB, dict(world.api.objects[PATH]))
    report_snapshot(DONE)
    first.worker.enqueue()
    await world.until(lambda: bool(read_samples(world)))
    await first.worker.stop()
    # when this replica leads, tries to write the same end, and is rejected
    second = Replica(world.api, behind)
    await world.until(lambda: len(FakeLink.made) == 2)
    report_snapshot(DONE)
    second.worker.enqueue()
    await world.until(lambda: bool((behind.get(Kind.JOB, KEY) or {}).get("status", {}).get("recoveries")))
    await world.until(lambda: second.logged()[("understudy_reconcile_seconds_count", "TrainingJob")] >= 2)
    # then it has counted nothing
    assert (first.logged()[COUNTED], second.logged()[COUNTED]) == (1, 0)
    await second.worker.stop()


async def test_a_write_that_was_done_without_an_answer_counts(world: World, monkeypatch: pytest.MonkeyPatch):
    replica = Replica(world.api, world.store)
    await world.until(lambda: bool(FakeLink.made))
    replace_status, lost = world.api.replace, list[str]()

    async def unanswered(path: str, body: Any) -> Raw:
        ended = any("resumedAt" in entry for entry in body.get("status", {}).get("recoveries", ()))
        raw = await replace_status(path, body)
        if ended and not lost:
            lost.append(path)
            raise TimeoutError
        return raw

    monkeypatch.setattr(world.api, "replace", unanswered)
    report_snapshot(DONE)
    replica.worker.enqueue()
    await world.until(lambda: replica.logged()[COUNTED] == 1)
    assert lost
    reconciles = replica.logged()[("understudy_reconcile_seconds_count", "TrainingJob")]
    replica.worker.enqueue()
    await world.until(lambda: replica.logged()[("understudy_reconcile_seconds_count", "TrainingJob")] > reconciles)
    assert replica.logged()[COUNTED] == 1
    assert replica.logged()[("understudy_reconcile_errors_total", "Trouble", "TrainingJob")] == 1
    await replica.worker.stop()


async def test_a_key_waits_from_its_enqueue_to_its_reconcile(world: World):
    replica = Replica(world.api, world.store)
    assert replica.worker.loop.is_queued
    await world.until(lambda: len(world.api.of_kind("Pod")) == 2)
    await world.until(lambda: not replica.worker.loop.is_queued)
    await replica.worker.stop()


async def test_a_job_that_has_trained_is_reported_after_a_while_without_a_coordinator(world: World):
    replica = Replica(world.api, world.store)
    await world.until(lambda: bool(FakeLink.made))
    for coordinator_uid, since_s, misses in (("", 60.0, True), ("", 1.0, False), ("p", 60.0, False)):
        FakeLink.made[-1].coordination = Coordination(
            None, coordinator_uid=coordinator_uid, since=time.time() - since_s
        )
        assert replica.worker.misses_coordinator is misses
    await replica.worker.stop()

"""Recovery objects are written at least once, in few requests, and without a reconcile that waits for them."""

import asyncio
from collections.abc import Sequence

import pytest

from tests.unit.operator.fake_api import FakeApi
from tests.unit.operator.given import NOW, a_job, a_recovery, a_snapshot, a_status, in_round, observed, status_of
from tests.unit.virtual_time import in_virtual_time
from understudy_operator.apply.executor import Executor
from understudy_operator.apply.recovery_objects import RecoveryWriter
from understudy_operator.observe.store import Store
from understudy_operator.plan.intents import RecoveryHistory
from understudy_operator.plan.status.recovery_history import plan_recovery_history
from understudy_operator.runtime.api import ApiError, NotLeading
from understudy_operator.runtime.clock import Clock
from understudy_protocol.observer import Recovery

PATH = "/apis/understudy.dev/v1alpha1/namespaces/research/recoveries"
JOB = a_job(status=in_round(0))
OPEN, RESUMED = a_recovery(strategy=None), a_recovery(resumed_at=NOW)


class World:
    def __init__(self, api: FakeApi | None = None) -> None:
        self.api = FakeApi() if api is None else api
        self.writer = self.new_writer()

    def new_writer(self) -> RecoveryWriter:
        """That of a replica which has just become the leader."""
        return Executor(self.api, Store(), Clock(steady=asyncio.get_running_loop().time)).recovery_writer()

    def update(self, *recoveries: Recovery, limit: int = 200) -> None:
        self.writer.update(JOB, history_of(recoveries, limit))

    async def finish(self) -> None:
        async with asyncio.timeout(600.0):
            while not self.writer.is_idle:  # noqa: ASYNC110 (its task tells nobody when it ends)
                await asyncio.sleep(0.01)

    def requests(self) -> list[str]:
        """The methods since the last call."""
        methods = [method for method, _ in self.api.calls]
        self.api.calls.clear()
        return methods

    @property
    def outcomes(self) -> list[object]:
        return [raw.get("outcome") for raw in self.api.of_kind("Recovery")]


def history_of(recoveries: Sequence[Recovery], limit: int = 200) -> RecoveryHistory:
    given = observed(a_job(status=in_round(0), history_limit=limit), snapshot=a_snapshot(recoveries=recoveries))
    history = plan_recovery_history(given, a_status(status_of(given)), NOW)
    assert history is not None
    return history


@in_virtual_time
async def test_a_fault_is_created_and_updated_after_one_list() -> None:
    world = World()
    world.update(OPEN)
    await world.finish()
    assert world.requests() == ["LIST", "POST"]
    world.update(OPEN)
    await world.finish()
    assert world.requests() == []
    world.update(RESUMED)
    await world.finish()
    assert world.requests() == ["PATCH"]
    assert world.outcomes == ["Recovered"]


@in_virtual_time
async def test_the_next_leader_writes_what_is_missing_and_nothing_twice() -> None:
    world = World()
    world.update(OPEN)
    await world.finish()
    # when another replica leads, and finds in status that training has resumed
    world.writer = world.new_writer()
    world.requests()
    world.update(RESUMED)
    await world.finish()
    assert world.requests() == ["LIST", "PATCH"]
    world.writer = world.new_writer()
    world.update(RESUMED)
    await world.finish()
    assert world.requests() == ["LIST"]
    assert world.outcomes == ["Recovered"]


@in_virtual_time
async def test_an_object_of_a_deleted_job_of_the_same_name_is_not_counted() -> None:
    world = World()
    world.api.put(f"{PATH}/old", {"kind": "Recovery", "metadata": {"labels": {"understudy.dev/job-uid": "job-uid"}}})
    world.update(RESUMED, limit=1)
    await world.finish()
    assert len(world.api.of_kind("Recovery")) == 2


@in_virtual_time
async def test_a_creation_that_was_done_without_an_answer_is_found_and_completed() -> None:
    world = World()
    failures = [TimeoutError()]

    async def create(path: str, body: dict[str, object]) -> dict[str, object]:
        raw = await FakeApi.create(world.api, path, body)
        if failures:
            raise failures.pop()
        return raw

    world.api.create = create  # type: ignore[assignment,method-assign]
    world.update(OPEN)
    await asyncio.sleep(0.1)
    world.update(RESUMED)
    await world.finish()
    assert world.outcomes == ["Recovered"]
    assert [raw["cause"]["pod"] for raw in world.api.of_kind("Recovery")] == ["a1"]


@pytest.mark.parametrize("error", [ApiError(500, "InternalError", "etcd"), TimeoutError(), NotLeading("not yet")])
@in_virtual_time
async def test_a_write_that_fails_is_sent_again(error: Exception) -> None:
    world = World()
    world.api.deny = lambda *_: error
    world.update(OPEN)
    await asyncio.sleep(300.0)
    assert not world.writer.is_idle
    world.api.deny = lambda *_: None
    await world.finish()
    assert world.outcomes == [None]


@in_virtual_time
async def test_a_rejected_write_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.api.refuse = lambda _: "exceeded quota"
    for recoveries in ((OPEN,), (OPEN,), (RESUMED,)):
        world.update(*recoveries)
        await world.finish()
    assert world.requests() == ["LIST", "POST"]
    assert [record.getMessage() for record in caplog.records] == [
        f"the write of Recovery research/{next(iter(history_of([OPEN]).objects))} was rejected: "
        "ApiError('exceeded quota')"
    ]


@in_virtual_time
async def test_without_the_right_to_list_objects_are_written_nevertheless() -> None:
    world = World()
    world.api.deny = lambda method, _: ApiError(403, "Forbidden", "no rights") if method == "LIST" else None
    world.update(RESUMED)
    await world.finish()
    assert world.outcomes == ["Recovered"]


@in_virtual_time
async def test_an_object_that_a_user_has_deleted_stays_deleted() -> None:
    world = World()
    world.update(OPEN)
    await world.finish()
    (key,) = [key for key in world.api.objects if key.startswith(PATH)]
    del world.api.objects[key]
    for _ in range(2):
        world.update(RESUMED)
        await world.finish()
    assert world.outcomes == []


@in_virtual_time
async def test_a_job_that_fails_a_hundred_times_a_minute_costs_at_most_two_requests_a_second() -> None:
    # given a coordinator whose every report has ten new faults, five times a second
    world = World()
    for tenth in range(0, 600, 2):
        faults = [a_recovery(NOW + tenth + place / 10, NOW + tenth + place / 10) for place in range(10)]
        world.update(*faults)
        await asyncio.sleep(0.2)
    # then it has had 40 requests at once, and two a second for a minute, and its list
    assert len(world.requests()) <= 40 + 2 * 60 + 2
    # and the newest faults get their objects
    await world.finish()
    names = sorted(raw["metadata"]["name"] for raw in world.api.of_kind("Recovery"))
    assert names[-10:] == sorted(history_of(faults).objects)


@in_virtual_time
async def test_older_objects_are_deleted_beyond_the_limit() -> None:
    world, faults = World(), list[Recovery]()
    for number in range(5):
        faults.append(a_recovery(NOW + number, NOW + number))
        world.update(*faults, limit=2)
        await world.finish()
    assert (
        sorted(raw["metadata"]["name"] for raw in world.api.of_kind("Recovery"))
        == list(history_of(faults, 2).objects)[-2:]
    )


@in_virtual_time
async def test_a_leader_that_stops_cleanly_writes_the_waiting_objects() -> None:
    world = World()
    world.update(RESUMED)
    await world.writer.stop(finish_s=1.0)
    assert world.outcomes == ["Recovered"]

"""The operator writes each event at least once, and users see each of them once."""

import asyncio
import logging

import pytest

from tests.unit.operator.fake_api import FakeApi, Raw
from tests.unit.operator.given import a_job
from tests.unit.virtual_time import in_virtual_time
from understudy_operator.apply.events import Outbox, event_of
from understudy_operator.apply.executor import Executor
from understudy_operator.observe.store import Store
from understudy_operator.plan.intents import Event
from understudy_operator.runtime.api import ApiError, NotLeading
from understudy_operator.runtime.clock import Clock

JOB = a_job()
REGARDING = {"kind": "TrainingJob", "namespace": "research", "name": "llm", "uid": "job-uid"}
STARTED = Event("Normal", "Started", "round 0 started with all ranks")
COMPLETED = Event("Normal", "Completed", "all workers of all members exited 0", "end")


class World:
    def __init__(self) -> None:
        self.api = FakeApi()
        loop = asyncio.get_running_loop()
        self.executor = Executor(self.api, Store(), Clock(steady=loop.time))
        self.outbox = self.executor.outbox()

    def add(self, *events: Event, outbox: Outbox | None = None) -> None:
        self.executor.subjects.add_events(outbox or self.outbox, JOB, events)

    def fail(self, error: Exception | None) -> None:
        self.api.deny = lambda *_: error

    @property
    def written(self) -> list[str]:
        return [raw["reason"] for raw in self.api.of_kind("Event")]


async def empty(outbox: Outbox) -> None:
    while not outbox.is_empty:  # noqa: ASYNC110 (virtual time goes by at once)
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("error", [TimeoutError(), ApiError(503, "", "away"), ApiError(429, "", "later")])
@in_virtual_time
async def test_an_event_without_an_answer_is_sent_until_there_is_one(error: Exception):
    world = World()
    world.fail(error)
    world.add(STARTED, COMPLETED)
    await asyncio.sleep(60.0)
    assert world.written == []
    world.fail(None)
    await empty(world.outbox)
    assert world.written == ["Started", "Completed"]


@in_virtual_time
async def test_an_event_that_was_written_without_an_answer_exists_once():
    class Forgetful(FakeApi):
        answers = False

        async def create(self, path: str, body: Raw) -> Raw:  # type: ignore[override]
            raw = await super().create(path, body)
            if not self.answers:
                raise TimeoutError
            return raw

    world = World()
    world.api = Forgetful()
    world.outbox = Executor(world.api, Store(), Clock(steady=asyncio.get_running_loop().time)).outbox()
    world.add(STARTED)
    await empty(world.outbox)
    assert world.written == ["Started"]


@in_virtual_time
async def test_two_leaders_write_an_event_that_status_records_once_and_other_events_each():
    world = World()
    other = world.executor.outbox()
    world.add(COMPLETED, STARTED)
    world.add(COMPLETED, STARTED, outbox=other)
    await empty(world.outbox)
    await empty(other)
    assert sorted(world.written) == ["Completed", "Started", "Started"]


@pytest.mark.parametrize(
    ("message", "note"),
    [
        ("x" * 1025, "x" * 1024),
        ("é" * 1000, "é" * 512),
        ("x" + "é" * 1000, "x" + "é" * 511),  # a character of two bytes is not cut in half
        ("a “short” text", "a “short” text"),
    ],
    ids=["ASCII", "two bytes each", "odd", "short"],
)
def test_a_note_has_at_most_1024_bytes(message: str, note: str):
    """The API server counts bytes, and rejects an event with more."""
    assert event_of(REGARDING, Event("Warning", "FaultDetected", message))["note"] == note


@pytest.mark.parametrize("end", ["-", ".", "-.-"])
def test_the_event_of_an_object_with_a_long_name_has_a_valid_name(end: str):
    begin = "a" * (230 - len(end))
    name = event_of({**REGARDING, "name": f"{begin}{end}bbb"}, STARTED)["metadata"]["name"]
    assert name.rpartition(".")[0] == begin


@in_virtual_time
async def test_a_rejected_event_is_logged_and_delays_no_other(caplog: pytest.LogCaptureFixture):
    world = World()
    world.api.refuse = lambda body: "too long" if body["reason"] == "Started" else ""
    world.add(STARTED, COMPLETED)
    await empty(world.outbox)
    assert world.written == ["Completed"]
    assert "event Started was rejected" in caplog.text


@in_virtual_time
async def test_an_event_that_cannot_be_written_for_ten_minutes_is_dropped_and_logged(caplog: pytest.LogCaptureFixture):
    world = World()
    world.fail(NotLeading("another replica leads"))
    world.add(STARTED)
    await asyncio.sleep(590.0)
    assert not world.outbox.is_empty
    await asyncio.sleep(20.0)
    assert world.outbox.is_empty
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        "event Started on llm was not written: NotLeading('another replica leads')"
    ]


@in_virtual_time
async def test_a_leader_that_stops_cleanly_sends_its_waiting_events():
    world = World()
    world.add(COMPLETED)
    await world.outbox.stop(finish_s=1.0)
    assert world.written == ["Completed"]


@pytest.mark.attack(
    "B2",
    "a coordinator reports other faults in each message",
    before="the operator wrote 300 events a second, until the API server's database was full",
)
@in_virtual_time
async def test_an_object_gets_100_events_at_once_and_then_two_a_second():
    world = World()
    world.add(*(Event("Warning", "FaultDetected", f"fault {number}") for number in range(150)))
    await asyncio.sleep(0.1)
    assert len(world.written) == 100
    await asyncio.sleep(10.0)
    assert len(world.written) == 120
    await empty(world.outbox)
    assert len(world.written) == 150


@in_virtual_time
async def test_at_most_200_events_of_one_object_wait():
    world = World()
    world.fail(TimeoutError())
    world.add(*(Event("Normal", "Started", f"round {number}") for number in range(250)))
    await asyncio.sleep(1.0)
    world.fail(None)
    await empty(world.outbox)
    assert [raw["note"] for raw in world.api.of_kind("Event")] == [f"round {number}" for number in range(50, 250)]

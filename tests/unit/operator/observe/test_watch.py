"""Our own watch: the version from which it resumes, and the consequences when it ends."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest

from tests.unit.operator.metrics.reading import scraped
from understudy_operator.metrics.operator_metrics import OperatorMetrics
from understudy_operator.observe.resync import Resync
from understudy_operator.observe.store import Kind, Raw, Store
from understudy_operator.observe.watch import Watch
from understudy_operator.plan.leadership.shard import SINGLE_SHARD, Shard
from understudy_operator.runtime.api import Api, ApiError, Keep, ObjectList
from understudy_operator.runtime.clock import Clock
from understudy_operator.runtime.decoding import WatchEvent

Event = tuple[str, str, int]  # type, name, version
Stream = list[Event | Exception]


class Streams(Api):
    """Returns these lists, and plays these streams, one a call; then no more."""

    def __init__(self, lists: list[tuple[list[str], str]], *streams: Stream) -> None:
        super().__init__(None)
        self._lists, self._streams = lists, list(streams)
        self.requests: list[str] = []  # the versions from which streams began
        self.has_ended = asyncio.Event()

    async def list(self, path: str, selector: str = "", keep: Keep = lambda raw: raw) -> ObjectList:
        names, version = self._lists.pop(0)
        return ObjectList([_pod(name, int(version)) for name in names], version)

    async def watch(self, path: str, selector: str, version: str) -> AsyncGenerator[WatchEvent]:
        assert (path, selector) == ("/api/v1/pods", "understudy.dev/job-uid")
        if not self._streams:
            self.has_ended.set()
            await asyncio.Event().wait()
        self.requests.append(version)
        for event in self._streams.pop(0):
            if isinstance(event, Exception):
                raise event
            kind, name, at = event
            yield WatchEvent(kind, msgspec.Raw(json.dumps(_pod(name, at)).encode()))


def _pod(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"namespace": "team", "name": name, "uid": name, "resourceVersion": str(version)}}


async def followed(
    api: Streams, metrics: OperatorMetrics | None = None, shard: Shard = SINGLE_SHARD
) -> list[tuple[str, str]]:
    """The events that it has reported by the end of the streams."""
    store, seen = Store(), list[tuple[str, str]]()
    resync = Resync(api, store, Clock(), lambda: None, shard=shard)

    def on_event(_: Kind, event: str, raw: Raw) -> None:
        seen.append((event, raw["metadata"]["name"]))

    watch = Watch(api, Kind.POD, "/api/v1/pods", resync, on_event, metrics, shard)
    task = asyncio.create_task(watch.run())
    await asyncio.sleep(0)
    assert not api.requests  # nothing is followed before there is a list
    await resync.list_kind(Kind.POD)
    await asyncio.wait_for(api.has_ended.wait(), 10.0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return [*seen, *(("listed", raw["metadata"]["name"]) for raw in store.all(Kind.POD))]


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that the watch asked for; none of them is waited."""
    pauses: list[float] = []
    really = asyncio.sleep

    async def sleep(pause_s: float) -> None:
        if pause_s:
            pauses.append(pause_s)
        await really(0)

    monkeypatch.setattr("understudy_operator.observe.watch.asyncio.sleep", sleep)
    return pauses


async def test_a_watch_resumes_from_the_list_and_then_from_the_last_events_version(slept: list[float]) -> None:
    api = Streams([(["a"], "10")], [("ADDED", "b", 11), ("BOOKMARK", "", 15)], [("DELETED", "a", 17)], [])
    assert await followed(api) == [("ADDED", "b"), ("DELETED", "a"), ("listed", "a")]
    assert api.requests == ["10", "15", "17"]


async def test_objects_of_other_shards_are_not_reported_and_the_watch_resumes_after_them(slept: list[float]) -> None:
    # given namespace "team", which belongs to shard 1 of 2
    events: Stream = [("ADDED", "b", 11), ("MODIFIED", "b", 12)]
    # when the watch of the other shard receives events of it
    api = Streams([([], "10")], events, [])
    assert await followed(api, shard=Shard(0, 2)) == []
    # then it resumes after these events
    assert api.requests == ["10", "12"]
    # and the watch of shard 1 reports them
    assert await followed(Streams([([], "10")], events, []), shard=Shard(1, 2)) == [("ADDED", "b"), ("MODIFIED", "b")]


async def test_an_expired_version_causes_a_new_list(slept: list[float]) -> None:
    api = Streams([(["a", "b"], "10"), (["b"], "50")], [ApiError(410, "Expired", "too old")], [("MODIFIED", "b", 51)])
    assert await followed(api) == [("MODIFIED", "b"), ("listed", "b")]
    assert api.requests == ["10", "50"]


async def test_an_unreachable_api_server_is_called_again_with_growing_pauses(slept: list[float]) -> None:
    away = OSError("connection refused")
    await followed(Streams([([], "10")], [away], [away], [away]))
    assert [round(pause_s) for pause_s in slept[:3]] == sorted(round(pause_s) for pause_s in slept[:3])
    assert slept[0] <= 0.5 * 1.25
    assert slept[2] >= 2.0 * 0.75


async def test_a_busy_api_server_is_called_again_after_its_pause(slept: list[float]) -> None:
    await followed(Streams([([], "10")], [ApiError(429, "TooManyRequests", "busy", 9.0)]))
    assert slept[0] == 9.0


async def test_streams_that_end_at_once_are_not_opened_without_a_pause(slept: list[float]) -> None:
    await followed(Streams([([], "10")], [], [], []))
    assert all(pause_s > 0.3 for pause_s in slept[:3])
    assert len(slept) == 3


async def test_ends_of_streams_are_counted_and_failures_separately(slept: list[float]) -> None:
    # given a stream that ends after its time, one that breaks, and one that is rejected
    metrics = OperatorMetrics()
    broken: Stream = [("ADDED", "a", 12), OSError("connection reset")]
    await followed(
        Streams([([], "10")], [("ADDED", "b", 11)], broken, [ApiError(500, "InternalError", "away")]), metrics
    )
    # then the watch continues after each of them, and two count as failures
    lines = scraped(metrics.book.text())
    assert lines[("understudy_watch_restarts_total", "pods")] == 3
    assert lines[("understudy_watch_failures_total", "pods")] == 2

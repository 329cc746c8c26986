"""One timer, however often it is set: it rings once, at the newest deadline."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.virtual_time import in_virtual_time
from understudy_sidecar import alarm as alarm_module
from understudy_sidecar.alarm import Alarm


class Ringing:
    def __init__(self) -> None:
        self.times: list[float] = []
        self.alarm = Alarm(lambda: self.times.append(now()))


def now() -> float:
    """Seconds of the event loop."""
    return asyncio.get_running_loop().time()


@pytest.fixture
def ringing(monkeypatch: pytest.MonkeyPatch) -> Ringing:
    monkeypatch.setattr(alarm_module, "now", now)
    return Ringing()


@pytest.mark.parametrize("delays", [(50.0,), (10.0, 50.0), (500.0, 50.0), (10.0, 20.0, 500.0, 50.0)])
@in_virtual_time
async def test_it_rings_once_at_the_newest_deadline(ringing: Ringing, delays: tuple[float, ...]) -> None:
    start = now()
    for delay in delays:
        ringing.alarm.set(start + delay)
    await asyncio.sleep(1000.0)
    assert len(ringing.times) == 1
    assert 50.0 <= ringing.times[0] - start < 50.01


@in_virtual_time
async def test_it_does_not_ring_when_it_was_canceled(ringing: Ringing) -> None:
    ringing.alarm.set(now() + 10.0)
    ringing.alarm.set(None)
    await asyncio.sleep(1000.0)
    assert ringing.times == []


@in_virtual_time
async def test_it_rings_again_when_it_is_set_again(ringing: Ringing) -> None:
    for _ in range(3):
        ringing.times.clear()
        ringing.alarm.set(now() - 1.0)  # overdue: at once
        await asyncio.sleep(0.01)
        assert len(ringing.times) == 1


async def test_a_deadline_that_moves_on_starts_no_timer(ringing: Ringing, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator of ten thousand members sets it thousands of times a second."""
    timers = 0
    start_timer = ringing.alarm._start

    def counted(at: float) -> None:
        nonlocal timers
        timers += 1
        start_timer(at)

    monkeypatch.setattr(ringing.alarm, "_start", counted)
    for number in range(1000):
        ringing.alarm.set(now() + 10.0 + number)
    assert timers == 1

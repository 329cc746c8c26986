"""The sidecar's clock, if the machine's wall clock is set, and its timer, which rings once, at the newest deadline."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.virtual_time import in_virtual_time
from understudy_sidecar import clock as clock_module
from understudy_sidecar.clock import Alarm, SlewedClock


class Machine:
    """Its wall clock, and the seconds since its boot."""

    def __init__(self) -> None:
        self.wall, self.uptime = 1_800_000_000.0, 500.0

    def pass_(self, seconds: float) -> None:
        self.wall += seconds
        self.uptime += seconds


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def clock(machine: Machine) -> SlewedClock:
    return SlewedClock(lambda: machine.wall, lambda: machine.uptime)


def test_it_is_the_wall_clock(machine: Machine, clock: SlewedClock) -> None:
    machine.pass_(3.5)
    assert clock.now() == 1_800_000_003.5


@pytest.mark.parametrize("step", [60.0, -60.0])
def test_a_step_of_the_wall_clock_is_no_jump_and_is_followed_within_ten_minutes(
    machine: Machine, clock: SlewedClock, step: float
) -> None:
    before = clock.now()
    machine.wall += step
    assert clock.now() == before
    # each second lasts between 0.9 and 1.1 seconds on this clock
    for _ in range(599):
        machine.pass_(1.0)
        assert 0.899 < clock.now() - before < 1.101
        before = clock.now()
    assert abs(clock.now() - machine.wall) > 0.05
    machine.pass_(2.0)
    assert abs(clock.now() - machine.wall) < 0.001


def test_a_large_step_is_followed_too(machine: Machine, clock: SlewedClock) -> None:
    """One coordinator records the time of a fault, and the next one reads it with the clock of another machine."""
    machine.wall -= 3600.0
    for _ in range(36_100):
        machine.pass_(1.0)
        clock.now()
    assert abs(clock.now() - machine.wall) < 0.001


class Ringing:
    def __init__(self) -> None:
        self.times: list[float] = []
        self.alarm = Alarm(lambda: self.times.append(now()))


def now() -> float:
    """Seconds of the event loop."""
    return asyncio.get_running_loop().time()


@pytest.fixture
def ringing(monkeypatch: pytest.MonkeyPatch) -> Ringing:
    monkeypatch.setattr(clock_module, "now", now)
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

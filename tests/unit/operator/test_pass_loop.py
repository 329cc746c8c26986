"""The loop of the workers, in virtual time: when a pass is run, after what, and when none is."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from tests.unit.virtual_time import in_virtual_time
from understudy_operator.metrics.operator import OperatorMetrics
from understudy_operator.pass_loop import Passed, PassLoop
from understudy_operator.supervisor import Supervisor

FIRST_BACKOFF_S = 0.2
LONGEST_BACKOFF_S = 30.0
LONGEST_REST_S = 0.5
REST_OF_PASS = 4.0
REST_S = 1.0

#: Pauses after trouble are of random length: so much of what is said at least, and at most.
LEAST, MOST = 0.75, 1.25
STEP_S = 0.001
IDLE = Passed(None)


class Passes:
    """What passes come to, one after the other, the last again and again; and when each was run."""

    def __init__(self, *ends: Passed | Exception | None) -> None:
        self.ends, self.at = list(ends), list[float]()
        self.during_first: Callable[[], None] = lambda: None

    async def run(self) -> Passed | None:
        if not self.at:
            self.during_first()
        self.at.append(asyncio.get_running_loop().time())
        end = self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]
        if isinstance(end, Exception):
            raise end
        return end


@asynccontextmanager
async def going(passes: Passes) -> AsyncIterator[PassLoop]:
    loop = PassLoop("job ns/a", passes.run, {"job": "a"}, Supervisor(OperatorMetrics()), "jobs")
    try:
        yield loop
    finally:
        await loop.stop()


def pauses(at: Iterable[float]) -> list[float]:
    return [later - former for former, later in pairwise(at)]


@in_virtual_time
async def test_a_pass_is_run_at_once_then_when_it_has_said_then_once_it_is_woken():
    passes = Passes(Passed(2.0), Passed(2.0), IDLE)
    async with going(passes) as loop:
        await asyncio.sleep(60)
        assert passes.at == [0.0, 2.0, 4.0]
        loop.wake()
        await asyncio.sleep(60)
    assert passes.at == [0.0, 2.0, 4.0, 60.0]


@in_virtual_time
async def test_what_wakes_it_during_a_pass_has_another_one_follow():
    passes = Passes(IDLE)
    async with going(passes) as loop:
        passes.during_first = loop.wake
        await asyncio.sleep(60)
    assert len(passes.at) == 2


@in_virtual_time
async def test_it_ends_when_there_is_nothing_left_to_care_for():
    passes = Passes(IDLE, None)
    async with going(passes) as loop:
        await asyncio.sleep(1)
        loop.wake()
        await asyncio.sleep(1)
        assert loop.task is None
        loop.wake()
        await asyncio.sleep(60)
    assert len(passes.at) == 2


@in_virtual_time
async def test_one_that_is_stopped_just_when_it_is_woken_ends():
    passes = Passes(IDLE)
    async with going(passes) as loop:
        await asyncio.sleep(1)
        loop.wake()
        await loop.stop()
        assert loop.task is None


@in_virtual_time
async def test_passes_that_fail_are_tried_again_after_growing_pauses():
    passes = Passes(OSError("no route"))
    async with going(passes):
        await asyncio.sleep(300)
    expected, backoff_s = [], FIRST_BACKOFF_S
    for pause_s in pauses(passes.at):
        expected.append(LEAST * backoff_s <= pause_s <= MOST * backoff_s)
        backoff_s = min(2 * backoff_s, LONGEST_BACKOFF_S)
    assert len(expected) > 12
    assert all(expected)


@in_virtual_time
async def test_one_that_succeeds_makes_the_next_pause_short_again():
    trouble = [OSError("no route")] * 6
    passes = Passes(*trouble, Passed(0.0), *trouble)
    async with going(passes):
        await asyncio.sleep(60)
    first, *_ = pauses(passes.at[7:])
    assert first <= MOST * FIRST_BACKOFF_S


@in_virtual_time
async def test_what_wakes_it_after_a_failed_pass_has_it_tried_again_soon():
    """However long the trouble has lasted: it may be over."""
    passes = Passes(OSError("no route"))
    async with going(passes) as loop:
        await asyncio.sleep(300)
        tried, woken_at = len(passes.at), 300.0
        loop.wake()
        await asyncio.sleep(REST_S + STEP_S)
    assert len(passes.at) > tried
    assert passes.at[tried] - woken_at <= REST_S + STEP_S


@in_virtual_time
async def test_but_not_at_each_wake():
    passes = Passes(OSError("no route"))
    async with going(passes) as loop:
        for _ in range(6000):
            loop.wake()
            await asyncio.sleep(0.01)
    for number, pause_s in enumerate(pauses(passes.at)):
        assert pause_s >= min(LEAST * FIRST_BACKOFF_S * 2**number, REST_S) - STEP_S


@pytest.mark.parametrize("thought_s", [0.001, 0.05, 10.0], ids=["small", "large", "huge"])
@in_virtual_time
async def test_what_takes_long_to_decide_about_is_not_decided_anew_at_each_of_its_changes(thought_s: float):
    passes = Passes(Passed(None, thought_s))
    async with going(passes) as loop:
        for _ in range(3000):
            loop.wake()
            await asyncio.sleep(STEP_S)
    rest_s = min(REST_OF_PASS * thought_s, LONGEST_REST_S)
    assert pauses(passes.at) == [pytest.approx(rest_s, abs=STEP_S)] * (len(passes.at) - 1)


@pytest.mark.parametrize(("trouble", "traceback"), [(ValueError("a fact"), True), (OSError("no route"), False)])
def test_the_log_says_what_has_failed_and_where_if_nobody_has_thought_of_it(
    trouble: Exception, traceback: bool, caplog: pytest.LogCaptureFixture
):
    @in_virtual_time
    async def fails() -> None:
        async with going(Passes(trouble, IDLE)):
            await asyncio.sleep(10)

    fails()
    (record,) = caplog.records
    assert record.getMessage() == f"job ns/a: reconcile failed: {trouble!r}; retrying in {FIRST_BACKOFF_S:.1f} s"
    assert bool(record.exc_info and record.exc_info[0]) is traceback


class Slow:
    """A pass that takes so long, and how many have begun and ended."""

    def __init__(self, takes_s: float, end: Passed | Exception = IDLE) -> None:
        self.takes_s, self.end, self.begun, self.ended = takes_s, end, 0, 0

    async def run(self) -> Passed | None:
        self.begun += 1
        await asyncio.sleep(self.takes_s)
        self.ended += 1
        if isinstance(self.end, Exception):
            raise self.end
        return self.end


@pytest.mark.parametrize("end", [IDLE, Passed(0.0), OSError("reset")])
@in_virtual_time
async def test_a_pass_that_runs_may_end_before_the_loop_stops_and_no_other_one_begins(end: Passed | Exception):
    slow = Slow(1.0, end)
    loop = PassLoop("job ns/a", slow.run, {"job": "a"}, Supervisor(OperatorMetrics()), "jobs")
    await asyncio.sleep(0.5)
    loop.wake()
    await loop.stop(finish_s=2.5)
    assert (slow.begun, slow.ended) == (1, 1)
    assert asyncio.get_running_loop().time() < 1.1


@in_virtual_time
async def test_a_pass_that_takes_longer_is_cut_off_and_one_that_waits_costs_no_time():
    slow = Slow(10.0)
    loop = PassLoop("job ns/a", slow.run, {"job": "a"}, Supervisor(OperatorMetrics()), "jobs")
    await asyncio.sleep(0.5)
    await loop.stop(finish_s=2.5)
    assert (slow.begun, slow.ended) == (1, 0)
    assert asyncio.get_running_loop().time() == pytest.approx(3.0)

    idle = PassLoop("job ns/a", Slow(0.0).run, {"job": "a"}, Supervisor(OperatorMetrics()), "jobs")
    await asyncio.sleep(0.5)
    await idle.stop(finish_s=2.5)
    assert asyncio.get_running_loop().time() == pytest.approx(3.5)


@in_virtual_time
async def test_a_loop_that_is_killed_within_a_pass_runs_the_pass_again():
    # given a pass that takes 10 s, and then nothing that would wake the loop
    slow = Slow(10.0, IDLE)
    loop = PassLoop("job ns/a", slow.run, {"job": "a"}, Supervisor(OperatorMetrics()), "jobs")
    await asyncio.sleep(5.0)
    assert slow.begun == 1
    # when its task is killed, then another one runs the pass soon
    assert loop.task is not None
    loop.task.cancel()
    await asyncio.sleep(1.0)
    assert (slow.begun, slow.ended) == (2, 0)
    await asyncio.sleep(10.0)
    assert (slow.begun, slow.ended) == (2, 1)
    await loop.stop()

"""The loop of the workers, in virtual time: when it runs a reconcile, and when it does not."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from tests.unit.virtual_time import in_virtual_time
from understudy_operator.controllers.reconcile_loop import ReconcileLoop, ReconcileResult
from understudy_operator.controllers.supervisor import TaskSupervisor
from understudy_operator.metrics.operator_metrics import OperatorMetrics

FIRST_BACKOFF_S = 0.2
LONGEST_BACKOFF_S = 30.0
LONGEST_PAUSE_S = 0.5
PAUSE_PER_PLANNING_S = 4.0
MIN_PAUSE_S = 1.0

#: Pauses after errors have a random length: these factors are its bounds.
LEAST, MOST = 0.75, 1.25
STEP_S = 0.001
IDLE = ReconcileResult(None)


class Reconciles:
    """Returns these results in turn, the last one repeatedly; records the time of each run."""

    def __init__(self, *ends: ReconcileResult | Exception | None) -> None:
        self.ends, self.at = list(ends), list[float]()
        self.during_first: Callable[[], None] = lambda: None

    async def run(self) -> ReconcileResult | None:
        if not self.at:
            self.during_first()
        self.at.append(asyncio.get_running_loop().time())
        end = self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]
        if isinstance(end, Exception):
            raise end
        return end


@asynccontextmanager
async def going(reconciles: Reconciles) -> AsyncIterator[ReconcileLoop]:
    loop = ReconcileLoop("job ns/a", reconciles.run, {"job": "a"}, TaskSupervisor(OperatorMetrics()), "jobs")
    try:
        yield loop
    finally:
        await loop.stop()


def pauses(at: Iterable[float]) -> list[float]:
    return [later - previous for previous, later in pairwise(at)]


@in_virtual_time
async def test_a_reconcile_runs_at_once_then_after_its_requeue_time_then_once_it_is_enqueued():
    reconciles = Reconciles(ReconcileResult(2.0), ReconcileResult(2.0), IDLE)
    async with going(reconciles) as loop:
        await asyncio.sleep(60)
        assert reconciles.at == [0.0, 2.0, 4.0]
        loop.enqueue()
        await asyncio.sleep(60)
    assert reconciles.at == [0.0, 2.0, 4.0, 60.0]


@in_virtual_time
async def test_a_loop_knows_whether_its_next_reconcile_is_due_soon():
    reconciles = Reconciles(ReconcileResult(40.0), IDLE)
    async with going(reconciles) as loop:
        assert not loop.is_due_within(30.0)  # it runs
        await asyncio.sleep(5)
        assert not loop.is_due_within(34.0)
        assert loop.is_due_within(36.0)
        await asyncio.sleep(60)
        assert not loop.is_due_within(1000.0)  # only if it is enqueued


@in_virtual_time
async def test_the_loop_reports_how_long_the_first_change_has_waited_and_nothing_for_a_requeue_time():
    waited = list[float]()
    slow = Slow(0.5, ReconcileResult(20.0))
    loop = ReconcileLoop(
        "job ns/a",
        slow.run,
        {"job": "a"},
        TaskSupervisor(OperatorMetrics()),
        "jobs",
        lambda s: waited.append(round(s, 3)),
    )
    # when two changes come 0.1 and 0.2 s after the beginning of a reconcile of 0.5 s
    await asyncio.sleep(0.1)
    loop.enqueue()
    await asyncio.sleep(0.1)
    loop.enqueue()
    await asyncio.sleep(60)
    await loop.stop()
    # then the first one has waited 0.4 s, and the reconciles every 20 s are those of no change
    assert waited == [0.0, 0.4]


@in_virtual_time
async def test_an_enqueue_during_a_reconcile_causes_another_one():
    reconciles = Reconciles(IDLE)
    async with going(reconciles) as loop:
        reconciles.during_first = loop.enqueue
        await asyncio.sleep(60)
    assert len(reconciles.at) == 2


@in_virtual_time
async def test_the_loop_ends_when_its_object_is_gone():
    reconciles = Reconciles(IDLE, None)
    async with going(reconciles) as loop:
        await asyncio.sleep(1)
        loop.enqueue()
        await asyncio.sleep(1)
        assert loop.task is None
        loop.enqueue()
        await asyncio.sleep(60)
    assert len(reconciles.at) == 2


@in_virtual_time
async def test_a_loop_that_is_stopped_as_it_is_enqueued_ends():
    reconciles = Reconciles(IDLE)
    async with going(reconciles) as loop:
        await asyncio.sleep(1)
        loop.enqueue()
        await loop.stop()
        assert loop.task is None


@in_virtual_time
async def test_failed_reconciles_are_retried_after_growing_pauses():
    reconciles = Reconciles(OSError("no route"))
    async with going(reconciles):
        await asyncio.sleep(300)
    expected, backoff_s = [], FIRST_BACKOFF_S
    for pause_s in pauses(reconciles.at):
        expected.append(LEAST * backoff_s <= pause_s <= MOST * backoff_s)
        backoff_s = min(2 * backoff_s, LONGEST_BACKOFF_S)
    assert len(expected) > 12
    assert all(expected)


@in_virtual_time
async def test_a_successful_reconcile_resets_the_pause():
    trouble = [OSError("no route")] * 6
    reconciles = Reconciles(*trouble, ReconcileResult(0.0), *trouble)
    async with going(reconciles):
        await asyncio.sleep(60)
    first, *_ = pauses(reconciles.at[7:])
    assert first <= MOST * FIRST_BACKOFF_S


@in_virtual_time
async def test_an_enqueue_after_a_failed_reconcile_retries_soon():
    """However long the error has lasted: it may be over."""
    reconciles = Reconciles(OSError("no route"))
    async with going(reconciles) as loop:
        await asyncio.sleep(300)
        tried, enqueued_at = len(reconciles.at), 300.0
        loop.enqueue()
        await asyncio.sleep(MIN_PAUSE_S + STEP_S)
    assert len(reconciles.at) > tried
    assert reconciles.at[tried] - enqueued_at <= MIN_PAUSE_S + STEP_S


@in_virtual_time
async def test_a_failed_reconcile_is_not_retried_at_each_enqueue():
    reconciles = Reconciles(OSError("no route"))
    async with going(reconciles) as loop:
        for _ in range(6000):
            loop.enqueue()
            await asyncio.sleep(0.01)
    for number, pause_s in enumerate(pauses(reconciles.at)):
        assert pause_s >= min(LEAST * FIRST_BACKOFF_S * 2**number, MIN_PAUSE_S) - STEP_S


@pytest.mark.parametrize("thought_s", [0.001, 0.05, 10.0], ids=["small", "large", "huge"])
@in_virtual_time
async def test_an_object_with_long_reconciles_is_not_reconciled_at_each_of_its_changes(thought_s: float):
    reconciles = Reconciles(ReconcileResult(None, thought_s))
    async with going(reconciles) as loop:
        for _ in range(3000):
            loop.enqueue()
            await asyncio.sleep(STEP_S)
    idle_s = min(PAUSE_PER_PLANNING_S * thought_s, LONGEST_PAUSE_S)
    assert pauses(reconciles.at) == [pytest.approx(idle_s, abs=STEP_S)] * (len(reconciles.at) - 1)


@pytest.mark.parametrize(("trouble", "traceback"), [(ValueError("a fact"), True), (OSError("no route"), False)])
def test_only_an_unexpected_error_is_logged_with_its_traceback(
    trouble: Exception, traceback: bool, caplog: pytest.LogCaptureFixture
):
    @in_virtual_time
    async def fails() -> None:
        async with going(Reconciles(trouble, IDLE)):
            await asyncio.sleep(10)

    fails()
    (record,) = caplog.records
    assert record.getMessage() == f"job ns/a: reconcile failed: {trouble!r}; retrying in {FIRST_BACKOFF_S:.1f} s"
    assert bool(record.exc_info and record.exc_info[0]) is traceback


class Slow:
    """A reconcile that takes this long; counts how many have begun and ended."""

    def __init__(self, takes_s: float, end: ReconcileResult | Exception = IDLE) -> None:
        self.takes_s, self.end, self.begun, self.ended = takes_s, end, 0, 0

    async def run(self) -> ReconcileResult | None:
        self.begun += 1
        await asyncio.sleep(self.takes_s)
        self.ended += 1
        if isinstance(self.end, Exception):
            raise self.end
        return self.end


@pytest.mark.parametrize("end", [IDLE, ReconcileResult(0.0), OSError("reset")])
@in_virtual_time
async def test_a_reconcile_that_runs_may_end_before_the_loop_stops_and_no_other_one_begins(
    end: ReconcileResult | Exception,
):
    slow = Slow(1.0, end)
    loop = ReconcileLoop("job ns/a", slow.run, {"job": "a"}, TaskSupervisor(OperatorMetrics()), "jobs")
    await asyncio.sleep(0.5)
    loop.enqueue()
    await loop.stop(finish_s=2.5)
    assert (slow.begun, slow.ended) == (1, 1)
    assert asyncio.get_running_loop().time() < 1.1


@in_virtual_time
async def test_a_longer_reconcile_is_cancelled_and_a_waiting_one_costs_no_time():
    slow = Slow(10.0)
    loop = ReconcileLoop("job ns/a", slow.run, {"job": "a"}, TaskSupervisor(OperatorMetrics()), "jobs")
    await asyncio.sleep(0.5)
    await loop.stop(finish_s=2.5)
    assert (slow.begun, slow.ended) == (1, 0)
    assert asyncio.get_running_loop().time() == pytest.approx(3.0)

    idle = ReconcileLoop("job ns/a", Slow(0.0).run, {"job": "a"}, TaskSupervisor(OperatorMetrics()), "jobs")
    await asyncio.sleep(0.5)
    await idle.stop(finish_s=2.5)
    assert asyncio.get_running_loop().time() == pytest.approx(3.5)


@in_virtual_time
async def test_a_loop_that_is_killed_within_a_reconcile_runs_it_again():
    # given a reconcile that takes 10 s, after which nothing would enqueue the object
    slow = Slow(10.0, IDLE)
    loop = ReconcileLoop("job ns/a", slow.run, {"job": "a"}, TaskSupervisor(OperatorMetrics()), "jobs")
    await asyncio.sleep(5.0)
    assert slow.begun == 1
    # when its task is killed, then another task soon runs the reconcile
    assert loop.task is not None
    loop.task.cancel()
    await asyncio.sleep(1.0)
    assert (slow.begun, slow.ended) == (2, 0)
    await asyncio.sleep(10.0)
    assert (slow.begun, slow.ended) == (2, 1)
    await loop.stop()

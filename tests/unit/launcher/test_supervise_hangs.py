"""When the launcher considers its workers hung, and its reaction."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.unit.launcher.driven import Driven, ended, kills, running, start, steps, token
from understudy_launcher import events as e
from understudy_protocol import launcher as m

AGAIN_S = 10.0
DUMP_S = 1.0
SLOT_S = 0.2
LATE_S = 3.0
LOOK_EVERY_S = 0.25

TIMEOUT_S = 60.0
#: A read follows up to LOOK_EVERY_S after a step is due, and its result counts at the next read.
FOUND_S = TIMEOUT_S + 2 * LOOK_EVERY_S
REPORTED_S = FOUND_S + DUMP_S


def stepped(step_timeout_s: float = TIMEOUT_S) -> Driven:
    """Both workers have made step 7, local rank 1 a moment before the other."""
    driven = running(step_timeout_s=step_timeout_s)
    driven.do(steps(7, rank=1, at=driven.now - 0.01), steps(7, rank=0, at=driven.now))
    return driven


def hung(effects: list[e.Effect]) -> list[m.Hung]:
    messages = [effect.message for effect in effects if isinstance(effect, e.Report)]
    return [message for message in messages if isinstance(message, m.Hung)]


def dumps(effects: list[e.Effect]) -> list[int]:
    return [effect.local_rank for effect in effects if isinstance(effect, e.DumpStacks)]


def collectives_of(effects: list[e.Effect]) -> list[int]:
    return [effect.local_rank for effect in effects if isinstance(effect, e.WriteCollectives)]


def test_every_worker_dumps_its_stacks_before_the_slowest_is_reported() -> None:
    driven = stepped()
    assert dumps(driven.later(TIMEOUT_S - LOOK_EVERY_S)) == []
    found = driven.later(3 * LOOK_EVERY_S)
    assert (dumps(found), hung(found)) == ([1, 0], [])
    (report,) = hung(driven.later(DUMP_S))
    assert (report.token, report.local_rank, report.step, report.at) == (token(0), 1, 7, 1007.0)
    assert TIMEOUT_S <= report.silent_s <= REPORTED_S


def test_a_header_in_the_log_names_the_worker_whose_stacks_follow() -> None:
    driven = stepped()
    driven.later(REPORTED_S)
    assert driven.log[-2:] == [
        f"round={token(0)} worker local_rank=1 rank=3 made no step for 60 s since step 7: its stacks follow",
        f"round={token(0)} worker local_rank=0 rank=2 made no step for 60 s since step 7: its stacks follow",
    ]


def test_the_slowest_has_the_lowest_step() -> None:
    driven = running(step_timeout_s=TIMEOUT_S)
    driven.do(steps(9, rank=0, at=driven.now - 1), steps(8, rank=1, at=driven.now))
    assert [report.local_rank for report in hung(driven.later(REPORTED_S))] == [1]


def test_one_worker_that_hangs_is_enough() -> None:
    driven = stepped()
    found: list[e.Effect] = []
    for second in range(1, 70):
        driven.pages = [steps(7 + second, rank=0, at=driven.now)]
        found += driven.later(1.0)
    (report,) = hung(found)
    assert (report.local_rank, report.step) == (1, 7)
    assert dumps(found) == [1, 0], "the other workers' stacks are needed too"


def test_the_hang_is_reported_again_without_the_stacks() -> None:
    driven = stepped()
    driven.later(REPORTED_S)
    effects = driven.later(2.5 * AGAIN_S)
    assert (len(hung(effects)), dumps(effects)) == (2, [])


def test_the_stacks_of_many_workers_come_one_after_the_other() -> None:
    driven = running(nproc=10, step_timeout_s=TIMEOUT_S)
    driven.do(*[steps(7, rank=rank, at=driven.now) for rank in range(10)])
    driven.later(TIMEOUT_S)
    times: list[float] = []
    while len(times) < 10:
        driven.now += 0.05
        times += [driven.now] * len(dumps(driven.do(e.Tick())))
    assert all(later - sooner >= SLOT_S - 0.001 for sooner, later in pairwise(times))


@pytest.mark.parametrize("workers", [2, 10])
def test_the_workers_write_their_collectives_when_their_stacks_are_complete_and_before_the_report(workers: int) -> None:
    driven = running(nproc=workers, step_timeout_s=TIMEOUT_S)
    driven.do(*[steps(7, rank=rank, at=driven.now) for rank in range(workers)])
    last, written, reported = 0.0, dict[int, float](), 0.0
    while not reported:
        driven.now += 0.05
        effects = driven.do(e.Tick())
        last = driven.now if dumps(effects) else last
        written |= dict.fromkeys(collectives_of(effects), driven.now)
        reported = driven.now if hung(effects) else 0.0
    # faulthandler ignores a signal while it writes stacks: 0.3 s for those of the last one
    (at,) = set(written.values())
    assert sorted(written) == list(range(workers))
    assert at - last >= 0.299
    # then 0.2 s for the lines
    assert 0.199 <= reported - at <= 0.26
    # and once
    assert collectives_of(driven.later(3 * AGAIN_S)) == []


def test_workers_that_step_again_write_no_collectives() -> None:
    driven = stepped()
    while len(dumps(driven.later(0.1))) == 0:
        pass
    driven.pages = [steps(8, rank=rank, at=driven.now) for rank in (0, 1)]
    assert collectives_of(driven.later(10.0)) == []
    # and when they hang again, then each writes them once
    assert collectives_of(driven.later(TIMEOUT_S)) == [0, 1]


def test_a_step_in_the_meantime_cancels_the_report() -> None:
    driven = stepped()
    while not dumps(driven.later(0.1)):
        pass
    driven.pages = [steps(8, rank=rank, at=driven.now) for rank in (0, 1)]
    assert hung(driven.later(10.0)) == []
    assert driven.log[-1].endswith("its workers step again")
    assert len(hung(driven.later(TIMEOUT_S))) == 1, "the worker is still watched"


def test_a_worker_is_watched_from_its_first_step_on() -> None:
    driven = running(step_timeout_s=TIMEOUT_S)
    assert hung(driven.later(10 * TIMEOUT_S)) == []
    driven.do(steps(1, rank=0, at=driven.now))
    for _ in range(100):
        driven.pages = [steps(2, rank=0, at=driven.now)]
        assert hung(driven.later(1.0)) == []


def test_without_a_timeout_no_worker_hangs() -> None:
    driven = stepped(step_timeout_s=0.0)
    effects = driven.later(100 * TIMEOUT_S)
    assert (dumps(effects), hung(effects)) == ([], [])


def test_a_worker_that_has_ended_is_no_longer_watched() -> None:
    driven = stepped()
    driven.do(ended(1), e.GroupEmptied(1))
    assert [report.local_rank for report in hung(driven.later(REPORTED_S))] == [0]
    driven.do(ended(0), e.GroupEmptied(0))
    assert hung(driven.later(10 * AGAIN_S)) == []


def test_once_a_worker_has_failed_its_neighbors_do_not_hang() -> None:
    driven = stepped()
    driven.do(ended(1, 3), e.GroupEmptied(1))
    assert hung(driven.later(10 * TIMEOUT_S)) == []


@pytest.mark.parametrize("order", [start(1), m.StopWorkers("replaced"), m.DrainWorkers(token(0), 600.0)])
def test_workers_that_have_to_end_do_not_hang(order: e.Event) -> None:
    driven = stepped()
    driven.do(order)
    assert hung(driven.later(5 * TIMEOUT_S)) == []


def test_a_new_round_starts_without_a_hang() -> None:
    driven = stepped()
    driven.later(TIMEOUT_S - 1)
    assert kills(0, 1) == [x for x in driven.do(start(1)) if isinstance(x, e.Signal)]
    driven.do(*[ended(rank, 137, "SIGKILL") for rank in (0, 1)], e.GroupEmptied(0), e.GroupEmptied(1))
    assert hung(driven.later(10.0)) == []
    driven.do(steps(7, at=driven.now))
    assert hung(driven.later(TIMEOUT_S - 1)) == []


def test_a_launcher_that_was_stopped_reports_no_hang() -> None:
    """Its pod was frozen, including its workers."""
    driven = stepped()
    driven.later(10.0)
    driven.now += TIMEOUT_S
    assert dumps(driven.do(e.Tick()) + driven.later(TIMEOUT_S - 1)) == []
    assert len(hung(driven.later(REPORTED_S - TIMEOUT_S + 1))) == 1


def test_a_launcher_that_is_a_little_late_was_not_stopped() -> None:
    driven = stepped()
    for _ in range(30):
        driven.now += LOOK_EVERY_S + LATE_S - 0.1
        driven.do(e.Tick())
    assert driven.log[-1].endswith("its stacks follow")


# Before the first step: on the coordinator's order


def test_the_stacks_of_workers_that_have_made_no_step_are_written_when_the_coordinator_asks() -> None:
    # given workers that have run for ten minutes, and have made no step
    driven = running()
    driven.now += 600.0
    # when the coordinator orders their stacks
    first = driven.do(m.WriteStacks(token(0)))
    # then each writes its stacks, and the answer follows
    assert (dumps(first), hung(first)) == ([0], [])
    assert dumps(driven.later(SLOT_S)) == [1]
    (answer,) = hung(driven.later(DUMP_S))
    assert (answer.token, answer.local_rank, answer.step, answer.at) == (token(0), 0, -1, 0.0)
    assert 600.0 <= answer.silent_s <= 602.0
    assert driven.log[-2:] == [
        f"round={token(0)} worker local_rank=0 rank=2 made no step for 600 s since its start: its stacks follow",
        f"round={token(0)} worker local_rank=1 rank=3 made no step for 600 s since its start: its stacks follow",
    ]
    assert hung(driven.later(10 * AGAIN_S)) == [], "once"


def test_each_order_to_write_stacks_has_an_answer() -> None:
    """A new coordinator sends the order again."""
    driven = running()
    assert len(hung(driven.do(m.WriteStacks(token(0))) + driven.later(5.0))) == 1
    assert len(hung(driven.do(m.WriteStacks(token(0))) + driven.later(5.0))) == 1


def test_a_step_in_the_meantime_is_the_answer() -> None:
    driven = running(step_timeout_s=TIMEOUT_S)
    driven.do(m.WriteStacks(token(0)))
    driven.do(steps(1, rank=1, at=driven.now))
    assert hung(driven.later(10.0)) == []
    assert len(hung(driven.later(TIMEOUT_S))) == 1, "the worker is still watched"


def test_workers_that_have_stepped_write_nothing() -> None:
    driven = stepped()
    assert dumps(driven.do(m.WriteStacks(token(0))) + driven.later(5.0)) == []


def test_workers_of_another_round_write_nothing() -> None:
    driven = running(1)
    assert dumps(driven.do(m.WriteStacks(token(0))) + driven.later(5.0)) == []


def test_a_worker_that_ends_meanwhile_is_not_in_the_answer() -> None:
    driven = running()
    driven.do(m.WriteStacks(token(0)), ended(0), e.GroupEmptied(0))
    assert [answer.local_rank for answer in hung(driven.later(5.0))] == [1]


def test_an_order_before_the_start_of_the_workers_has_no_answer() -> None:
    driven = running()
    driven.do(start(1), m.WriteStacks(token(1)))
    assert hung(driven.later(0.5)) == []

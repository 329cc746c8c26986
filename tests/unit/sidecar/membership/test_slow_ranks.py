"""Which rank the others wait for, from the times at which the ranks enter their collectives."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.unit.sidecar.membership.driven import DrivenCoordinator
from tests.unit.sidecar.membership.trainings import MS, SECOND, Training, ordinary, slow
from understudy_protocol import membership as m
from understudy_protocol.enums import RoundToken
from understudy_protocol.observer import SlowRank
from understudy_sidecar.membership.slow_ranks import (
    Lateness,
    Report,
    SlowRankWatch,
    find_slow_ranks,
    make_report,
)

TOKEN = RoundToken(1, 1, 0)


def find_slow_rank(reports: dict[int, Report], percent: int, known: int | None = None) -> Lateness | None:
    """The slowest one."""
    slow_ranks = find_slow_ranks(reports, percent, known)
    return slow_ranks[0] if slow_ranks else None


def found(training: Training, percent: int = 150) -> Lateness | None:
    return find_slow_rank(training.window(), percent)


@pytest.mark.parametrize("ranks", [2, 3, 8, 1000])
def test_a_rank_that_works_longer_in_each_step_is_slow(ranks: int) -> None:
    # given a training with a step of 104 ms, and a rank that takes 100 ms more
    training = Training(ranks, before=slow(1))
    # then a step takes 204 ms, 1.96 times as long, and this rank is 100 ms late
    assert found(training) == Lateness(1, 196, 100 * MS)


@pytest.mark.parametrize("ranks", [2, 3, 8, 1000])
def test_ranks_that_differ_by_less_than_the_factor_are_not_slow(ranks: int) -> None:
    # 50 ms of 154 ms are a factor of 1.48; 54 ms of 158 ms one of 1.52
    assert found(Training(ranks, before=slow(1, ms=50))) is None
    assert found(Training(ranks, before=slow(1, ms=54))) == Lateness(1, 152, 54 * MS)


def test_a_rank_that_works_longer_before_the_last_collective_is_slow() -> None:
    assert found(Training(4, between=slow(2))) == Lateness(2, 196, 100 * MS)


def test_clocks_that_differ_by_minutes_change_nothing() -> None:
    # given pods whose clocks are up to five minutes apart, each in another direction
    clocks = {0: 300 * SECOND, 1: -300 * SECOND, 2: 7, 3: 61 * SECOND}
    # then only a rank that is slow is found
    assert found(Training(4, clocks=clocks)) is None
    assert found(Training(4, before=slow(3), clocks=clocks)) == Lateness(3, 196, 100 * MS)


def test_a_clock_that_is_set_during_a_window_names_no_rank() -> None:
    # given a rank whose clock is set forward by a minute in its fifth step
    reports = Training(4).window()
    delays = list(reports[2].delays_ns)
    delays[8] += 60 * SECOND
    delays[9] += 60 * SECOND
    assert find_slow_rank({**reports, 2: replace(reports[2], delays_ns=delays)}, 150) is None


def test_one_step_that_is_not_late_acquits_a_rank() -> None:
    training = Training(4, before=lambda rank, step: 100.0 if rank == 1 and step != 7 else 0.0)
    assert found(training) is None


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("late_steps", [range(5, 6), range(3, 7), range(1, 10)])
def test_a_single_late_step_or_some_name_no_rank(ranks: int, late_steps: range) -> None:
    """A save by rank 0, an evaluation, a garbage collection."""
    training = Training(ranks, before=lambda rank, step: 5000.0 if rank == 0 and step in late_steps else 0.0)
    assert found(training) is None


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_work_between_the_last_collective_and_step_names_no_other_rank(ranks: int) -> None:
    """Rank 0 writes a log in each step before it calls step(): then its reference is later."""
    assert found(Training(ranks, after=slow(0))) is None


def test_of_two_ranks_only_the_first_collective_is_compared() -> None:
    """In the last one, a slow rank looks as a rank that waits for another one after its step()."""
    assert found(Training(2, between=slow(1))) is None
    assert found(Training(3, between=slow(1))) == Lateness(1, 196, 100 * MS)


def test_saves_by_rank_0_hide_no_slow_rank() -> None:
    # given a save of 2 s by rank 0 in each window, before or after step()
    def save(rank: int, step: int) -> float:
        return 2000.0 if rank == 0 and step % 10 == 0 else 0.0

    before = Training(4, before=lambda rank, step: save(rank, step) + slow(2)(rank, step))
    after = Training(4, before=slow(2), after=save)
    # then the slow rank is found
    assert [found(training) for training in (before, after) for _ in range(3)] == [Lateness(2, 196, 100 * MS)] * 6


def test_if_all_ranks_are_slow_none_is() -> None:
    assert found(Training(4, before=slow(0, 1, 2, 3))) is None
    assert found(Training(4, before=slow(0, 1, 2))) is None, "most of them"


def test_of_several_slow_ranks_the_slowest_is_the_first() -> None:
    training = Training(8, before=lambda rank, step: {2: 160.0, 5: 200.0}.get(rank, 0.0))
    assert find_slow_ranks(training.window(), 150) == [Lateness(5, 292, 200 * MS), Lateness(2, 211, 160 * MS)]


def test_the_slow_ranks_of_a_whole_node_are_found_one_by_one() -> None:
    assert found(Training(16, before=slow(*range(8, 15)))) is not None


def test_differences_below_ten_milliseconds_are_noise() -> None:
    def report(delay_ns: int) -> Report:
        return Report(12 * MS, list(range(20)), [delay_ns] * 20)

    assert find_slow_rank({0: report(MS), 1: report(11 * MS), 2: report(MS)}, 150) is not None
    assert find_slow_rank({0: report(MS), 1: report(11 * MS - 1), 2: report(MS)}, 150) is None


def test_ranks_without_a_common_collective_are_not_compared() -> None:
    # given two pipeline stages of two ranks each, the second of which enters its own collectives later
    reports = Training(4, before=slow(2, 3)).window()
    second = {rank: replace(reports[rank], collectives=range(500, 520)) for rank in (2, 3)}
    assert find_slow_rank({**reports, **second}, 150) is None
    # then a rank is late only among those of its stage
    reports = Training(4, before=lambda rank, step: {2: 100.0, 3: 200.0}.get(rank, 0.0)).window()
    second = {rank: replace(reports[rank], collectives=range(500, 520)) for rank in (2, 3)}
    assert find_slow_rank({**reports, **second}, 130) == Lateness(3, 149, 100 * MS)


def test_a_rank_that_is_late_by_a_whole_step_has_the_largest_percentage() -> None:
    reports = {rank: Report(100 * MS, list(range(20)), [delay] * 20) for rank, delay in enumerate([0, 0, SECOND])}
    assert find_slow_rank(reports, 150) == Lateness(2, 10_000, SECOND)


def test_no_reports_name_no_rank() -> None:
    assert find_slow_rank({}, 150) is None
    assert find_slow_rank({0: Training(1).window()[0]}, 150) is None


@pytest.mark.parametrize(
    ("step_ns", "collectives", "delays"),
    [
        (0, range(20), [1] * 20),
        (-5, range(20), [1] * 20),
        (1 << 62, range(20), [1] * 20),
        (1, range(19), [1] * 20),
        (1, range(21), [1] * 21),
        (1, [], []),
        (1, range(-1, 19), [1] * 20),
        (1, [1 << 62] * 20, [1] * 20),
        (1, range(20), [-1] * 20),
        (1, range(20), [1 << 62] * 20),
    ],
)
def test_a_report_that_no_worker_of_ours_sends_is_ignored(
    step_ns: int, collectives: list[int], delays: list[int]
) -> None:
    assert make_report(step_ns, collectives, delays) is None


def test_a_false_report_names_no_honest_rank() -> None:
    # given three honest ranks, and one that reports extreme numbers
    honest = Training(4).window()
    for step_ns, collective, delay in [(1, 0, 0), (10**15 - 1, 5, 10**15 - 1), (1, 3, 10**15 - 1)]:
        false = make_report(step_ns, [collective] * 20, [delay] * 20)
        assert false is not None
        result = find_slow_rank({**honest, 3: false}, 150)
        assert result is None or result.rank == 3


def test_ordinary_trainings_name_no_rank() -> None:
    # given 200 trainings of 500 steps: 10,000 windows, with saves, evaluations, garbage collections and other clocks
    for seed in range(200):
        training, known = ordinary(seed), None
        for _ in range(50):
            result = find_slow_rank(training.window(), 150, known)
            # then no window names a rank
            assert result is None, f"seed {seed}, step {training.steps}: {result}"


def test_a_decision_about_a_thousand_ranks_takes_little_time() -> None:
    reports = Training(1000).window()
    begun = time.process_time()
    find_slow_rank(reports, 150)
    assert time.process_time() - begun < 0.1


# The windows of a round ----------------------------------------------------------------------------------------------


class Watched:
    """A watch of a training with four ranks."""

    def __init__(self) -> None:
        self.watch, self.window, self.now = SlowRankWatch(), 0, 100.0

    def report(self, training: Training, *ranks: int, token: RoundToken = TOKEN) -> bool:
        """The next window, of these ranks; of all if none are given."""
        self.window, self.now = self.window + 160, self.now + 10
        reports, changed = training.window(), False
        for rank in ranks or range(4):
            changed |= self.add(self.window, rank, reports[rank], token)
        return changed

    def report_thrice(self, training: Training, *ranks: int) -> bool:
        """Whether the third window changed the finding."""
        return [self.report(training, *ranks) for _ in range(3)][-1]

    def add(self, window: int, rank: int, report: Report, token: RoundToken = TOKEN) -> bool:
        return self.watch.add(token, window, rank, report, 4, 150, self.now)

    @property
    def rank(self) -> int | None:
        return None if self.watch.found is None else self.watch.found.rank


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_a_finding_begins_and_ends_with_a_window(watched: Watched) -> None:
    assert not watched.report(Training(4))
    assert watched.report_thrice(Training(4, before=slow(1)))
    assert (watched.rank, watched.watch.since) == (1, 140.0)
    # a window in which it is late again does not change the time
    watched.report(Training(4, before=slow(1)))
    assert (watched.rank, watched.watch.since) == (1, 140.0)
    assert watched.report(Training(4))
    assert watched.rank is None


def test_a_rank_is_named_in_the_third_window_in_a_row_in_which_it_is_slow(watched: Watched) -> None:
    """Ten steps may take only a second, in which a busy machine gives a rank no CPU."""
    for _ in range(5):
        assert not watched.report(Training(4, before=slow(1)))
        assert not watched.report(Training(4, before=slow(1)))
        assert not watched.report(Training(4))
    assert not watched.report(Training(4, before=slow(1)))
    assert not watched.report(Training(4, before=slow(2)))
    assert not watched.report(Training(4, before=slow(1)))
    assert not watched.report(Training(4, before=slow(1)))
    assert watched.report(Training(4, before=slow(1)))
    assert watched.rank == 1


def test_two_ranks_of_which_sometimes_one_and_sometimes_the_other_is_slower_are_named(watched: Watched) -> None:
    def slower(rank: int) -> Training:
        return Training(4, before=lambda one, step: {1: 100.0, 2: 100.0}.get(one, 0.0) + 50.0 * (one == rank))

    for rank in (1, 2, 1):
        watched.report(slower(rank))
    assert watched.rank == 1


def test_a_rank_that_is_late_in_most_steps_remains_slow(watched: Watched) -> None:
    def late_in(steps: int) -> Training:
        return Training(4, before=lambda rank, step: 100.0 if rank == 1 and step <= steps else 0.0)

    for _ in range(3):
        watched.report(late_in(9))
    assert watched.rank is None
    for _ in range(3):
        watched.report(late_in(10))
    watched.report(late_in(6))
    assert watched.rank == 1
    watched.report(late_in(5))
    assert watched.rank is None


def test_the_named_rank_changes_only_if_another_one_is_clearly_slower(watched: Watched) -> None:
    def slower(ms: float) -> Training:
        return Training(4, before=lambda rank, step: {1: 100.0, 2: ms}.get(rank, 0.0))

    watched.report_thrice(slower(99))
    assert watched.rank == 1
    watched.report(slower(109))
    assert watched.rank == 1
    watched.report_thrice(slower(120))
    assert watched.rank == 2


def test_another_round_begins_without_a_finding(watched: Watched) -> None:
    watched.report_thrice(Training(4, before=slow(1)))
    assert watched.rank == 1
    watched.window = 0
    watched.report(Training(4, before=slow(1)), token=RoundToken(1, 1, 1))
    assert watched.rank is None


def test_a_window_with_missing_reports_is_decided_by_most_ranks_after_three_others_have_begun(
    watched: Watched,
) -> None:
    # given two windows in which rank 1 is slow, and then a rank whose reports are missing
    watched.report(Training(4, before=slow(1)))
    watched.report(Training(4, before=slow(1)))
    watched.report_thrice(Training(4, before=slow(1)), 0, 1, 2)
    assert watched.rank is None
    # when a fourth window begins, then the first is decided
    watched.report(Training(4), 0)
    assert watched.rank == 1
    # and reports of it that follow change nothing
    assert not watched.add(480, 3, Training(4).window()[3])


def test_a_window_that_is_older_than_the_decided_one_is_ignored(watched: Watched) -> None:
    watched.report(Training(4, before=slow(1)))
    watched.report(Training(4, before=slow(1)))
    for rank, one in Training(4, before=slow(1)).window().items():
        assert not watched.add(240, rank, one)
    assert watched.rank is None


def test_half_of_the_ranks_decide_nothing(watched: Watched) -> None:
    for _ in range(10):
        watched.report(Training(4, before=slow(1)), 0, 1)
    assert watched.rank is None


def test_a_window_without_a_report_of_the_slow_rank_does_not_end_the_finding(watched: Watched) -> None:
    watched.report_thrice(Training(4, before=slow(1)))
    for _ in range(5):
        watched.report(Training(4), 0, 2, 3)
    assert watched.rank == 1


def test_windows_that_never_complete_do_not_accumulate(watched: Watched) -> None:
    report = Training(4).window()[0]
    for window in range(1, 100_000):
        watched.add(window, 0, report)
    assert len(watched.watch._windows) <= 3


# The coordinator -----------------------------------------------------------------------------------------------------


def running(percent: int = 150) -> DrivenCoordinator:
    """Two pods of two workers each, in a round."""
    driven = DrivenCoordinator(2, nproc=2, slow_rank_percent=percent)
    driven.join("active-0")
    driven.join("active-1")
    driven.report_started("active-0", "active-1")
    return driven


def report_thrice(driven: DrivenCoordinator, training: Training) -> None:
    for window in (20, 40, 60):
        report(driven, training, window)


def report(driven: DrivenCoordinator, training: Training, window: int = 20, token: RoundToken | None = None) -> None:
    for rank, one in training.window().items():
        times = (one.step_ns, tuple(one.collectives), tuple(one.delays_ns))
        token_ = driven.coordinator.token if token is None else token
        driven.receive(f"active-{rank // 2}", m.CollectiveTimes(token_, rank % 2, window, *times))


def test_the_coordinator_reports_the_slow_rank_and_restarts_nothing() -> None:
    # given a round
    driven = running()
    sent = {name: len(messages) for name, messages in driven.sent.items()}
    # when one of its ranks is slow
    report_thrice(driven, Training(4, before=slow(3)))
    # then observers get its name
    assert driven.coordinator.snapshot().slow_rank == SlowRank(3, "active-1", "node-of-active-1", 196, 0.1, driven.now)
    # and the members get no message
    assert {name: len(messages) for name, messages in driven.sent.items()} == sent
    assert driven.coordinator.snapshot().recoveries == ()


def test_observers_get_news_when_a_finding_begins_and_ends() -> None:
    driven = running()
    versions = [driven.coordinator.state.version]
    for window, training in enumerate([Training(4), *[Training(4, before=slow(3))] * 3, Training(4)], 1):
        report(driven, training, 20 * window)
        versions.append(driven.coordinator.state.version)
    assert [after - before for before, after in pairwise(versions)] == [0, 0, 0, 1, 1]


def test_the_next_round_has_no_finding() -> None:
    driven = running()
    report_thrice(driven, Training(4, before=slow(3)))
    assert driven.coordinator.snapshot().slow_rank is not None
    driven.fail_worker("active-0")
    assert driven.coordinator.snapshot().slow_rank is None


@pytest.mark.parametrize("percent", [0, 100, -5])
def test_a_job_that_wants_no_findings_gets_none(percent: int) -> None:
    driven = running(percent)
    report_thrice(driven, Training(4, before=slow(3)))
    assert driven.coordinator.snapshot().slow_rank is None


def test_reports_of_another_round_or_of_workers_that_do_not_exist_are_ignored() -> None:
    driven = running()
    report(driven, Training(4, before=slow(3)), token=RoundToken(1, 1, 7))
    one = Training(4).window()[0]
    times = (one.step_ns, tuple(one.collectives), tuple(one.delays_ns))
    for local_rank in (-1, 2, 1 << 62):
        driven.receive("active-0", m.CollectiveTimes(driven.coordinator.token, local_rank, 20, *times))
    driven.receive("active-0", m.CollectiveTimes(driven.coordinator.token, 0, 20, 1, (1,) * 10_000, (1,) * 10_000))
    assert driven.coordinator.state.slow_ranks == SlowRankWatch()

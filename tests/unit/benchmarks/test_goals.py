"""When a goal is met: a bound on our median, and on its ratio to a peer's of the same run."""

from __future__ import annotations

import pytest

from benchmarks.goals import Checked, Goal, Verdict, check
from benchmarks.records import Record


def record(system: str, median: float | None, size: int = 64) -> Record:
    return Record(system, "next-round", size, "seconds", "s", median, median or 220.0, median, 5)


def checked(goal: Goal, *records: Record) -> Checked:
    (only,) = check([goal], records)
    return only


@pytest.mark.parametrize(("own", "verdict"), [(0.2, Verdict.MET), (0.21, Verdict.MISSED), (None, Verdict.MISSED)])
def test_a_bound(own: float | None, verdict: Verdict) -> None:
    assert checked(Goal("next-round", 64, "seconds", at_most=0.2), record("understudy", own)).verdict is verdict


@pytest.mark.parametrize(("largest", "verdict"), [(0.2, Verdict.MET), (0.21, Verdict.MISSED), (None, Verdict.MISSED)])
def test_a_bound_on_the_largest_value(largest: float | None, verdict: Verdict) -> None:
    measured = Record("understudy", "next-round", 64, "seconds", "s", 0.1, 0.1, largest, 5)
    assert checked(Goal("next-round", 64, "seconds", at_most=0.2, of_largest=True), measured).verdict is verdict


@pytest.mark.parametrize(("own", "verdict"), [(0.5, Verdict.MET), (0.51, Verdict.MISSED)])
def test_a_ratio_to_a_peer(own: float, verdict: Verdict) -> None:
    goal = Goal("next-round", 64, "seconds", peer="nvrx", at_most_ratio=0.5)
    seen = checked(goal, record("understudy", own), record("nvrx", 1.0))

    assert seen.verdict is verdict
    assert seen.ratio == own


@pytest.mark.parametrize(
    ("own", "peer", "verdict"), [(0.1, -0.2, Verdict.MISSED), (0.1, 0.0, Verdict.MISSED), (-0.2, 0.0, Verdict.MET)]
)
def test_a_difference_of_a_peer_may_be_0_or_less(own: float, peer: float, verdict: Verdict) -> None:
    goal = Goal("next-round", 64, "seconds", peer="nvrx", at_most_ratio=1.5)
    seen = checked(goal, record("understudy", own), record("nvrx", peer))

    assert seen.verdict is verdict
    assert seen.ratio is None


def test_both_bounds_count() -> None:
    goal = Goal("next-round", 64, "seconds", at_most=0.2, peer="nvrx", at_most_ratio=0.5)

    assert checked(goal, record("understudy", 0.3), record("nvrx", 1.0)).verdict is Verdict.MISSED
    assert checked(goal, record("understudy", 0.1), record("nvrx", 0.1)).verdict is Verdict.MISSED
    assert checked(goal, record("understudy", 0.1), record("nvrx", 1.0)).verdict is Verdict.MET


def test_a_peer_that_did_not_finish_was_slower() -> None:
    goal = Goal("next-round", 64, "seconds", peer="nvrx", at_most_ratio=0.5)

    assert checked(goal, record("understudy", 5.0), record("nvrx", None)).verdict is Verdict.MET


def test_a_goal_is_open_until_both_were_measured_at_its_size() -> None:
    goal = Goal("next-round", 64, "seconds", peer="nvrx", at_most_ratio=0.5)

    assert checked(goal, record("nvrx", 1.0)).verdict is Verdict.OPEN
    assert checked(goal, record("understudy", 1.0)).verdict is Verdict.OPEN
    assert checked(goal, record("understudy", 1.0, 65), record("nvrx", 1.0, 65)).verdict is Verdict.OPEN

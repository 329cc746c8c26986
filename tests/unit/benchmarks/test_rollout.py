"""make bench-rollout, with a few replicas."""

from __future__ import annotations

from benchmarks.goals import Verdict, check
from benchmarks.records import sum_up
from benchmarks.rollout.__main__ import CASES, measure
from benchmarks.rollout.goals import GOALS


def test_every_case_gives_the_numbers_of_its_goals() -> None:
    records = sum_up(x for case in CASES for x in measure(case, replicas=3, rate=50, runs=[4], seconds=0.2))
    measured = {(x.case, x.metric) for x in records}
    assert {(goal.case, goal.metric) for goal in GOALS} <= measured
    for x in records:
        assert x.runs == 1
        assert x.min == x.median == x.max, x
    # each of an update's seven calls takes 50 ms in the engine, and the one that is slow in a restore one second
    seconds = {(x.case, x.system): x.min or 0.0 for x in records if x.metric == "seconds"}
    assert 0.35 < seconds["update-overhead", "bare-calls"] < 10
    assert 0.35 < seconds["update-overhead", "understudy"] < 10
    assert 1.0 < seconds["restore", "understudy"] < 10
    # and measurements of another size prove nothing about a goal
    assert {x.verdict for x in check(GOALS, records)} == {Verdict.OPEN}
    assert {goal.size for goal in GOALS} == {64, 500}

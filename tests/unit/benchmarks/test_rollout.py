"""make bench-rollout, with a handful of replicas."""

from __future__ import annotations

from benchmarks.goals import Verdict, check
from benchmarks.records import sum_up
from benchmarks.rollout.__main__ import CASES, measure
from benchmarks.rollout.goals import GOALS, RATE, REPLICAS


def test_every_case_gives_the_numbers_of_its_goals() -> None:
    records = sum_up(x for case in CASES for x in measure(case, replicas=3, rate=50, runs=[4], seconds=0.2))
    measured = {(x.case, x.metric) for x in records}
    assert {(goal.case, goal.metric) for goal in GOALS} <= measured
    assert all(x.runs == 1 and x.min == x.median == x.max for x in records)
    (update,) = [x for x in records if (x.system, x.case, x.metric) == ("understudy", "update-overhead", "seconds")]
    assert 0.35 < update.min < 10.0  # seven calls of 50 ms each
    # and what is measured at another size says nothing about a goal
    assert {x.verdict for x in check(GOALS, records)} == {Verdict.OPEN}
    assert {goal.size for goal in GOALS} == {REPLICAS, RATE}

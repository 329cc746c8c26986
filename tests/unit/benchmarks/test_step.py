"""make bench-step, with a few calls."""

from __future__ import annotations

from benchmarks.records import sum_up
from benchmarks.step import GOALS, measure


def test_every_run_of_each_goal_is_a_sample() -> None:
    for goal in GOALS:
        (record,) = sum_up(measure(goal.case, runs=3, calls=100))
        assert (record.case, record.metric, record.unit, record.runs) == (goal.case, "call_us", "µs", 3)
        assert record.min > 0

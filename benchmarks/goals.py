"""The goals that a benchmark declares, and whether its records meet them.

A goal is met, missed, or open (nothing was measured for it). It is an upper bound on a median, or on the largest value
of all runs: in the metric's unit, as a ratio to the same value of a peer in the same run, or both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from benchmarks.records import Record

UNDERSTUDY = "understudy"


class Verdict(Enum):
    MET = "met"
    MISSED = "MISSED"
    OPEN = "not measured"


@dataclass(frozen=True)
class Goal:
    case: str
    size: int
    metric: str
    at_most: float | None = None  # in the metric's unit
    peer: str = ""
    at_most_ratio: float | None = None  # ours / the peer's
    of_largest: bool = False  # a bound on the largest value, instead of the median

    def value(self, record: Record) -> float | None:
        """The value that counts. None: a run did not finish."""
        return record.max if self.of_largest else record.median


@dataclass(frozen=True)
class Checked:
    goal: Goal
    verdict: Verdict
    measured: Record | None
    ratio: float | None  # to the peer; None without a peer, if a run did not finish, or if the peer's is not above 0


def check(goals: Sequence[Goal], records: Iterable[Record]) -> list[Checked]:
    found = {(x.system, x.case, x.size, x.metric): x for x in records}
    return [
        _check(
            goal,
            found.get((UNDERSTUDY, goal.case, goal.size, goal.metric)),
            found.get((goal.peer, goal.case, goal.size, goal.metric)),
        )
        for goal in goals
    ]


def _check(goal: Goal, measured: Record | None, peer: Record | None) -> Checked:
    if measured is None or (goal.at_most_ratio is not None and peer is None):
        return Checked(goal, Verdict.OPEN, measured, None)
    value = goal.value(measured)
    if value is None:
        return Checked(goal, Verdict.MISSED, measured, None)
    peers = None if peer is None else goal.value(peer)
    ratio = value / peers if peers is not None and peers > 0 else None
    short = goal.at_most is None or value <= goal.at_most
    # A peer that did not finish was slower than any number.
    quicker = goal.at_most_ratio is None or peers is None or value <= goal.at_most_ratio * peers
    return Checked(goal, Verdict.MET if short and quicker else Verdict.MISSED, measured, ratio)

"""What is aimed at: a spare of a pool that is warm costs a job little more than one of its own."""

from __future__ import annotations

from enum import StrEnum

from benchmarks.goals import Goal

NODES = 4


class Case(StrEnum):
    WARM = "warm"
    REPLACE = "replace"
    NO_SPARE = "no-spare"


GOALS = (
    Goal(Case.WARM, NODES, "first_step_s", at_most=6.0),
    Goal(Case.WARM, NODES, "after_detection_s", at_most=1.5),
)

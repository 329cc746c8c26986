"""The goals: a warm spare of a pool costs a job little more than one of its own, and a pod gets its node's verdict at
once.
"""

from __future__ import annotations

from enum import StrEnum

from benchmarks.goals import Goal

NODES = 4


class Case(StrEnum):
    WARM = "warm"
    REPLACE = "replace"
    NO_SPARE = "no-spare"
    VERDICT = "verdict"


GOALS = (
    Goal(Case.WARM, NODES, "first_step_s", at_most=6.0),
    Goal(Case.WARM, NODES, "after_detection_s", at_most=1.5),
    Goal(Case.VERDICT, NODES, "written_s", at_most=1.0),
    Goal(Case.VERDICT, NODES, "withdrawn_s", at_most=1.0),
)

"""Which rung of the ladder of recoveries a worker's fault leads to. Pure: the same facts give the same rung.

The first of these that holds decides (charged: to the budget of restarts):

    GIVE_UP               its node has a Faulty verdict, and its pod can go
    IN_PLACE              it happens once more in the recovery that is about it, for the first time
    GIVE_UP, charged      the budget has a restart left, its pod has had its share of them, and its rank no other pod
    IN_PLACE, charged     the budget has a restart left
    GIVE_UP               its rank has had no other pod, and no pod has gone at this point before
    FAIL                  anything else

A pod that is given up gives its ranks to a spare (SpareSwap), or to a
pod that the operator makes in its place (PodRecreate).

Rules: the budget is for what workers do, and counts restarts within its window, whoever is restarted; pods and nodes
that are lost, or leave, cost nothing. A rank that fails on another pod as well is at fault itself, and so is the
script: no rank costs a second pod within the window, and the whole job costs one when the budget is spent. So a bug
ends the job after at most the budget's restarts and one more. A pod can go when it is known to have failed first, and
somebody is left who remembers it.
"""

from dataclasses import dataclass
from enum import Enum


class Rung(Enum):
    IN_PLACE = "in place"
    GIVE_UP = "give up"
    FAIL = "fail"


@dataclass(frozen=True)
class Limits:
    restarts: int  # of the budget, within the window
    window_s: float
    per_pod: int | None  # restarts in place that one pod's workers may cost; None: any number


@dataclass(frozen=True)
class Case:
    """A worker's fault, and what of the window's past matters for it."""

    pod: str  # its name
    node: str
    rank: int | None
    faulty: str = ""  # what is held against its node; "" if nothing is
    stays: str = ""  # why its pod cannot be given up; "" if it can
    charged: int = 0  # restarts that were taken off the budget
    of_pod: int = 0  # faults of workers of this pod
    rank_had_another_pod: bool = False  # one was given up for this rank
    last_pod_has_gone: bool = False  # one was given up with the budget spent
    once_more: bool = False  # see the table


@dataclass(frozen=True)
class Step:
    rung: Rung
    charged: bool
    reason: str


def climb(case: Case, limits: Limits) -> Step:
    """The rung, and why it is this one and none below."""
    can_go, within = not case.stays, f"within {span(limits.window_s)}"
    if can_go and case.faulty:
        return Step(Rung.GIVE_UP, False, f"node {case.node} is Faulty: {case.faulty}")
    if case.once_more:
        return Step(Rung.IN_PLACE, False, f"{case.pod} failed again before the round had started everywhere")
    offender = limits.per_pod is not None and case.of_pod >= limits.per_pod
    if case.charged < limits.restarts:
        restart = f"restart {case.charged + 1} of {limits.restarts} {within}"
        if not offender:
            return Step(Rung.IN_PLACE, True, restart)
        often = f"pod {case.pod} failed {_times(case.of_pod + 1)} {within}"
        if can_go and not case.rank_had_another_pod:
            return Step(Rung.GIVE_UP, True, often)
        return Step(Rung.IN_PLACE, True, f"{restart}; {often}, but {_why_it_stays(case)}")
    spent = f"the budget of {limits.restarts} restarts {within} is spent"
    if can_go and not case.rank_had_another_pod and not case.last_pod_has_gone:
        return Step(Rung.GIVE_UP, False, spent)
    return Step(Rung.FAIL, False, f"{spent}, and {_why_it_stays(case)}")


def _why_it_stays(case: Case) -> str:
    if case.stays:
        return case.stays
    if case.rank_had_another_pod:
        return f"rank {case.rank} failed on another pod as well"
    return "a pod has already been replaced because of that"


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def span(seconds: float) -> str:
    """1 h, 5 min, 90 s."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"

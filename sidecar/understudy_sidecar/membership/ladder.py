"""Which rung of the ladder of recoveries a worker's fault leads to. Pure: the same facts give the same rung.

The first of these that holds decides (charged: to the budget of restarts):

    EVICT               its node has a Faulty verdict, and its pod can go
    IN_PLACE              it happens once more in the recovery that is about it, for the first time
    EVICT, charged      the budget has a restart left, its pod has had its share of them, and its rank no other pod
    IN_PLACE, charged     the budget has a restart left
    EVICT               its rank has had no other pod, and no pod has gone at this point before
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


class LadderStep(Enum):
    IN_PLACE = "in place"
    EVICT = "give up"
    FAIL = "fail"


@dataclass(frozen=True)
class BudgetLimits:
    restarts: int  # of the budget, within the window
    window_s: float
    per_pod: int | None  # restarts in place that one pod's workers may cost; None: any number


@dataclass(frozen=True)
class FaultCase:
    """A worker's fault, and what of the window's past matters for it."""

    pod: str  # its name
    node: str
    rank: int | None
    hardware_finding: str = ""  # what is held against its node; "" if nothing is
    keep_reason: str = ""  # why its pod cannot be given up; "" if it can
    charged_restarts: int = 0  # restarts that were taken off the budget
    pod_faults: int = 0  # faults of workers of this pod
    rank_had_another_pod: bool = False  # one was given up for this rank
    budget_spent_on_pod: bool = False  # one was given up with the budget spent
    is_repeated: bool = False  # see the table


@dataclass(frozen=True)
class LadderDecision:
    step: LadderStep
    is_charged: bool
    reason: str


def choose_step(case: FaultCase, limits: BudgetLimits) -> LadderDecision:
    """The rung, and why it is this one and none below."""
    can_go, window = not case.keep_reason, f"within {format_duration(limits.window_s)}"
    if can_go and case.hardware_finding:
        return LadderDecision(LadderStep.EVICT, False, f"node {case.node} is Faulty: {case.hardware_finding}")
    if case.is_repeated:
        return LadderDecision(
            LadderStep.IN_PLACE, False, f"{case.pod} failed again before the round had started everywhere"
        )
    offender = limits.per_pod is not None and case.pod_faults >= limits.per_pod
    if case.charged_restarts < limits.restarts:
        restart = f"restart {case.charged_restarts + 1} of {limits.restarts} {window}"
        if not offender:
            return LadderDecision(LadderStep.IN_PLACE, True, restart)
        pod_failures = f"pod {case.pod} failed {_times(case.pod_faults + 1)} {window}"
        if can_go and not case.rank_had_another_pod:
            return LadderDecision(LadderStep.EVICT, True, pod_failures)
        return LadderDecision(LadderStep.IN_PLACE, True, f"{restart}; {pod_failures}, but {_keep_reason(case)}")
    spent = f"the budget of {limits.restarts} restarts {window} is spent"
    if can_go and not case.rank_had_another_pod and not case.budget_spent_on_pod:
        return LadderDecision(LadderStep.EVICT, False, spent)
    return LadderDecision(LadderStep.FAIL, False, f"{spent}, and {_keep_reason(case)}")


def _keep_reason(case: FaultCase) -> str:
    if case.keep_reason:
        return case.keep_reason
    if case.rank_had_another_pod:
        return f"rank {case.rank} failed on another pod as well"
    return "a pod has already been replaced because of that"


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def format_duration(seconds: float) -> str:
    """1 h, 5 min, 90 s."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"

"""The step of the restart policy ladder for a worker's fault. Pure: the same facts give the same step.

The first condition that is true decides (charged: against the budget of restarts):

    EVICT               its node has a Faulty verdict, and its pod can be evicted
    IN_PLACE, charged   a drill has caused it; not charged if the budget is spent
    IN_PLACE            it repeats a fault during its recovery, for the first time
    EVICT, charged      the budget has a restart left, its pod has used its share, and its rank had no other pod
    IN_PLACE, charged   the budget has a restart left
    EVICT               its rank had no other pod, and no pod was evicted for a spent budget before
    FAIL                otherwise

A spare takes the ranks of an evicted pod (SpareSwap), or a pod that the operator creates to replace it (PodRecreate).

Rules: the budget is for faults of workers, and counts restarts within its window, of any worker; pods and nodes that
are lost or leave are not charged. If a rank fails on another pod as well, the pod is not the cause, but the rank, and
so the script: no rank causes a second eviction within the window, and the whole job causes one when the budget is
spent. So a bug ends the job after at most the budget's restarts and one more. A pod can be evicted if it is known to
have failed first, and if another member can lead with a snapshot that has this eviction.
"""

from dataclasses import dataclass
from enum import Enum

from understudy_protocol.recovery import DRILL_REASON


class LadderStep(Enum):
    IN_PLACE = "in place"
    EVICT = "evict"
    FAIL = "fail"


@dataclass(frozen=True)
class BudgetLimits:
    restarts: int  # of the budget, within the window
    window_s: float
    per_pod: int | None  # restarts in place that one pod's workers may cost; None: any number


@dataclass(frozen=True)
class FaultCase:
    """A worker's fault, with the facts of the window that matter for it."""

    pod: str  # its name
    node: str
    rank: int | None
    hardware_finding: str = ""  # finding about its node; "" if there is none
    keep_reason: str = ""  # why its pod cannot be evicted; "" if it can
    charged_restarts: int = 0  # restarts that were charged
    pod_faults: int = 0  # faults of workers of this pod
    rank_had_another_pod: bool = False  # a pod was evicted because of this rank
    budget_spent_on_pod: bool = False  # a pod was evicted when the budget was spent
    is_repeated: bool = False  # see the table
    is_drill: bool = False  # a drill has caused it


@dataclass(frozen=True)
class LadderDecision:
    step: LadderStep
    is_charged: bool
    reason: str


def choose_step(case: FaultCase, limits: BudgetLimits) -> LadderDecision:
    """The step of the first row of the table that applies, and the reason."""
    can_go, window = not case.keep_reason, f"within {format_duration(limits.window_s)}"
    if can_go and case.hardware_finding:
        return LadderDecision(LadderStep.EVICT, False, f"node {case.node} is Faulty: {case.hardware_finding}")
    if case.is_drill:
        is_charged = case.charged_restarts < limits.restarts
        restart = f"restart {case.charged_restarts + 1} of {limits.restarts} {window}"
        return LadderDecision(
            LadderStep.IN_PLACE, is_charged, f"{DRILL_REASON}: {restart if is_charged else 'it is not charged'}"
        )
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
    if case.rank_had_another_pod:  # first: it shows that the script is at fault
        return f"rank {case.rank} failed on another pod as well"
    if case.keep_reason:
        return case.keep_reason
    return "a pod has already been replaced because of that"


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def format_duration(seconds: float) -> str:
    """1 h, 5 min, 90 s."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"

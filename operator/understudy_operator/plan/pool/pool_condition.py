"""A job's report on the pool that it names: condition PoolAvailable, and an event whenever its message changes."""

from collections.abc import Iterator

from understudy_operator.plan.capacity.vacancies import (
    CONDITION,
    candidates,
    claimable,
    coming_claims,
    count_vacancies,
    is_stuck,
)
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.reported_conditions import DesiredCondition
from understudy_operator.plan.facts.status import Condition
from understudy_operator.plan.intents import Event
from understudy_operator.plan.pool.adopting import unadopted
from understudy_operator.plan.pool.warm_claims import replacement_reason

NO_SPARE_NEEDED, CLAIMED, EMPTY, NOT_FOUND, UNSCHEDULABLE = (
    "NoSpareNeeded",
    "SpareClaimed",
    "PoolEmpty",
    "PoolNotFound",
    "Unschedulable",
)
CLAIM_REJECTED = "ClaimRejected"


def pool_condition(observed: Observed, now: float) -> Iterator[DesiredCondition]:
    """Nothing for a job that names no pool."""
    pool = observed.pool
    if pool is None or observed.job.terminal:
        return
    stuck = next((pod for pod in observed.live if is_stuck(pod, now)), None)
    if not pool.exists:
        where = f"namespace {observed.job.namespace}"
        message = (
            f"spares.pool names {pool.name}, but {where} has no HotSparePool of that name: create it, or correct "
            "spares.pool"
        )
        yield CONDITION, False, NOT_FOUND, message
    elif warm := unadopted(observed):
        spares = ", ".join(f"{pod.name} on {pod.node}" for pod in warm)
        yield (
            CONDITION,
            True,
            CLAIMED,
            f"claimed Warm from pool {pool.name}, so these spares join the job as they are: {spares}",
        )
    elif coming := coming_claims(observed):
        spares = ", ".join(f"{pod.name} on {pod.node}" for pod in coming)
        detail = "".join(
            f"; Replace and not Warm, because {detail}" for detail in filter(None, [replacement_reason(observed, now)])
        )
        message = f"claimed from pool {pool.name}, so pods of the job replace these spares: {spares}{detail}"
        yield CONDITION, True, CLAIMED, message
    elif stuck is not None:
        message = f"pod {stuck.name} does not fit in the place of the spare of pool {pool.name}: {stuck.trouble}"
        yield CONDITION, False, UNSCHEDULABLE, message
    elif count_vacancies(observed, now) and not claimable(observed, now):
        if candidates(observed, now):
            yield (
                CONDITION,
                False,
                CLAIM_REJECTED,
                f"the API server rejects the claim of a spare of pool {pool.name}: see condition Blocked",
            )
        else:
            yield (
                CONDITION,
                False,
                EMPTY,
                f"pool {pool.name} has no spare to claim: the job waits until the operator creates one",
            )
    else:
        yield CONDITION, True, NO_SPARE_NEEDED, ""


def pool_events(before: Condition | None, after: Condition | None) -> Iterator[Event]:
    """The events between two states of the condition, each None if there is none."""
    if after is None or after.reason == NO_SPARE_NEEDED:
        return
    if before is None or (before.reason, before.message) != (after.reason, after.message):
        yield Event("Normal" if after.is_true else "Warning", after.reason, after.message)

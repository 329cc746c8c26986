"""Conditions of the status before this reconcile: lastTransitionTime changes only with the condition's status."""

from collections.abc import Iterable

from understudy_operator.plan.facts.status import Condition, JobStatus, PoolStatus
from understudy_operator.plan.times.rfc3339 import whole_seconds

MESSAGE_CHARACTERS = 1024

DesiredCondition = tuple[str, bool, str, str]  # of a condition: type, whether it is True, reason, message


def reported_refusal(status: JobStatus) -> str:
    """The message of the rejection that a status reports; "" if there is none."""
    found = (condition(status, kind) for kind in ("Invalid", "Blocked"))
    return next((entry.message for entry in found if entry is not None and entry.message), "")


def condition(status: JobStatus | PoolStatus, kind: str) -> Condition | None:
    """The condition of that type in a status; None if there is none."""
    return next((entry for entry in status.conditions if entry.type == kind), None)


def unchanged(entry: Condition) -> DesiredCondition:
    return entry.type, entry.is_true, entry.reason, entry.message


def build_conditions(
    before: JobStatus | PoolStatus, wanted: Iterable[DesiredCondition], now: float
) -> tuple[Condition, ...]:
    """The conditions for the new status. before: the previous status."""
    return tuple(_condition(entry, condition(before, entry[0]), now) for entry in wanted)


def _condition(wanted: DesiredCondition, before: Condition | None, now: float) -> Condition:
    kind, is_true, reason, message = wanted
    value = "True" if is_true else "False"
    since = before.last_transition_time if before is not None and before.status == value else whole_seconds(now)
    return Condition(kind, value, reason, message[:MESSAGE_CHARACTERS], since)

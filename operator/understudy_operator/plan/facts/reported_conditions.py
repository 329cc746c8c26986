"""Conditions of the status before this reconcile: lastTransitionTime changes only with the condition's status."""

from collections.abc import Iterable, Mapping
from typing import Any

from understudy_operator.plan.times.rfc3339 import whole_seconds

MESSAGE_CHARACTERS = 1024

DesiredCondition = tuple[str, bool, str, str]  # of a condition: type, whether it is True, reason, message


def reported_refusal(status: Mapping[str, Any]) -> str:
    """The message of the rejection that a status reports; "" if there is none."""
    message = condition(status, "Invalid").get("message") or condition(status, "Blocked").get("message")
    return str(message or "")


def condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """The condition of that type in a status; empty if there is none."""
    return next((entry for entry in status.get("conditions", ()) if entry["type"] == kind), {})


def build_conditions(before: Mapping[str, Any], wanted: Iterable[DesiredCondition], now: float) -> list[dict[str, Any]]:
    """The conditions for the new status. before: the previous status."""
    return [_condition(entry, condition(before, entry[0]), now) for entry in wanted]


def _condition(wanted: DesiredCondition, before: Mapping[str, Any], now: float) -> dict[str, Any]:
    kind, is_true, reason, message = wanted
    value = "True" if is_true else "False"
    return {
        "type": kind,
        "status": value,
        "reason": reason,
        "message": message[:MESSAGE_CHARACTERS],
        "lastTransitionTime": before["lastTransitionTime"] if before.get("status") == value else whole_seconds(now),
    }

"""What a status told before this pass, and what of it lasts: a condition's time moves only when the condition flips."""

from collections.abc import Iterable, Mapping
from typing import Any

from understudy_operator.plan.rfc3339 import whole_seconds

MESSAGE_CHARACTERS = 1024

DesiredCondition = tuple[str, bool, str, str]  # of a condition: type, whether it holds, reason, message


def reported_refusal(status: Mapping[str, Any]) -> str:
    """The refusal that a status tells; "" where nothing was refused."""
    message = condition(status, "Invalid").get("message") or condition(status, "Blocked").get("message")
    return str(message or "")


def condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """The condition of that type in a status; empty where there is none."""
    return next((entry for entry in status.get("conditions", ()) if entry["type"] == kind), {})


def build_conditions(before: Mapping[str, Any], wanted: Iterable[DesiredCondition], now: float) -> list[dict[str, Any]]:
    """As this pass tells them. before: the status that was told."""
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

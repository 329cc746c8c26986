"""What a status told before this pass."""

from collections.abc import Mapping
from typing import Any


def told_refusal(status: Mapping[str, Any]) -> str:
    """The refusal that a status tells; "" where nothing was refused."""
    told = condition(status, "Invalid").get("message") or condition(status, "Blocked").get("message")
    return str(told or "")


def condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """The condition of that type in a status; empty where there is none."""
    return next((entry for entry in status.get("conditions", ()) if entry["type"] == kind), {})

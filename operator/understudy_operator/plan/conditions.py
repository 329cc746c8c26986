"""The conditions of a TrainingJob: what holds, why, and since when.

Rules: each is computed from what is observed, never from another condition; lastTransitionTime moves only when the
condition flips. Invalid stays as it was until this operator has tried to write the job's objects itself.
"""

from collections.abc import Mapping
from typing import Any

from understudy_operator.plan.elections import waits_for_election
from understudy_operator.plan.observed import Observed, Pod
from understudy_operator.plan.rfc3339 import whole_seconds

MESSAGE_CHARACTERS = 1024
TROUBLED_PODS_TOLD = 3

Wanted = tuple[str, bool, str, str]  # type, whether it holds, reason, message


def plan_conditions(observed: Observed, status: Mapping[str, Any], now: float) -> list[dict[str, Any]]:
    """All conditions; `status` is this pass's, with phase and counts in place."""
    phase, spares, close = status["phase"], status["spares"], observed.close
    before = {entry["type"]: entry for entry in observed.job.status.get("conditions", ())}
    message = "" if close is None else close.message
    waits = _waits_for(observed, now)
    running = _shrunk(observed) if phase == "Running" else message
    wanted: list[Wanted] = [
        ("Running", phase == "Running", phase, waits or running),
        ("Recovering", phase == "Recovering", phase, waits if phase == "Recovering" else ""),
        ("SparesReady", spares["ready"] >= spares["desired"], "Spares", f"{spares['ready']} of {spares['desired']}"),
        ("Completed", phase == "Succeeded", "AllWorkersSucceeded" if phase == "Succeeded" else phase, message),
        ("Failed", phase == "Failed", "RecoveryExhausted" if phase == "Failed" else phase, message),
        _invalid(observed, before.get("Invalid")),
    ]
    return [_condition(entry, before.get(entry[0]), now) for entry in wanted]


def told_refusal(status: Mapping[str, Any]) -> str:
    """The refusal that a status tells; "" where nothing was refused."""
    return next((x["message"] for x in status.get("conditions", ()) if x["type"] == "Invalid"), "")


def _condition(wanted: Wanted, before: Mapping[str, Any] | None, now: float) -> dict[str, Any]:
    kind, holds, reason, message = wanted
    value = "True" if holds else "False"
    kept = before is not None and before["status"] == value
    return {
        "type": kind,
        "status": value,
        "reason": reason,
        "message": message[:MESSAGE_CHARACTERS],
        "lastTransitionTime": before["lastTransitionTime"] if before is not None and kept else whole_seconds(now),
    }


def _invalid(observed: Observed, before: Mapping[str, Any] | None) -> Wanted:
    if observed.refusals is None and before is not None:
        return "Invalid", before["status"] == "True", before["reason"], before["message"]
    if observed.refusals:
        return "Invalid", True, "Refused", observed.refusals[0]
    return "Invalid", False, "Accepted", ""


def _shrunk(observed: Observed) -> str:
    told, declared = observed.snapshot, observed.job.world.actives
    if told is None or not 0 < told.actives < declared:
        return ""
    return f"trains with {told.actives} of {declared} members: it grows when pods are there for the others"


def _waits_for(observed: Observed, now: float) -> str:
    """What keeps the job from running, in words; "" if nothing does."""
    if observed.close is not None:
        return ""
    parts = [office] if (office := waits_for_election(observed, now)) else []
    if observed.snapshot is not None and observed.snapshot.waiting_for:
        parts.append(f"waiting for {observed.snapshot.waiting_for}")
    troubled: list[Pod] = [pod for pod in observed.live() if pod.trouble]
    parts += [f"pod {pod.name}: {pod.trouble}" for pod in troubled[:TROUBLED_PODS_TOLD]]
    return "; ".join(parts)

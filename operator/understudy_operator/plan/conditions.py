"""The conditions of a TrainingJob: what holds, why, and since when.

Rules: each is computed from what is observed, never from another condition; lastTransitionTime moves only when the
condition flips. Invalid and Blocked stay as they were until this operator has tried to write the job's objects itself.
"""

from collections.abc import Mapping
from typing import Any

from understudy_operator.plan.elections import waits_for_election
from understudy_operator.plan.objects import key_is_lost, lost_key
from understudy_operator.plan.observed import Observed, Pod
from understudy_operator.plan.refusals import Refusal, Why
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
        _refused("Invalid", observed, lasting=True, before=before),
        _refused("Blocked", observed, lasting=False, before=before),
    ]
    return [_condition(entry, before.get(entry[0]), now) for entry in wanted]


def told_refusal(status: Mapping[str, Any]) -> str:
    """The refusal that a status tells; "" where nothing was refused."""
    told = {x["type"]: x["message"] for x in status.get("conditions", ())}
    return str(told.get("Invalid") or told.get("Blocked") or "")


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


def _refused(kind: str, observed: Observed, *, lasting: bool, before: Mapping[str, Mapping[str, Any]]) -> Wanted:
    """Whether the API server has refused something for a reason that lasts, or for one that may pass."""
    told = before.get(kind)
    if observed.refusals is None and told is not None:
        return kind, told["status"] == "True", told["reason"], told["message"]
    refusals = observed.refusals or ()
    if observed.close is None and key_is_lost(observed):
        refusals = (*refusals, Refusal(lost_key(observed.job.name), Why.KEY))
    refusal = next((x for x in refusals if x.lasting == lasting), None)
    if refusal is not None:
        return kind, True, refusal.why.value, refusal.message
    return kind, False, "Accepted", ""


def _shrunk(observed: Observed) -> str:
    told, declared = observed.snapshot, observed.job.spec.actives
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
    parts += [f"the API server refuses: {refusal.message}" for refusal in (observed.refusals or ())[:1]]
    return "; ".join(parts)

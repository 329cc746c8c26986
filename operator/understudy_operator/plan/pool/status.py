"""The status of a HotSparePool: computed whole from what is observed, but for the history that its size goes by."""

from collections.abc import Iterator, Mapping
from typing import Any

from understudy_operator.plan.intents import Event
from understudy_operator.plan.observed import Pod
from understudy_operator.plan.pool.facts import ObservedPool, available, claimant, taken_by
from understudy_operator.plan.pool.holding import being_taken, ended_by_themselves, held, outdated, pause_s
from understudy_operator.plan.pool.manifest import selector
from understudy_operator.plan.rfc3339 import whole_seconds
from understudy_operator.plan.told_before import Wanted, condition, conditions

NO_ROOM, TAKEN_AWAY, SPARES = "NoRoom", "TakenAway", "Spares"


def plan_status(observed: ObservedPool, desired: int, auto: Mapping[str, Any] | None, now: float) -> dict[str, Any]:
    """The whole status."""
    here = held(observed, now)
    status: dict[str, Any] = {
        "observedGeneration": observed.pool.generation,
        "desired": desired,
        "replicas": len(here),
        "ready": sum(pod.ready for pod in here),
        "claimed": _claimed(observed),
        "available": len(available(observed.pods, observed.nodes, now)),
        "updated": len(here) - len(outdated(observed, now)),
        "selector": selector(observed.pool),
    }
    if here:
        status["oldestPodTime"] = whole_seconds(min(pod.created_at for pod in here))
    if auto is not None:
        status["auto"] = dict(auto)
    wanted = (_ready(observed, status, now), _rolling(observed, now), _blocked(observed))
    status["conditions"] = conditions(observed.pool.status, wanted, now)
    return status


def plan_events(before: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[Event, ...]:
    """What changed, each change once."""
    return tuple(_events(before, status))


def _events(before: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[Event]:
    for kind in ("Rolling", "Blocked"):
        known, told = condition(before, kind), condition(status, kind)
        if (known.get("status"), known.get("reason")) == (told["status"], told["reason"]):
            continue
        if told["status"] == "True":
            yield Event("Warning" if told["reason"] != "Rolling" else "Normal", told["reason"], told["message"])
        elif known.get("status") == "True" and kind == "Rolling":
            yield Event("Normal", "Rolled", "all spares have the newest template")
    if (reason := condition(status, "Ready")["reason"]) not in (SPARES, condition(before, "Ready").get("reason")):
        yield Event("Warning", reason, condition(status, "Ready")["message"])
    if before.get("auto") and before.get("desired", status["desired"]) != status["desired"]:
        auto = status.get("auto", {})
        why = (
            f"{auto.get('nodes')} nodes, of which {auto.get('failuresPerNodeDay')} fail in a day ({auto.get('source')})"
        )
        yield Event("Normal", "Resized", f"{status['desired']} spares instead of {before['desired']}: {why}")


def _claimed(observed: ObservedPool) -> int:
    """Those whose place is being taken, and those whose place a job's pod has taken and holds."""
    taken = taken_by(observed.lent)
    coming = sum(bool(claimant(pod)) and pod.uid not in taken for pod in observed.pods)
    return coming + sum(pod.alive for pod in observed.lent)


def _ready(observed: ObservedPool, status: Mapping[str, Any], now: float) -> Wanted:
    told, reason = f"{status['ready']} of {status['desired']}", SPARES
    enough = status["ready"] >= status["desired"]
    gone = [pod for pod in observed.pods if pod.deleting_since is not None and pod.disruption and not claimant(pod)]
    troubled: list[Pod] = [pod for pod in held(observed, now) if pod.trouble]
    if gone and not enough:
        told, reason = f"{told}; pod {gone[0].name} on {gone[0].node}: {gone[0].disruption}", TAKEN_AWAY
    elif troubled:
        told += f"; pod {troubled[0].name}: {troubled[0].trouble}"
        reason = NO_ROOM if not enough and not any(pod.node for pod in troubled) else SPARES
    if not enough and being_taken(observed, now):
        told += "; the operator creates the next spare when the job has a pod in the place of the claimed one"
    if pause_s(observed, now) > 0.0:
        last = ended_by_themselves(observed)[-1]
        why = f" ({last.name}: {last.failure})" if last.failure else ""
        told += f"; the last spares have ended by themselves{why}, so the operator waits before it creates the next one"
    return "Ready", enough, reason, told


def _rolling(observed: ObservedPool, now: float) -> Wanted:
    old = outdated(observed, now)
    if not old:
        return "Rolling", False, "UpToDate", ""
    told = f"{len(old)} spares have an old template"
    waits = next((pod for pod in held(observed, now) if pod not in old and not pod.node and pod.trouble), None)
    if waits is None:
        return "Rolling", True, "Rolling", told
    return (
        "Rolling",
        True,
        NO_ROOM,
        f"{told}, and no node has room for an additional spare: they are replaced when a job claims a spare",
    )


def _blocked(observed: ObservedPool) -> Wanted:
    if observed.refusals is None and (known := condition(observed.pool.status, "Blocked")):
        return "Blocked", known["status"] == "True", known["reason"], known["message"]
    refusal = next(iter(observed.refusals or ()), None)
    if refusal is None:
        return "Blocked", False, "Accepted", ""
    return "Blocked", True, refusal.why.value, refusal.message

"""The status of a HotSparePool: computed from the observed facts, except the history for its size."""

from collections.abc import Iterator, Mapping
from typing import Any

from understudy_operator.plan.facts.cluster_objects import Pod
from understudy_operator.plan.facts.pool_facts import ObservedPool, available, claimant, taken_by
from understudy_operator.plan.facts.reported_conditions import DesiredCondition, build_conditions, condition
from understudy_operator.plan.intents import Event
from understudy_operator.plan.manifests.pool_pods import pool_selector
from understudy_operator.plan.pool.holding import (
    ended_by_themselves,
    outdated,
    spare_pause_s,
    spares_being_claimed,
    usable_spares,
)
from understudy_operator.plan.times.rfc3339 import whole_seconds

ENOUGH, TOO_FEW, UNSCHEDULABLE = "EnoughSpares", "TooFewSpares", "Unschedulable"
PREEMPTED, EVICTED = "Preempted", "Evicted"


def plan_pool_status(
    observed: ObservedPool, desired: int, auto: Mapping[str, Any] | None, now: float
) -> dict[str, Any]:
    """The complete status."""
    spares = usable_spares(observed, now)
    status: dict[str, Any] = {
        "observedGeneration": observed.pool.generation,
        "desired": desired,
        "replicas": len(spares),
        "ready": sum(pod.ready for pod in spares),
        "claimed": _claimed(observed),
        "available": len(available(observed.pods, observed.nodes, now)),
        "updated": len(spares) - len(outdated(observed, now)),
        "selector": pool_selector(observed.pool),
    }
    if spares:
        status["oldestPodTime"] = whole_seconds(min(pod.created_at for pod in spares))
    if auto is not None:
        status["autoSize"] = dict(auto)
    wanted = (_ready(observed, status, now), _rolling(observed, now), _blocked(observed))
    status["conditions"] = build_conditions(observed.pool.status, wanted, now)
    return status


def plan_pool_events(before: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[Event, ...]:
    """One event for each change."""
    return tuple(_events(before, status))


def _events(before: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[Event]:
    for kind in ("Rolling", "Blocked"):
        old, new = condition(before, kind), condition(status, kind)
        if (old.get("status"), old.get("reason")) == (new["status"], new["reason"]):
            continue
        if new["status"] == "True":
            yield Event("Warning" if new["reason"] != "Rolling" else "Normal", new["reason"], new["message"])
        elif old.get("status") == "True" and kind == "Rolling":
            yield Event("Normal", "RollingUpdateCompleted", "all spares have the newest template")
    before_reason = condition(before, "Ready").get("reason")
    if (reason := condition(status, "Ready")["reason"]) not in (ENOUGH, TOO_FEW, before_reason):
        yield Event("Warning", reason, condition(status, "Ready")["message"])
    if before.get("autoSize") and before.get("desired", status["desired"]) != status["desired"]:
        auto = status.get("autoSize", {})
        detail = (
            f"{auto.get('nodes')} nodes, of which {auto.get('failuresPerNodeDay')} fail in a day ({auto.get('source')})"
        )
        yield Event("Normal", "Resized", f"{status['desired']} spares instead of {before['desired']}: {detail}")


def _claimed(observed: ObservedPool) -> int:
    """Claimed spares that no job's pod has replaced yet, and running pods of jobs that have replaced one."""
    taken = taken_by(observed.replacement_pods)
    coming = sum(bool(claimant(pod)) and pod.uid not in taken for pod in observed.pods)
    return coming + sum(pod.alive for pod in observed.replacement_pods)


def _ready(observed: ObservedPool, status: Mapping[str, Any], now: float) -> DesiredCondition:
    enough = status["ready"] >= status["desired"]
    message, reason = f"{status['ready']} of {status['desired']}", ENOUGH if enough else TOO_FEW
    taken_away = [
        pod for pod in observed.pods if pod.deleting_since is not None and pod.disruption and not claimant(pod)
    ]
    troubled: list[Pod] = [pod for pod in usable_spares(observed, now) if pod.trouble]
    if taken_away and not enough:
        message += f"; pod {taken_away[0].name} on {taken_away[0].node}: {taken_away[0].disruption}"
        reason = PREEMPTED if taken_away[0].is_preempted else EVICTED
    elif troubled:
        message += f"; pod {troubled[0].name}: {troubled[0].trouble}"
        if not enough and not any(pod.node for pod in troubled):
            reason = UNSCHEDULABLE
    if not enough and spares_being_claimed(observed, now):
        message += "; the operator creates the next spare when the job has a pod in the place of the claimed one"
    if spare_pause_s(observed, now) > 0.0:
        last = ended_by_themselves(observed)[-1]
        detail = f" ({last.name}: {last.failure})" if last.failure else ""
        message += (
            f"; the last spares have ended by themselves{detail}, so the operator waits before it creates the next one"
        )
    return "Ready", enough, reason, message


def _rolling(observed: ObservedPool, now: float) -> DesiredCondition:
    old = outdated(observed, now)
    if not old:
        return "Rolling", False, "UpToDate", ""
    message = f"{len(old)} spares have an old template"
    waits = next((pod for pod in usable_spares(observed, now) if pod not in old and not pod.node and pod.trouble), None)
    if waits is None:
        return "Rolling", True, "Rolling", message
    return (
        "Rolling",
        True,
        UNSCHEDULABLE,
        f"{message}, and no node has room for an additional spare: they are replaced when a job claims a spare",
    )


def _blocked(observed: ObservedPool) -> DesiredCondition:
    if observed.refusals is None and (recorded := condition(observed.pool.status, "Blocked")):
        return "Blocked", recorded["status"] == "True", recorded["reason"], recorded["message"]
    refusal = next(iter(observed.refusals or ()), None)
    if refusal is None:
        return "Blocked", False, "Accepted", ""
    return "Blocked", True, refusal.kind.value, refusal.message

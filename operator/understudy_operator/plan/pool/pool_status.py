"""The status of a HotSparePool: computed from the observed facts, except the history for its size."""

from collections.abc import Iterator

from msgspec.structs import replace

from understudy_operator.plan.facts.cluster_objects import Pod
from understudy_operator.plan.facts.pool_facts import ObservedPool, available, claimant, taken_by
from understudy_operator.plan.facts.reported_conditions import DesiredCondition, build_conditions, condition, unchanged
from understudy_operator.plan.facts.status import AutoSizeStatus, PoolStatus
from understudy_operator.plan.intents import Event
from understudy_operator.plan.manifests.pool_pods import pool_selector
from understudy_operator.plan.pool.holding import (
    ended_by_themselves,
    outdated,
    say_outdated,
    spare_pause_s,
    spares_being_claimed,
    usable_spares,
)
from understudy_operator.plan.times.rfc3339 import whole_seconds

ENOUGH, TOO_FEW, UNSCHEDULABLE = "EnoughSpares", "TooFewSpares", "Unschedulable"
PREEMPTED, EVICTED = "Preempted", "Evicted"


def plan_pool_status(observed: ObservedPool, desired: int, auto: AutoSizeStatus | None, now: float) -> PoolStatus:
    """The complete status."""
    spares = usable_spares(observed, now)
    status = PoolStatus(
        observed_generation=observed.pool.generation,
        desired=desired,
        replicas=len(spares),
        ready=sum(pod.ready for pod in spares),
        claimed=_claimed(observed),
        available=len(available(observed.pods, observed.nodes, now)),
        updated=len(spares) - len(outdated(observed, now)),
        oldest_pod_time=whole_seconds(min(pod.created_at for pod in spares)) if spares else None,
        selector=pool_selector(observed.pool),
        auto_size=auto,
    )
    wanted = (_ready(observed, status.ready, desired, now), _rolling(observed, now), _blocked(observed))
    return replace(status, conditions=build_conditions(observed.pool.status, wanted, now))


def plan_pool_events(before: PoolStatus, status: PoolStatus) -> tuple[Event, ...]:
    """One event for each change."""
    return tuple(_events(before, status))


def _events(before: PoolStatus, status: PoolStatus) -> Iterator[Event]:
    for new in status.conditions:
        old = condition(before, new.type)
        if old is not None and (old.status, old.reason) == (new.status, new.reason):
            continue
        reason = new.reason
        if new.type == "Ready":
            if reason not in (ENOUGH, TOO_FEW) and (old is None or old.reason != reason):
                yield Event("Warning", reason, new.message)
        elif new.is_true:
            yield Event("Warning" if new.reason != "Rolling" else "Normal", new.reason, new.message)
        elif new.type == "Rolling" and old is not None and old.is_true:
            yield Event("Normal", "RollingUpdateCompleted", "all spares have the newest template")
    if before.auto_size is not None and before.desired is not None and before.desired != status.desired:
        auto = status.auto_size or AutoSizeStatus()
        detail = f"{auto.nodes} nodes, of which {auto.failures_per_node_day} fail in a day ({auto.source})"
        yield Event("Normal", "Resized", f"{status.desired} spares instead of {before.desired}: {detail}")


def _claimed(observed: ObservedPool) -> int:
    """Claimed spares that no job's pod has replaced yet, and running pods of jobs that have replaced one."""
    taken = taken_by(observed.replacement_pods)
    coming = sum(bool(claimant(pod)) and pod.uid not in taken for pod in observed.pods)
    return coming + sum(pod.alive for pod in observed.replacement_pods)


def _ready(observed: ObservedPool, ready: int, desired: int, now: float) -> DesiredCondition:
    enough = ready >= desired
    message, reason = f"{ready} of {desired}", ENOUGH if enough else TOO_FEW
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
    message = say_outdated(len(old))
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
        return unchanged(recorded)
    refusal = next(iter(observed.refusals or ()), None)
    if refusal is None:
        return "Blocked", False, "Accepted", ""
    return "Blocked", True, refusal.kind.value, refusal.message

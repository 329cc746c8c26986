"""The status of a TrainingJob. JobSet's fields keep JobSet's names and types.

Rules: computed whole from what is observed, never from a condition set in an earlier pass; only history (recoveries,
times) is carried over. What no coordinator says (the operator has just started, a new coordinator still asks who is
there) stays as it was. Without a change there is no write.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from understudy_operator.plan.causes import explained
from understudy_operator.plan.conditions import plan_conditions
from understudy_operator.plan.coordination import Office
from understudy_operator.plan.observed import TERMINAL_STATES, Observed
from understudy_operator.plan.recoveries import AT_WORK, history
from understudy_operator.plan.rfc3339 import micro_time, unix
from understudy_protocol.observer import MemberView, Snapshot
from understudy_protocol.words import CloseReason

#: Progress alone is not worth a write more often than this.
PROGRESS_EVERY_S = 10.0


def plan_status(observed: Observed, office: Office, now: float) -> dict[str, Any]:
    """The whole status."""
    before, snapshot, close = observed.job.status, observed.snapshot, observed.close
    status: dict[str, Any] = dict(before)
    status["observedGeneration"] = observed.job.generation
    status["restarts"] = int(before.get("restarts", 0))
    status["restartsCountTowardsMax"] = int(before.get("restartsCountTowardsMax", 0))
    if office.pod is not None and office.epoch:
        term = {"term": office.term} if office.term else {}
        status |= term
        status["coordinator"] = {"epoch": office.epoch, **term, "podName": office.pod.name, "podUID": office.pod.uid}
    if snapshot is not None:
        status |= _from_snapshot(observed, snapshot, now)
        if snapshot.token.round >= 0:
            status.setdefault("startTime", micro_time(now))
    if close is not None:
        status["terminalState"] = TERMINAL_STATES[close.reason]
        status.setdefault("completionTime", micro_time(now))
    status["members"], status["spares"] = _counts(observed)
    status["replicatedJobsStatus"] = list(_jobs(observed, status["members"]))
    status["phase"] = _phase(observed, status)
    status["conditions"] = plan_conditions(observed, status, now)
    return status


def worth_writing(before: Mapping[str, Any], status: Mapping[str, Any], now: float) -> bool:
    """Whether anything changed but the progress, or the progress is old enough to be told anew."""
    changed = {name for name in status.keys() | before.keys() if status.get(name) != before.get(name)}
    if changed != {"progress"}:
        return bool(changed)
    told_at = before.get("progress", {}).get("at")
    return told_at is None or now - unix(told_at) >= PROGRESS_EVERY_S


def _from_snapshot(observed: Observed, snapshot: Snapshot, now: float) -> dict[str, Any]:
    before, told = observed.job.status, dict[str, Any]()
    if snapshot.token.round >= 0:
        told["round"] = max(snapshot.token.round, int(before.get("round", -1)))
    counts = {_camel(name): count for name, count in snapshot.recoveries_by_strategy.items()}
    told["recoveriesByStrategy"] = counts
    told["restarts"], told["restartsCountTowardsMax"] = sum(counts.values()), counts.get("inPlace", 0)
    known = before.get("recoveries", ())
    recoveries = explained(history(known, snapshot, now), known, observed.pods)
    if recoveries:
        told["recoveries"], told["lastRecovery"] = recoveries, recoveries[-1]
    if snapshot.progress is not None:
        step = {"step": snapshot.progress.step, "at": micro_time(snapshot.progress.at)}
        told["progress"] = step | ({"total": snapshot.progress.total} if snapshot.progress.total is not None else {})
    return told


def _counts(observed: Observed) -> tuple[dict[str, int], dict[str, int]]:
    """Members and spares."""
    world, before = observed.job.world, observed.job.status
    if observed.close is not None:
        active = ready = spares = claimed = 0
    elif observed.snapshot is not None and _tells_seats(observed, observed.snapshot):
        active, ready, spares, claimed = _seats(observed, observed.snapshot)
    else:
        active, ready = (int(before.get("members", {}).get(name, 0)) for name in ("active", "ready"))
        spares, claimed = (int(before.get("spares", {}).get(name, 0)) for name in ("ready", "claimed"))
    members = {"desired": world.actives, "active": active, "ready": ready}
    return members, {"desired": world.spares, "ready": spares, "claimed": claimed}


def _tells_seats(observed: Observed, snapshot: Snapshot) -> bool:
    return observed.seating_known or snapshot.token.round < 0


def _seats(observed: Observed, snapshot: Snapshot) -> tuple[int, int, int, int]:
    live = {pod.uid: pod for pod in observed.live()}
    members = [member for member in snapshot.members if member.pod_uid in live]
    seated = [member for member in members if member.group_rank is not None]

    def is_spare(member: MemberView) -> bool:
        # Before the first round who was made for an index waits too, but for its own rank.
        return member.group_rank is None and (snapshot.token.round >= 0 or member.index is None)

    at_work = sum(member.workers in AT_WORK for member in seated)
    spares = sum(is_spare(member) for member in members)
    taken = sum(live[member.pod_uid].spare for member in seated)
    missing = max(0, observed.job.world.spares - spares)
    return len(seated), at_work, spares, min(taken, missing)


def _jobs(observed: Observed, members: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    """All Jobs of the world share the fate of the training, so they are counted together."""
    close = observed.close
    reason = None if close is None else close.reason
    for group in observed.job.world.groups:
        jobs = group.replicas
        yield {
            "name": group.name,
            "ready": jobs if reason is None and members["ready"] == members["desired"] else 0,
            "succeeded": jobs if reason is CloseReason.SUCCEEDED else 0,
            "failed": jobs if reason is CloseReason.FAILED else 0,
            "active": jobs if reason is None else 0,
            "suspended": 0,
        }


def _phase(observed: Observed, status: Mapping[str, Any]) -> str:
    match status.get("terminalState"):
        case "Completed":
            return "Succeeded"
        case "Failed":
            return "Failed"
    if int(status.get("round", -1)) < 0:
        return "Starting" if any(pod.node for pod in observed.pods) else "Pending"
    if observed.snapshot is None or not _tells_seats(observed, observed.snapshot):
        former = observed.job.status.get("phase")
        return "Recovering" if former == "Recovering" else "Running"
    last = status.get("lastRecovery", {})
    open_still = bool(last) and "resumedAt" not in last
    return "Recovering" if observed.snapshot.waiting_for or open_still else "Running"


def _camel(strategy: str) -> str:
    return strategy[0].lower() + strategy[1:]

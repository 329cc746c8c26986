"""`why`: why a job stopped, or why it does not train, and the next steps. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from understudy_cli.facts import Job, Recovery
from understudy_cli.views.jobs import notes
from understudy_cli.views.phrases import clock, duration, outcome, precise, subject, symptom


@dataclass(frozen=True)
class Explanation:
    """One recovery. place: rank, pod and node of the first failure. consequences: failures that followed it."""

    fault: str
    place: str
    symptom: str
    detected: str
    strategy: str
    reason: str
    pause: str
    restored: str
    lost: str
    round: int | None
    is_open: bool
    traceback: tuple[str, ...]
    consequences: tuple[str, ...]


@dataclass(frozen=True)
class Why:
    namespace: str
    name: str
    summary: str
    problems: tuple[str, ...]  # the messages of conditions
    faults: tuple[Explanation, ...]  # the newest first
    next_steps: tuple[str, ...]


def why(job: Job, recoveries: Sequence[Recovery], now: float, limit: int, program: str) -> Why:
    """recoveries: the oldest first. limit: of the faults to explain. program: the words before a verb."""
    newest = tuple(reversed(recoveries))[:limit]
    return Why(
        namespace=job.namespace,
        name=job.name,
        summary=_summary(job, recoveries, now),
        problems=notes(job),
        faults=tuple(explained(recovery, now) for recovery in newest),
        next_steps=_next_steps(job, newest[0] if newest else None, program),
    )


def _summary(job: Job, recoveries: Sequence[Recovery], now: float) -> str:
    parts = [f"{job.name}: {job.phase or 'no phase yet: the operator has not written a status'}"]
    if job.round is not None:
        parts.append(f"round {job.round}")
    total = sum(job.recoveries_by_strategy)
    open_faults = [recovery for recovery in recoveries if recovery.is_open]
    if open_faults and open_faults[-1].detected_at is not None:
        parts.append(f"a recovery has been open for {duration(now - open_faults[-1].detected_at)}")
    elif not total:
        parts.append("no fault so far")
    if total:
        parts.append(f"{total} recoveries" if total > 1 else "1 recovery")
    return ", ".join(parts)


def explained(recovery: Recovery, now: float) -> Explanation:
    ago = "" if recovery.detected_at is None else f" UTC ({duration(now - recovery.detected_at)} ago)"
    pause = "not known: the workers report no steps"
    if recovery.pause_s is not None:
        pause = precise(recovery.pause_s)
    elif recovery.is_open or recovery.outcome:
        pause = outcome(recovery, now)
    return Explanation(
        fault=recovery.fault,
        place=subject(recovery.cause) or "not known",
        symptom=symptom(recovery.cause) or "not known",
        detected=f"{clock(recovery.detected_at)}{ago}",
        strategy=recovery.strategy or "none yet: no pod is available for the lost ranks",
        reason=recovery.reason,
        pause=pause,
        restored=": ".join(filter(None, (recovery.restored_from, recovery.restore_reason))),
        lost=_lost(recovery),
        round=recovery.round,
        is_open=recovery.is_open,
        traceback=recovery.traceback,
        consequences=_consequences(recovery),
    )


def _lost(recovery: Recovery) -> str:
    parts = [] if recovery.lost_steps is None else [f"{recovery.lost_steps} steps"]
    if recovery.gpu_seconds_lost is not None:
        parts.append(f"{recovery.gpu_seconds_lost:.0f} GPU-seconds")
    elif recovery.rank_seconds_lost is not None:
        parts.append(f"{recovery.rank_seconds_lost:.0f} rank-seconds")
    return ", ".join(parts)


def _consequences(recovery: Recovery) -> tuple[str, ...]:
    found = [f"{subject(cause)}: {symptom(cause) or 'no details'}" for cause in recovery.consequences]
    more = recovery.consequence_count - len(found)
    return (*found, f"and {more} more") if more else tuple(found)


def _next_steps(job: Job, newest: Recovery | None, program: str) -> tuple[str, ...]:
    found: list[str] = []
    name = job.name
    if not job.phase:
        found.append(f"check the operator: {program} doctor")
    if newest is not None and newest.cause.rank is not None and newest.fault in ("Process", "Hang"):
        # The log of the failed worker is that of the round before.
        before = "" if not newest.round else f" --round {newest.round - 1}"
        found.append(f"read the worker's log: {program} logs {name} --rank {newest.cause.rank}{before}")
    if newest is not None and newest.fault == "Hang":
        found.append(f"compare the stacks of all ranks: {program} stacks {name}")
    if newest is not None and newest.fault == "Node" and newest.cause.node:
        found.append(f"check node {newest.cause.node}: {program} nodes")
    if newest is not None and newest.is_open and not newest.strategy:
        found.append("free a node, or add spares: no pod can take the lost ranks")
    if newest is not None and newest.strategy == "PodRecreate":
        found.append("add a spare: without one, ranks wait for a new pod (spec.spares)")
    if job.is_true("Failed"):
        found.append(f"read the order of events: {program} timeline {name}")
    return tuple(found)

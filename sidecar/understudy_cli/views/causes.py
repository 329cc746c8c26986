"""`why`: why a job stopped, or why it does not train, and the next steps. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from understudy_cli.facts import Job, Recovery
from understudy_cli.views.jobs import notes
from understudy_cli.views.phrases import clock, duration, outcome, precise, subject, symptom
from understudy_cli.views.suspects import Logs, Suspects, is_timeout, need_logs, suspects


@dataclass(frozen=True)
class Explanation:
    """One recovery. place: rank, pod and node of the first failure. consequences: failures that followed it.

    If the logs show that the others waited for a rank, this is the rank of `place`, with its stack. `reported` then has
    the failure that status names.
    """

    fault: str
    place: str
    symptom: str
    stack: tuple[str, ...]
    reported: str
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


def why(
    job: Job,
    recoveries: Sequence[Recovery],
    now: float,
    limit: int,
    program: str,
    logs_of: Callable[[Recovery], Logs] = lambda _: {},
) -> Why:
    """recoveries: the oldest first. limit: of the faults to explain. program: the words before a verb. logs_of: reads
    the logs around a fault that the logs may explain.
    """
    newest = tuple(reversed(recoveries))[:limit]
    found = {each: suspects(each, logs_of(each)) for each in newest if need_logs(each)}
    return Why(
        namespace=job.namespace,
        name=job.name,
        summary=_summary(job, recoveries, now),
        problems=notes(job),
        faults=tuple(explained(job, recovery, now, found.get(recovery)) for recovery in newest),
        next_steps=_next_steps(job, newest[0], found.get(newest[0]), program) if newest else _first_steps(job, program),
    )


def _summary(job: Job, recoveries: Sequence[Recovery], now: float) -> str:
    parts = [f"{job.name}: {job.phase or 'no phase yet: the operator has not written a status'}"]
    if job.round is not None:
        parts.append(f"round {job.round}")
    total = sum(job.recoveries_by_strategy)
    open_faults = [recovery for recovery in recoveries if recovery.is_open]
    if open_faults and open_faults[-1].detected_at is not None:
        parts.append(f"a recovery has been open for {duration(now - open_faults[-1].detected_at)}")
    elif not recoveries and not total:
        parts.append("no fault so far")
    if total:
        parts.append(f"{total} recoveries" if total > 1 else "1 recovery")
    return ", ".join(parts)


def explained(job: Job, recovery: Recovery, now: float, suspected: Suspects | None = None) -> Explanation:
    ago = "" if recovery.detected_at is None else f" UTC ({duration(now - recovery.detected_at)} ago)"
    pause = "not known: the workers report no steps"
    if recovery.pause_s is not None:
        pause = precise(recovery.pause_s)
    elif recovery.is_open or recovery.outcome:
        pause = outcome(recovery, now)
    return Explanation(
        fault=recovery.fault,
        place=_place(recovery, suspected),
        symptom=suspected.evidence if suspected else symptom(recovery.cause) or "not known",
        stack=suspected.stack if suspected else (),
        reported=f"{subject(recovery.cause)}: {symptom(recovery.cause)}" if suspected else "",
        detected=f"{clock(recovery.detected_at)}{ago}",
        strategy=_strategy(job, recovery),
        reason=recovery.reason,
        pause=pause,
        restored=": ".join(filter(None, (recovery.restored_from, recovery.restore_reason))),
        lost=_lost(recovery),
        round=recovery.round,
        is_open=recovery.is_open,
        traceback=recovery.traceback,
        consequences=_consequences(recovery),
    )


def _place(recovery: Recovery, suspected: Suspects | None) -> str:
    if suspected is None or suspected.ranks == (recovery.cause.rank,):
        return subject(recovery.cause) or "not known"
    return suspected.place


def _strategy(job: Job, recovery: Recovery) -> str:
    """A coordinator chooses it when it forms the next round. So a recovery may end without one."""
    if recovery.strategy:
        return recovery.strategy
    if not recovery.is_open:
        ends = {"Failed": "none: the job has failed", "Suspended": "none: the job was suspended"}
        return ends.get(recovery.outcome, "not known")
    if _lacks_pods(job):
        return "none yet: no pod is available for the lost ranks"
    return "none yet: the next round has not begun"


def _lacks_pods(job: Job) -> bool:
    """Whether ranks have no pod."""
    return job.members_active < job.members_desired


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


def _first_steps(job: Job, program: str) -> tuple[str, ...]:
    found = [] if job.phase else [f"check the operator: {program} doctor"]
    if job.is_true("Failed"):
        found.append(f"read the order of events: {program} timeline {job.name}")
    return tuple(found)


def _next_steps(job: Job, newest: Recovery, suspected: Suspects | None, program: str) -> tuple[str, ...]:
    found: list[str] = []
    name = job.name
    rank = suspected.ranks[0] if suspected else newest.cause.rank
    if rank is not None and newest.fault in ("Process", "Hang"):
        # The log of the failed worker is that of the round before.
        before = "" if not newest.round else f" --round {newest.round - 1}"
        found.append(f"read the worker's log: {program} logs {name} --rank {rank}{before}")
    if newest.fault == "Hang":
        found.append(f"compare the stacks of all ranks: {program} stacks {name}")
    if is_timeout(newest):
        found.append(
            "get the stacks of all ranks next time: set faults.hang.stepTimeout below the timeout of collectives"
        )
    if newest.fault == "Node" and newest.cause.node:
        found.append(f"check node {newest.cause.node}: {program} nodes")
    if newest.is_open and not newest.strategy and _lacks_pods(job):
        found.append("free a node, or add spares: no pod can take the lost ranks")
    if newest.strategy == "PodRecreate":
        found.append("add a spare: without one, ranks wait for a new pod (spec.spares)")
    return (*found, *_first_steps(job, program))

"""`get`: jobs in a table, and one job as a tree of its pods and faults. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from understudy_cli.facts import INJECTED_JOB, Condition, Job, Pod, Recovery
from understudy_cli.views.phrases import NONE, age, fault_line
from understudy_protocol import pod as names

#: Faults that a tree shows, the newest first.
FAULTS = 5
#: Pods that a tree shows: those in trouble, the coordinator and spares first.
PODS = 50


@dataclass(frozen=True)
class JobRow:
    """step: such as 120/5000, or `120 in round` if it is counted from the start of the round.

    recoveries: of all strategies. snapshot: the newest ones in memory; "" if it has none.
    """

    namespace: str
    name: str
    kind: str
    phase: str
    ready: str
    spares: str
    round: str
    step: str
    recoveries: int
    last_fault: str
    age: str
    coordinator: str
    target: str
    snapshot: str


@dataclass(frozen=True)
class PodRow:
    """ranks: such as 0-7; `spare` for a pod without ranks."""

    ranks: str
    name: str
    node: str
    state: str
    is_ready: bool
    is_coordinator: bool
    age: str
    message: str


@dataclass(frozen=True)
class FaultRow:
    ago: str
    text: str
    is_open: bool


@dataclass(frozen=True)
class JobTree:
    job: JobRow
    pods: tuple[PodRow, ...]
    more_pods: int
    faults: tuple[FaultRow, ...]
    more_faults: int
    notes: tuple[str, ...]


def job_rows(jobs: Iterable[Job], now: float) -> tuple[JobRow, ...]:
    """By namespace and name."""
    return tuple(job_row(job, now) for job in sorted(jobs, key=lambda job: (job.namespace, job.name)))


def job_row(job: Job, now: float) -> JobRow:
    return JobRow(
        namespace=job.namespace,
        name=job.name,
        kind=job.kind,
        phase=job.phase or NONE,
        ready=f"{job.members_ready}/{job.members_desired}",
        spares=f"{job.spares_ready}/{job.spares_desired}",
        round=NONE if job.round is None else str(job.round),
        step=_step(job),
        recoveries=sum(job.recoveries_by_strategy),
        last_fault=_last_fault(job.last_recovery, now),
        age=age(job.created_at, now),
        coordinator=job.coordinator or NONE,
        target=job.target if job.kind == INJECTED_JOB else "",
        snapshot=_snapshot(job, now),
    )


def _snapshot(job: Job, now: float) -> str:
    """The newest snapshots in memory of a job that trains."""
    if job.snapshot is None or not job.is_training:
        return ""
    own, copied = job.snapshot, job.copied_snapshot
    text = f"step {own.step}, {age(own.at, now)} old"
    return text if copied is None else f"{text}; copied: step {copied.step}, {age(copied.at, now)} old"


def _step(job: Job) -> str:
    if job.step is None:
        return NONE
    if job.is_step_counted:
        return f"{job.step} in round"
    return str(job.step) if job.total_steps is None else f"{job.step}/{job.total_steps}"


def job_tree(
    job: Job, pods: Iterable[Pod], recoveries: Sequence[Recovery], now: float, limit: int | None = PODS
) -> JobTree:
    """pods: of this job. recoveries: the oldest first. limit: of the pods; None: all."""
    newest = list(reversed(recoveries))
    found = list(pods)
    shown = sorted(found, key=lambda pod: (_is_unremarkable(pod), *_order(pod)))[:limit]
    return JobTree(
        job=job_row(job, now),
        pods=tuple(_pod_row(pod, now) for pod in sorted(shown, key=_order)),
        more_pods=len(found) - len(shown),
        faults=tuple(
            FaultRow(age(recovery.detected_at, now), fault_line(recovery, now), recovery.is_open)
            for recovery in newest[:FAULTS]
        ),
        more_faults=max(0, max(len(newest), sum(job.recoveries_by_strategy)) - FAULTS),
        notes=notes(job),
    )


def notes(job: Job) -> tuple[str, ...]:
    """The messages of conditions that need attention: the job does not train, is slow, or lacks pods or spares."""
    found = [
        f"{condition.type} ({condition.reason}): {condition.message}"
        for condition in job.conditions
        if condition.message and is_trouble(condition)
    ]
    return tuple(found)


def is_trouble(condition: Condition) -> bool:
    """Whether the job does not train, is slow, or lacks pods or spares."""
    kind, status, reason = condition.type, condition.status, condition.reason
    if kind in ("Invalid", "Blocked", "Failed", "SlowRank"):
        return status == "True"
    if kind == "Ready":
        return (status == "False" and reason != "Completed") or reason == "Shrunk"
    if kind == "PoolAvailable":
        return reason not in ("NoSpareNeeded", "SpareClaimed") and status == "False"
    return kind in ("SparesReady", "WorkersForked", "QuotaReserved") and status == "False"


def _last_fault(recovery: Recovery | None, now: float) -> str:
    if recovery is None:
        return NONE
    rank = "" if recovery.cause.rank is None else f" rank {recovery.cause.rank}"
    ago = "" if recovery.detected_at is None else f" {age(recovery.detected_at, now)} ago"
    return f"{recovery.fault}{rank}{ago}"


def _pod_row(pod: Pod, now: float) -> PodRow:
    return PodRow(
        ranks=ranks_of(pod),
        name=pod.name,
        node=pod.node or NONE,
        state=pod.state,
        is_ready=pod.is_ready,
        is_coordinator=pod.is_coordinator,
        age=age(pod.created_at, now),
        message=pod.message,
    )


def _is_unremarkable(pod: Pod) -> bool:
    return (pod.is_ready or pod.has_ended) and not pod.is_coordinator and pod.role != names.ROLE_SPARE


def ranks_of(pod: Pod) -> str:
    if pod.role == names.ROLE_SPARE or pod.pool:
        return "spare"
    if pod.group_rank is None or pod.has_ended:
        return NONE
    if pod.ranks is None:
        return f"group {pod.group_rank}"
    first, last = pod.ranks[0], pod.ranks[-1]
    return f"{first}" if first == last else f"{first}-{last}"


def _order(pod: Pod) -> tuple[bool, bool, int, str]:
    """Pods with ranks first, then spares, then pods that have ended."""
    return pod.has_ended, pod.group_rank is None, pod.group_rank or 0, pod.name

"""The pages of the dashboard, and the changes from one moment to the next. Pure.

A page has sections, and a section has rows by their keys. Rows of jobs, pods and faults have times and no ages, so a
row changes only if something has happened. The browser computes the ages.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from understudy_cli.facts import TRAINING_JOB, Fleet, Job, Pod, Recovery, SavedSnapshot
from understudy_cli.reading import recoveries_of
from understudy_cli.views import goodput, jobs, nodes, spares, timeline
from understudy_cli.views.causes import explained
from understudy_cli.views.phrases import precise
from understudy_protocol.goodput import FIELDS, STEPPING

#: The newest faults and entries of the history that a page has. A job keeps 200 Recoveries by default.
FAULTS, ENTRIES = 200, 500
#: Lanes of ranks in the picture of a job: those with the newest faults.
LANES = 16
#: Strategies that give the ranks to another pod.
_MOVES = ("SpareSwap", "PodRecreate", "JobRestart")

Page = Mapping[str, Mapping[str, object]]


@dataclass(frozen=True)
class PageAddress:
    """The page that a browser shows. view: fleet, job, spares or nodes. namespace, name: of a job."""

    view: str
    namespace: str = ""
    name: str = ""


@dataclass(frozen=True)
class DashboardState:
    """The state of the program itself. is_complete: all kinds were listed. warnings: why something is missing or
    old.
    """

    is_complete: bool
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class JobLine:
    """step, total, recoveries: numbers, for the order of a table. fault: the newest one, without its age.

    snapshot, copied_snapshot: of a job that trains.
    """

    namespace: str
    name: str
    kind: str
    phase: str
    ready: str
    spares: str
    round: str
    step: int | None
    is_step_counted: bool
    total_steps: int | None
    snapshot: SavedSnapshot | None
    copied_snapshot: SavedSnapshot | None
    recoveries: int
    fault: str
    fault_at: float | None
    coordinator: str
    target: str
    created_at: float | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Span:
    """When a job trained. more_faults, more_lanes: the number that the page does not have."""

    started_at: float | None
    ended_at: float | None
    more_faults: int
    more_lanes: int


@dataclass(frozen=True)
class LossLine:
    """by: fault or node. name: "" if the node is not known. device_seconds: of all workers together."""

    by: str
    name: str
    seconds: float
    device_seconds: float


@dataclass(frozen=True)
class GoodputLine:
    """The parts of a job's time until `since`, in Unix seconds. The browser adds the time from then on.

    seconds: of each part, in the order of the bar. part: the current one; "" after the end of the job. is_stepping:
    this part runs until stepped_at, and the part of the time since then is not known yet. unit: of lost time times
    devices.
    """

    seconds: Mapping[str, float]
    meanings: Mapping[str, str]
    part: str
    is_stepping: bool
    since: float
    stepped_at: float | None
    unit: str
    note: str


@dataclass(frozen=True)
class PodLine:
    """place: 0 for a pod with ranks, 1 for a spare, 2 for a pod that has ended."""

    ranks: str
    name: str
    node: str
    state: str
    is_ready: bool
    is_coordinator: bool
    place: int
    group: int
    created_at: float | None
    message: str


@dataclass(frozen=True)
class FaultLine:
    """first: the place of the first failure. pause: as text. ended_at: None if the pause lasts until the end of the
    job, or until now. No object has the time of a suspension, so a recovery that ended with one has no length.
    """

    at: float | None
    ended_at: float | None
    fault: str
    first: str
    symptom: str
    strategy: str
    reason: str
    pause_s: float | None
    pause: str
    restored: str
    lost: str
    lost_steps: int | None
    round: int | None
    is_open: bool
    outcome: str
    traceback: tuple[str, ...]
    consequences: tuple[str, ...]


@dataclass(frozen=True)
class LaneHolder:
    """A pod that has the ranks of a lane, from start (None: not known) to end (None: it has them now)."""

    pod: str
    node: str
    start: float | None
    end: float | None


@dataclass(frozen=True)
class Lane:
    """The ranks of one pod, and the pods that have had them, the oldest first. faults: their times and kinds."""

    ranks: str
    group: int
    holders: tuple[LaneHolder, ...]
    faults: tuple[tuple[float, str], ...]


def page(fleet: Fleet, address: PageAddress, now: float) -> Page:
    """A job that does not exist has no rows."""
    match address.view:
        case "job":
            found = _job_page(fleet, address.namespace, address.name)
        case "spares":
            found = _spares_page(fleet, now)
        case "nodes":
            rows = nodes.node_rows(fleet.jobs, fleet.pods, fleet.nodes, now)
            found = {"nodes": {row.name: row for row in rows}}
        case _:
            found = {"jobs": {f"{job.namespace}/{job.name}": _job_line(job) for job in fleet.jobs}}
    return {"state": {"": DashboardState(fleet.is_complete, fleet.warnings)}, **found}


def _spares_page(fleet: Fleet, now: float) -> Page:
    shown = spares.spares(fleet.jobs, fleet.pools, fleet.pods, now)
    return {
        "owners": {f"{row.namespace}/{row.kind}/{row.owner}": row for row in shown.owners},
        "spares": {f"{row.namespace}/{row.name}": row for row in shown.pods},
    }


# One job --------------------------------------------------------------------------------------------------------------


def _job_page(fleet: Fleet, namespace: str, name: str) -> Page:
    job = next((job for job in fleet.jobs if (job.namespace, job.name) == (namespace, name)), None)
    if job is None:
        return {}
    pods = [pod for pod in fleet.pods if _is_of(pod, job)]
    recoveries = recoveries_of(job, fleet.recoveries)
    newest = recoveries[-FAULTS:]
    history = timeline.timeline(job, newest, (event for event in fleet.events if event.about_uid == job.uid))
    shown = lanes(job, pods, recoveries)
    more = max(len(recoveries), sum(job.recoveries_by_strategy)) - len(newest)
    return {
        "job": {"": _job_line(job)},
        "span": {"": Span(job.started_at, job.completed_at, more, max(0, len(shown) - LANES))},
        "goodput": _goodput(job),
        "lost": {f"{by} {row.name}": LossLine(by, row.name, row.seconds, row.device_seconds) for by, row in _lost(job)},
        "pods": {pod.name: _pod_line(pod) for pod in pods},
        "faults": _keyed((f"{recovery.detected_at}", _fault_line(job, recovery)) for recovery in newest),
        "lanes": {str(lane.group): lane for lane in sorted(shown[:LANES], key=lambda lane: lane.group)},
        "history": _keyed((f"{entry.at} {entry.kind}", entry) for entry in history[-ENTRIES:]),
    }


def _is_of(pod: Pod, job: Job) -> bool:
    """As Job.pod_selector has it: a job may have the name of a deleted one, whose pods remain for a while."""
    if pod.namespace != job.namespace or pod.pool:
        return False
    return pod.job_uid == job.uid if job.kind == TRAINING_JOB else pod.job == job.name


def _keyed(rows: Iterable[tuple[str, object]]) -> dict[str, object]:
    """Rows of the same time get keys of their own."""
    found: dict[str, object] = {}
    for key, row in rows:
        free, number = key, 1
        while free in found:
            number += 1
            free = f"{key} {number}"
        found[free] = row
    return found


def _job_line(job: Job) -> JobLine:
    row = jobs.job_row(job, 0.0)  # without its ages
    last = job.last_recovery
    rank = "" if last is None or last.cause.rank is None else f" rank {last.cause.rank}"
    return JobLine(
        namespace=job.namespace,
        name=job.name,
        kind=job.kind,
        phase=row.phase,
        ready=row.ready,
        spares=row.spares,
        round=row.round,
        step=job.step,
        is_step_counted=job.is_step_counted,
        total_steps=job.total_steps,
        snapshot=job.snapshot if job.is_training else None,
        copied_snapshot=job.copied_snapshot if job.is_training else None,
        recoveries=row.recoveries,
        fault="" if last is None else f"{last.fault}{rank}",
        fault_at=None if last is None else last.detected_at,
        coordinator=row.coordinator,
        target=row.target,
        created_at=job.created_at,
        notes=jobs.notes(job),
    )


def _goodput(job: Job) -> dict[str, object]:
    """Without a row if the job has no account."""
    account = job.goodput
    if account is None:
        return {}
    shown = goodput.job_goodput(job, account.since)
    line = GoodputLine(
        seconds={field: account.seconds.get(field, 0.0) for field in FIELDS},
        meanings=goodput.MEANINGS,
        part="" if account.part is None else account.part.field,
        is_stepping=account.part in STEPPING,
        since=account.since,
        stepped_at=job.stepped_at,
        unit=shown.unit,
        note=shown.job.note,
    )
    return {"": line}


def _lost(job: Job) -> Iterator[tuple[str, goodput.LostRow]]:
    shown = goodput.job_goodput(job, 0.0)
    for by, lost in (("fault", shown.lost_by_fault), ("node", shown.lost_by_node)):
        yield from ((by, row) for row in lost)


def _pod_line(pod: Pod) -> PodLine:
    is_spare = pod.group_rank is None
    return PodLine(
        ranks=jobs.ranks_of(pod),
        name=pod.name,
        node=pod.node,
        state=pod.state,
        is_ready=pod.is_ready,
        is_coordinator=pod.is_coordinator,
        place=2 if pod.has_ended else 1 if is_spare else 0,
        group=-1 if pod.group_rank is None else pod.group_rank,
        created_at=pod.created_at,
        message=pod.message,
    )


def _fault_line(job: Job, recovery: Recovery) -> FaultLine:
    shown = explained(job, recovery, 0.0)  # without its ages
    return FaultLine(
        at=recovery.detected_at,
        ended_at=recovery.detected_at if recovery.outcome in ("Suspended", "Unknown") else recovery.ended_at,
        fault=shown.fault,
        first=shown.place,
        symptom=shown.symptom,
        strategy=shown.strategy,
        reason=shown.reason,
        pause_s=recovery.pause_s,
        pause="" if recovery.pause_s is None else precise(recovery.pause_s),
        restored=shown.restored,
        lost=shown.lost,
        lost_steps=recovery.lost_steps,
        round=recovery.round,
        is_open=recovery.is_open,
        outcome=recovery.outcome,
        traceback=shown.traceback,
        consequences=shown.consequences,
    )


# Lanes ----------------------------------------------------------------------------------------------------------------


def lanes(job: Job, pods: Sequence[Pod], recoveries: Sequence[Recovery]) -> tuple[Lane, ...]:
    """The ranks that had faults, those with the newest fault first. recoveries: the oldest first.

    A recovery names the pod that failed. So the pod of the next fault of the same ranks, or their current pod, is the
    pod that took them. All other ranks have the pod that they began with.
    """
    nproc = max((pod.nproc for pod in pods), default=0) or 1
    current = {pod.group_rank: pod for pod in pods if pod.group_rank is not None and not pod.has_ended}
    faults: dict[int, list[Recovery]] = {}
    for recovery in recoveries:
        if recovery.cause.rank is not None and recovery.cause.pod and recovery.detected_at is not None:
            faults.setdefault(recovery.cause.rank // nproc, []).append(recovery)
    found = [_lane(job, group, nproc, of_lane, current.get(group)) for group, of_lane in faults.items()]
    return tuple(sorted(found, key=lambda lane: -lane.faults[-1][0]))


def _lane(job: Job, group: int, nproc: int, faults: Sequence[Recovery], holder: Pod | None) -> Lane:
    found: list[LaneHolder] = []
    start = job.started_at
    for recovery in faults:
        if recovery.strategy in _MOVES:
            found.append(LaneHolder(recovery.cause.pod, recovery.cause.node, start, recovery.detected_at))
            start = recovery.ended_at if recovery.ended_at is not None else recovery.detected_at
    last = faults[-1]
    if job.completed_at is not None and last.strategy not in _MOVES:
        found.append(LaneHolder(last.cause.pod, last.cause.node, start, job.completed_at))
    elif holder is not None and not (last.is_open and holder.name == last.cause.pod and last.strategy in _MOVES):
        found.append(LaneHolder(holder.name, holder.node, start, job.completed_at))
    first = group * nproc
    ranks = f"rank {first}" if nproc == 1 else f"ranks {first}-{first + nproc - 1}"
    times = tuple((recovery.detected_at, recovery.fault) for recovery in faults if recovery.detected_at is not None)
    return Lane(ranks, group, tuple(found), times)


# Changes --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Changes:
    """Rows that are new or different, and the keys of rows that are gone, by section."""

    set: Mapping[str, Mapping[str, object]]
    gone: Mapping[str, Sequence[str]]


def changes(before: Page, after: Page, most: int) -> Iterator[Changes]:
    """All that has changed, in parts of at most so many rows: a browser reads one part without a stall."""
    gone = {name: [key for key in rows if key not in after.get(name, {})] for name, rows in before.items()}
    gone = {name: keys for name, keys in gone.items() if keys}
    part: dict[str, dict[str, object]] = {}
    count = 0
    for name, rows in after.items():
        known = before.get(name, {})
        for key, row in rows.items():
            if known.get(key) == row:
                continue
            part.setdefault(name, {})[key] = row
            count += 1
            if count == most:
                yield Changes(part, gone)
                part, gone, count = {}, {}, 0
    if part or gone:
        yield Changes(part, gone)

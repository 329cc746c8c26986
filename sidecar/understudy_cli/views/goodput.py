"""`goodput`: the parts of the time of jobs, and the cost of faults by cause and by node. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from understudy_cli.facts import Job, LostTime
from understudy_cli.views.phrases import NONE
from understudy_protocol.goodput import FIELDS, LOST, SINCE_LAST_STEP, Part, ettr, parts_at

MEANINGS = {
    Part.PRODUCTIVE.field: "new steps",
    Part.REPEATED.field: "steps made again after a restore",
    Part.DETECTION.field: "from the last step before a fault to its detection",
    Part.RESTART.field: "from there to the next step",
    Part.CAPACITY.field: "the same, while no pod could take a vacant rank",
    Part.STARTING.field: "before the first step, and after a suspension",
    Part.SUSPENDED.field: "the job was suspended, or waited for quota in a queue",
    Part.ENDING.field: "after the last step of the job",
    Part.WITHOUT_STEPS.field: "all workers ran, and the script has never reported a step",
    Part.UNKNOWN.field: "no operator observed the job, and its coordinator was lost",
    SINCE_LAST_STEP: "since the newest step in status: the next step decides",
}
NO_ACCOUNT = "no account: the job has no launcher, or the operator has not written its status yet"
NO_STEPS = "productive time is not known: the script has reported no step. Call understudy_torch.step() in each step"
REPEATED_UNKNOWN = (
    "repeated steps are not known, and productive time may contain some: the steps of a round are counted from its "
    "start. Call understudy_torch.step() in each step"
)


@dataclass(frozen=True)
class GoodputRow:
    """Seconds. ettr: productive of all; None if no step was reported. lost: to faults. other: all other time.

    part: the current one; "" after the end of the job.
    """

    namespace: str
    name: str
    phase: str
    ettr: float | None
    wall_seconds: float
    productive_seconds: float
    lost_seconds: float
    other_seconds: float
    part: str
    note: str


@dataclass(frozen=True)
class PartRow:
    """share: of the wall time."""

    part: str
    seconds: float
    share: float
    meaning: str


@dataclass(frozen=True)
class LostRow:
    """name: a fault or a node; "" if the node is not known. device_seconds: of all workers together."""

    name: str
    seconds: float
    device_seconds: float


@dataclass(frozen=True)
class JobGoodput:
    """unit: of device_seconds."""

    job: GoodputRow
    parts: tuple[PartRow, ...]
    unit: str
    lost_by_fault: tuple[LostRow, ...]
    lost_by_node: tuple[LostRow, ...]


def goodput_rows(jobs: Iterable[Job], now: float) -> tuple[GoodputRow, ...]:
    """By namespace and name."""
    return tuple(_row(job, _parts(job, now)) for job in sorted(jobs, key=lambda job: (job.namespace, job.name)))


def job_goodput(job: Job, now: float) -> JobGoodput:
    parts = _parts(job, now)
    wall_s = sum(parts.values())
    shown = [PartRow(x, round(parts[x], 3), round(parts[x] / wall_s, 4), MEANINGS[x]) for x in FIELDS if parts.get(x)]
    lost = () if job.goodput is None else job.goodput.lost
    return JobGoodput(
        job=_row(job, parts),
        parts=tuple(shown),
        unit="GPU-seconds" if any(entry.gpu_seconds is not None for entry in lost) else "rank-seconds",
        lost_by_fault=_sums((entry.fault, entry) for entry in lost),
        lost_by_node=_sums((entry.node, entry) for entry in lost),
    )


def _row(job: Job, parts: Mapping[str, float]) -> GoodputRow:
    wall_s, productive_s = sum(parts.values()), parts.get(Part.PRODUCTIVE.field, 0.0)
    lost_s = sum(parts.get(part.field, 0.0) for part in LOST)
    ratio = ettr(parts) if parts else None
    part = None if job.goodput is None else job.goodput.part
    return GoodputRow(
        namespace=job.namespace,
        name=job.name,
        phase=job.phase or NONE,
        ettr=None if ratio is None else round(ratio, 4),
        wall_seconds=round(wall_s, 3),
        productive_seconds=round(productive_s, 3),
        lost_seconds=round(lost_s, 3),
        other_seconds=round(wall_s - productive_s - lost_s, 3),
        part="" if part is None else part.value,
        note=_note(job, parts),
    )


def _note(job: Job, parts: Mapping[str, float]) -> str:
    if not parts:
        return NO_ACCOUNT
    if parts[Part.WITHOUT_STEPS.field]:
        return NO_STEPS
    return REPEATED_UNKNOWN if job.goodput is not None and job.goodput.is_repeated_unknown else ""


def _parts(job: Job, now: float) -> Mapping[str, float]:
    """Empty if the job has no account."""
    goodput = job.goodput
    if goodput is None:
        return {}
    return parts_at(goodput.seconds, goodput.part, goodput.since, job.stepped_at, now)


def _sums(entries: Iterable[tuple[str, LostTime]]) -> tuple[LostRow, ...]:
    """By name, the largest first."""
    found: dict[str, LostRow] = {}
    for name, entry in entries:
        before = found.get(name, LostRow(name, 0.0, 0.0))
        device_s = entry.gpu_seconds if entry.gpu_seconds is not None else entry.rank_seconds
        found[name] = LostRow(name, before.seconds + entry.seconds, before.device_seconds + (device_s or 0.0))
    rows = (LostRow(row.name, round(row.seconds, 3), round(row.device_seconds, 3)) for row in found.values())
    return tuple(sorted(rows, key=lambda row: (-row.device_seconds, row.name)))

"""Prometheus metrics of the job, from the coordinator's sidecar; other sidecars report that they do not coordinate.

In Prometheus' text format, without the client library, which costs each pod 6 MB of memory and 65 ms at its start.
Rules: no loop over members; counters begin at 0 with each term; no label has the name of an object: the scrape adds the
pod.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from understudy_protocol.enums import NO_ROUND, Fault
from understudy_protocol.launcher import SnapshotsStored
from understudy_sidecar.copy_commands import NO_STEP, CopyCounts
from understudy_sidecar.membership.coordinator import Coordinator
from understudy_sidecar.membership.round_state import RoundPhase

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
RENDEZVOUS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
#: Causes of a round that are no fault: the round is the job's first, or there was no fault (a member came back, say).
FIRST, NO_FAULT = "First", "None"
FAULTS = tuple(fault.value for fault in Fault)


@dataclass(frozen=True)
class MetricDescription:
    name: str
    kind: str  # Counter, Gauge or Histogram
    text: str
    labels: tuple[str, ...] = ()


IS_COORDINATOR = MetricDescription(
    "understudy_coordinator_is_leader", "Gauge", "1 in the pod of the job's coordinator, else 0."
)
MEMBERS = MetricDescription("understudy_coordinator_members", "Gauge", "Pods that are connected, spares included.")
WORLD_SIZE = MetricDescription(
    "understudy_coordinator_world_size", "Gauge", "Workers of the newest round; 0 before the first."
)
ROUND = MetricDescription(
    "understudy_coordinator_round", "Gauge", "The number of the newest round; -1 before the first."
)
STEP = MetricDescription(
    "understudy_coordinator_step",
    "Gauge",
    "The newest step of rank 0; absent if it has reported none. Of the running round if its steps are counted.",
)
ROUNDS = MetricDescription(
    "understudy_coordinator_rounds_total",
    "Counter",
    "Rounds that were formed, by the fault before them: First for a job's first one, None if there was no fault.",
    ("cause",),
)
RENDEZVOUS = MetricDescription(
    "understudy_coordinator_rendezvous_seconds",
    "Histogram",
    "From the end of a round until all members have the next one; for the first round, from the coordinator's start.",
)
FAULTS_REPORTED = MetricDescription(
    "understudy_coordinator_faults_total", "Counter", "Faults, by the kind that was detected first.", ("fault",)
)
COPIES = MetricDescription(
    "understudy_snapshot_copies_total",
    "Counter",
    "Snapshots of this pod's ranks: Copied to the pods that keep its copies, Skipped because a newer one was saved "
    "while another copy was on its way, or Failed because such a pod could not be reached.",
    ("result",),
)
COPIED_BYTES = MetricDescription(
    "understudy_snapshot_copied_bytes_total", "Counter", "Bytes of copies that were sent to other pods."
)
COPIED_STEP = MetricDescription(
    "understudy_snapshot_copied_step",
    "Gauge",
    "The newest step that another pod has copied from all ranks of this pod. Absent before the first one.",
)
COPIED_AT = MetricDescription(
    "understudy_snapshot_copied_timestamp_seconds",
    "Gauge",
    "When these copies were complete, in seconds since 1970: their age is time() minus this. In a job, the oldest "
    "copies count: the minimum.",
)
STORED = MetricDescription(
    "understudy_snapshot_storage_writes_total",
    "Counter",
    "Snapshots of this pod's ranks: Written to spec.snapshots.storage, or Failed. Absent before the first one.",
    ("result",),
)
STORED_STEP = MetricDescription(
    "understudy_snapshot_storage_step",
    "Gauge",
    "The newest step on storage with the files of all ranks. Only pods that have or had rank 0 report it: the step of "
    "a job is the maximum.",
)
STORED_AT = MetricDescription(
    "understudy_snapshot_storage_timestamp_seconds",
    "Gauge",
    "When that step was found to be complete, in seconds since 1970: its age is time() minus the job's maximum.",
)
DESCRIBED = (
    IS_COORDINATOR,
    MEMBERS,
    WORLD_SIZE,
    ROUND,
    STEP,
    ROUNDS,
    RENDEZVOUS,
    FAULTS_REPORTED,
    COPIES,
    COPIED_BYTES,
    COPIED_STEP,
    COPIED_AT,
    STORED,
    STORED_STEP,
    STORED_AT,
)


class CoordinatorMetrics:
    def __init__(self) -> None:
        self._coordinator: Coordinator | None = None
        self._begin(None)

    def _begin(self, coordinator: Coordinator | None) -> None:
        self._coordinator = coordinator
        self._newest = NO_ROUND if coordinator is None else coordinator.token
        self._ended_at: float | None = None if coordinator is None else coordinator.state.since
        self._rounds = Counter[str]()
        self._buckets = [0] * (len(RENDEZVOUS_S) + 1)
        self._sum_s = 0.0

    def update(self, coordinator: Coordinator, now: float) -> None:
        """Call after each event that the coordinator has handled."""
        if coordinator is not self._coordinator:
            self._begin(coordinator)
        state = coordinator.state
        if state.round.phase in (RoundPhase.REBUILDING, RoundPhase.WAITING):
            self._ended_at = now if self._ended_at is None else self._ended_at
            return
        if coordinator.token != self._newest:
            self._newest = coordinator.token
            if self._newest_round(coordinator):
                self._rounds[self._cause(coordinator)] += 1
                self._ended_at = now if self._ended_at is None else self._ended_at  # it broke and recovered at once
            else:
                self._ended_at = None  # a previous coordinator's round, which trains on
        if state.round.phase is RoundPhase.RUNNING and self._ended_at is not None and not state.roster.unacked:
            self._observe_rendezvous(now - self._ended_at)
            self._ended_at = None

    def text(self, coordinator: Coordinator | None) -> bytes:
        """The current metrics; coordinator: None if this sidecar is not the coordinator."""
        return ("\n".join(self._lines(coordinator)) + "\n").encode()

    def _newest_round(self, coordinator: Coordinator) -> bool:
        token, term = coordinator.token, coordinator.term
        return (token.epoch, token.term) == (term.epoch, term.number)

    def _cause(self, coordinator: Coordinator) -> str:
        open_recoveries = coordinator.state.recovery_log.open
        if open_recoveries:
            return open_recoveries[-1].fault.value
        return FIRST if coordinator.token.round == 0 else NO_FAULT

    def _observe_rendezvous(self, seconds: float) -> None:
        self._buckets[bisect_left(RENDEZVOUS_S, seconds)] += 1
        self._sum_s += seconds

    def _lines(self, coordinator: Coordinator | None) -> Iterator[str]:
        yield from _plain(IS_COORDINATOR, 0 if coordinator is None else 1)
        if coordinator is None:
            return
        if coordinator is not self._coordinator:
            self._begin(coordinator)
        state = coordinator.state
        trained = coordinator.token.round >= 0
        yield from _plain(MEMBERS, len(state.roster.connected))
        yield from _plain(WORLD_SIZE, state.round.size * state.shape.nproc_per_node if trained else 0)
        yield from _plain(ROUND, coordinator.token.round)
        if state.progress is not None:
            yield from _plain(STEP, state.progress.step)
        yield from _counted(ROUNDS, (FIRST, *FAULTS, NO_FAULT), self._rounds)
        yield from self._histogram()
        yield from _counted(FAULTS_REPORTED, FAULTS, state.recovery_log.begun)

    def _histogram(self) -> Iterator[str]:
        yield from _head(RENDEZVOUS)
        below = 0
        for bound, count in zip((*map(str, RENDEZVOUS_S), "+Inf"), self._buckets, strict=True):
            below += count
            yield f'{RENDEZVOUS.name}_bucket{{le="{bound}"}} {below}'
        yield f"{RENDEZVOUS.name}_sum {self._sum_s:.6f}"
        yield f"{RENDEZVOUS.name}_count {below}"


def text_of(counts: CopyCounts) -> bytes:
    """The metrics of a pod that has copies of its snapshots."""
    by_result = {"Copied": counts.copied, "Skipped": counts.skipped, "Failed": counts.failed}
    lines = [*_counted(COPIES, tuple(by_result), by_result), *_plain(COPIED_BYTES, counts.copied_bytes)]
    if counts.step != NO_STEP:
        lines += [*_plain(COPIED_STEP, counts.step), *_plain(COPIED_AT, int(counts.at))]
    return ("\n".join(lines) + "\n").encode()


def text_of_stored(stored: SnapshotsStored | None) -> bytes:
    """The metrics of a pod whose snapshots are written to storage."""
    if stored is None:
        return b""
    by_result = {"Written": stored.written, "Failed": stored.failed}
    lines = [*_counted(STORED, tuple(by_result), by_result)]
    if stored.step is not None:
        lines += [*_plain(STORED_STEP, stored.step), *_plain(STORED_AT, int(stored.at))]
    return ("\n".join(lines) + "\n").encode()


def _head(what: MetricDescription) -> Iterator[str]:
    yield f"# HELP {what.name} {what.text}"
    yield f"# TYPE {what.name} {what.kind.lower()}"


def _plain(what: MetricDescription, value: int) -> Iterator[str]:
    yield from _head(what)
    yield f"{what.name} {value}"


def _counted(what: MetricDescription, values: Iterable[str], counts: Mapping[str, int]) -> Iterator[str]:
    yield from _head(what)
    (label,) = what.labels
    for value in values:
        yield f'{what.name}{{{label}="{value}"}} {counts.get(value, 0)}'

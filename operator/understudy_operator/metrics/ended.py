"""Counts recoveries that have ended and weight updates that have failed, with the status write that records them. Pure.

Rules: a status write replaces the version that was read, or fails. So only that write has added the new facts in it,
and over all replicas and restarts its writer counts each end once. A write without an answer may have been done: its
ends are counted once the job's status shows them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from understudy_operator.plan.facts.recoveries import identified
from understudy_operator.plan.facts.status import JobStatus, RecoveryStatus

#: For a recovery of a job that ended before the ladder took a step.
NO_STRATEGY = "None"
RECOVERED, FAILED = "Recovered", "Failed"

Identity = tuple[str, int]


@dataclass(frozen=True)
class EndedRecovery:
    """A recovery. seconds: as in status; None if no step was reported."""

    fault: str
    strategy: str
    outcome: str
    seconds: float | None
    restored_from: str | None = None  # the tier; None: the job has no snapshots
    lost_steps: int | None = None  # None: not known


@dataclass(frozen=True)
class Ends:
    """The ends in one write."""

    recoveries: tuple[EndedRecovery, ...] = ()
    failed_updates: int = 0


def ends(before: JobStatus, after: JobStatus) -> Ends:
    return Ends(tuple(_recoveries(before, after)), int(after.new_update_failure(before) is not None))


def _recoveries(before: JobStatus, after: JobStatus) -> Iterator[EndedRecovery]:
    known = identified(before.recoveries)
    lost = after.terminal_state == FAILED != before.terminal_state
    for identity, entry in identified(after.recoveries).items():
        if identity in known and not known[identity].is_open:
            continue
        if not entry.is_open:
            yield _ended(entry, RECOVERED, entry.pause_seconds)
        elif lost:
            yield _ended(entry, FAILED, None)


def _ended(entry: RecoveryStatus, outcome: str, seconds: float | None) -> EndedRecovery:
    strategy, lost_steps = entry.strategy or NO_STRATEGY, entry.lost_steps
    return EndedRecovery(entry.fault.value, strategy, outcome, seconds, entry.restored_from, lost_steps)


@dataclass(frozen=True)
class _Write:
    version: str  # the job's version that it replaces
    before: JobStatus
    after: JobStatus


class EndCounter:
    """Remembers which ends of one job were counted."""

    def __init__(self) -> None:
        self._sent: _Write | None = None  # without an answer
        self._again = False  # an earlier write was sent and got no answer

    def on_read(self, version: str, status: JobStatus) -> Ends:
        """The job's current version. Returns the ends of a write without an answer, if it was done."""
        sent = self._sent
        if sent is None or sent.version == version:
            return Ends()
        self._sent = None
        confirmed, expected = ends(sent.before, status), ends(sent.before, sent.after)
        recoveries = tuple(ended for ended in expected.recoveries if ended in confirmed.recoveries)
        return Ends(recoveries, min(confirmed.failed_updates, expected.failed_updates))

    def on_write(self, version: str, before: JobStatus, after: JobStatus) -> None:
        """Called before a write is sent."""
        self._again = self._sent is not None
        self._sent = _Write(version, before, after)

    def on_written(self, *, done: bool) -> Ends:
        """The write was answered. A conflict may be caused by an earlier write that got no answer."""
        sent, self._sent = self._sent, self._sent if self._again and not done else None
        return ends(sent.before, sent.after) if done and sent is not None else Ends()

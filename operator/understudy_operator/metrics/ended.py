"""What a written status has brought to an end: recoveries, and weight updates that failed. Pure.

Rules: a status is written over the state that was read, or not at all, so what is new in it was brought about by this
write alone: over all replicas and restarts each end is counted by whoever wrote it, once. A write without an answer may
have been done: what it would have ended is counted once the job's status is seen to tell it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from understudy_operator.plan.recoveries import Entry, identified, is_open

#: Of a recovery for which the job ended before any rung of the ladder was taken.
NO_STRATEGY = "None"
RECOVERED, FAILED = "Recovered", "Failed"

Status = Mapping[str, Any]
Identity = tuple[str, int]


@dataclass(frozen=True)
class EndedRecovery:
    """A recovery. seconds: as in status; None if no step was reported."""

    fault: str
    strategy: str
    outcome: str
    seconds: float | None


@dataclass(frozen=True)
class Ends:
    """In one write."""

    recoveries: tuple[EndedRecovery, ...] = ()
    failed_updates: int = 0


def ends(before: Status, after: Status) -> Ends:
    failure = after.get("rollouts", {}).get("failure", {})
    known = before.get("rollouts", {}).get("failure", {})
    failed = bool(failure) and failure.get("update") != known.get("update")
    return Ends(tuple(_recoveries(before, after)), int(failed))


def _recoveries(before: Status, after: Status) -> Iterator[EndedRecovery]:
    known = identified(before.get("recoveries", ()))
    lost = after.get("terminalState") == FAILED != before.get("terminalState")
    for identity, entry in identified(after.get("recoveries", ())).items():
        if identity in known and not is_open(known[identity]):
            continue
        if not is_open(entry):
            yield _ended(entry, RECOVERED, float(entry["seconds"]) if "seconds" in entry else None)
        elif lost:
            yield _ended(entry, FAILED, None)


def _ended(entry: Entry, outcome: str, seconds: float | None) -> EndedRecovery:
    return EndedRecovery(entry["fault"], entry.get("strategy", NO_STRATEGY), outcome, seconds)


@dataclass(frozen=True)
class _Write:
    version: str  # of the job that it was written over
    before: Status
    after: Status


class EndCounter:
    """Of one job: which of its ends have been counted."""

    def __init__(self) -> None:
        self._sent: _Write | None = None  # that has had no answer
        self._again = False  # it was sent before, and had none then either

    def on_read(self, version: str, status: Status) -> Ends:
        """The job as it is now: what a write that had no answer has ended, if it was done."""
        sent = self._sent
        if sent is None or sent.version == version:
            return Ends()
        self._sent = None
        confirmed, expected = ends(sent.before, status), ends(sent.before, sent.after)
        recoveries = tuple(ended for ended in expected.recoveries if ended in confirmed.recoveries)
        return Ends(recoveries, min(confirmed.failed_updates, expected.failed_updates))

    def on_write(self, version: str, before: Status, after: Status) -> None:
        """A write is about to be sent."""
        self._again = self._sent is not None
        self._sent = _Write(version, before, after)

    def on_written(self, *, done: bool) -> Ends:
        """It was answered. One that was refused because the job has changed may be refused for the one before it."""
        sent, self._sent = self._sent, self._sent if self._again and not done else None
        return ends(sent.before, sent.after) if done and sent is not None else Ends()

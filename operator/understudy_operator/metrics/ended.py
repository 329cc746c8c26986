"""Counts recoveries that have ended and weight updates that have failed, with the status write that records them. Pure.

Rules: a status write replaces the version that was read, or fails. So only that write has added the new facts in it,
and over all replicas and restarts its writer counts each end once. A write without an answer may have been done: its
ends are counted once the job's status shows them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from understudy_operator.plan.facts.recoveries import Entry, identified, is_open

#: For a recovery of a job that ended before the ladder took a step.
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
    """The ends in one write."""

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
            yield _ended(entry, RECOVERED, float(entry["pauseSeconds"]) if "pauseSeconds" in entry else None)
        elif lost:
            yield _ended(entry, FAILED, None)


def _ended(entry: Entry, outcome: str, seconds: float | None) -> EndedRecovery:
    return EndedRecovery(entry["fault"], entry.get("strategy", NO_STRATEGY), outcome, seconds)


@dataclass(frozen=True)
class _Write:
    version: str  # the job's version that it replaces
    before: Status
    after: Status


class EndCounter:
    """Remembers which ends of one job were counted."""

    def __init__(self) -> None:
        self._sent: _Write | None = None  # without an answer
        self._again = False  # an earlier write was sent and got no answer

    def on_read(self, version: str, status: Status) -> Ends:
        """The job's current version. Returns the ends of a write without an answer, if it was done."""
        sent = self._sent
        if sent is None or sent.version == version:
            return Ends()
        self._sent = None
        confirmed, expected = ends(sent.before, status), ends(sent.before, sent.after)
        recoveries = tuple(ended for ended in expected.recoveries if ended in confirmed.recoveries)
        return Ends(recoveries, min(confirmed.failed_updates, expected.failed_updates))

    def on_write(self, version: str, before: Status, after: Status) -> None:
        """Called before a write is sent."""
        self._again = self._sent is not None
        self._sent = _Write(version, before, after)

    def on_written(self, *, done: bool) -> Ends:
        """The write was answered. A conflict may be caused by an earlier write that got no answer."""
        sent, self._sent = self._sent, self._sent if self._again and not done else None
        return ends(sent.before, sent.after) if done and sent is not None else Ends()

"""The steps of one round's workers: when the launcher reads them, and when it reports them to the sidecar.

Rules: a worker's first step is reported at once, because it ends a recovery. From then on the launcher reads all
workers' steps every READ_EVERY_S. The sidecar gets only the steps of the member's first worker: the first step of a
round at once, then the newest one at most every REPORT_EVERY_S, and the last one when the worker ends. The median is
that of the last INTERVALS intervals between steps of this round; 0.0 if there is none. A launcher that reads LATE_S too
late was stopped, and perhaps its workers too, so silence before that does not count. Pure: the caller passes the time.
"""

from collections import deque
from typing import Optional

from understudy_launcher.events import StepsRead
from understudy_protocol.enums import RoundToken
from understudy_protocol.launcher import Stepped

READ_EVERY_S = 0.25
REPORT_EVERY_S = 0.25
INTERVALS = 20
LATE_S = 3.0


class RoundSteps:
    """The newest step of each worker, by local rank.

    last_stepped_at: when a worker of an earlier round made its last step, by the caller's clock; None: none did.
    """

    def __init__(self, token: RoundToken, last_stepped_at: Optional[float] = None) -> None:
        self.newest: dict[int, StepsRead] = {}
        self._pace = StepPace(token, last_stepped_at)
        self._read_at: Optional[float] = None  # None while no worker has stepped
        self._last_read_at = 0.0  # the last read, or a worker's bell
        self._awake_since = 0.0

    def on_steps_read(self, read: StepsRead, now: float) -> Optional[Stepped]:
        """A report was read. Return the message to send now, or None."""
        self.newest[read.local_rank] = read
        if self._read_at is None:
            self._read_at, self._last_read_at, self._awake_since = now + READ_EVERY_S, now, now
        return self._pace.on_steps_read(read, now) if read.local_rank == 0 else None

    def due(self, now: float) -> Optional[Stepped]:
        """The message that is due by now, or None."""
        return self._pace.due(now)

    def ended(self, local_rank: int, now: float) -> Optional[Stepped]:
        """A worker has ended: return its last step if it is not reported yet."""
        return self._pace.last(now) if local_rank == 0 else None

    def is_due(self, now: float) -> bool:
        """Whether a read is due by now; the next one is due READ_EVERY_S later."""
        if self._read_at is None or now < self._read_at:
            return False
        if now >= self._read_at + LATE_S:
            self._awake_since = now
        self._read_at, self._last_read_at = now + READ_EVERY_S, now
        return True

    def silent_s(self, local_rank: int) -> float:
        """How long this worker had made no step at the last read."""
        return max(0.0, self._last_read_at - max(self.newest[local_rank].stepped_at, self._awake_since))

    def deadline(self) -> Optional[float]:
        """When the next read or report is due; None if none is."""
        return min((at for at in (self._read_at, self._pace.deadline()) if at is not None), default=None)


class StepPace:
    """The steps of one worker in one round."""

    def __init__(self, token: RoundToken, last_stepped_at: Optional[float] = None) -> None:
        self._token = token
        self._last_stepped_at = last_stepped_at
        self._pause_s: Optional[float] = None
        self._first_at = 0.0
        self._newest: Optional[StepsRead] = None
        self._read_at = 0.0
        self._intervals: deque[float] = deque(maxlen=INTERVALS)
        self._reported_at: Optional[float] = None
        self._unreported = False

    def on_steps_read(self, read: StepsRead, now: float) -> Optional[Stepped]:
        """A report was read. Return the message to send now, or None."""
        if self._newest is not None:
            each = max(0.0, read.stepped_at - self._newest.stepped_at) / read.reports
            self._intervals.extend([each] * min(read.reports, INTERVALS))
        else:
            self._first_at = read.stepped_at if read.first_at is None else read.first_at
            if self._last_stepped_at is not None:
                self._pause_s = max(0.0, self._first_at - self._last_stepped_at)
        self._newest, self._read_at, self._unreported = read, now, True
        return self.due(now)

    def due(self, now: float) -> Optional[Stepped]:
        """The message that is due by now, or None."""
        deadline = self.deadline()
        return None if deadline is None or now < deadline else self.last(now)

    def last(self, now: float) -> Optional[Stepped]:
        """The newest step, if it is not reported yet."""
        newest = self._newest
        if newest is None or not self._unreported:
            return None
        self._reported_at, self._unreported = now, False
        median_s, since_s = self._median_s(), max(0.0, now - self._first_at)
        return Stepped(
            self._token, newest.step, newest.total, median_s, newest.at, self._pause_s, newest.is_counted, since_s
        )

    def deadline(self) -> Optional[float]:
        """When a report is due; None if all steps are reported."""
        if not self._unreported:
            return None
        return self._read_at if self._reported_at is None else self._reported_at + REPORT_EVERY_S

    def _median_s(self) -> float:
        ordered = sorted(self._intervals)
        if not ordered:
            return 0.0
        middle = len(ordered) // 2
        return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2

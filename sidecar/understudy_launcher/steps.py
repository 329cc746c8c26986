"""When the sidecar hears of the workers' steps, and how long a step takes.

Rules: the first step of a round is told at once, because a recovery ends with it; after that the newest one at most
every REPORT_EVERY_S. The median is that of the last INTERVALS intervals between reports of this round; 0.0 while
there is none. Pure: the caller brings the time.
"""

from collections import deque
from typing import Optional

from understudy_launcher.events import StepsRead
from understudy_protocol.launcher import Stepped
from understudy_protocol.words import RoundToken

REPORT_EVERY_S = 0.5
INTERVALS = 20
_LINE_LIMIT = 64  # two numbers: a longer line is none of ours


class StepLines:
    """Out of the bytes of a worker's pipe, the steps: lines of `step total`, where total may be `-`."""

    def __init__(self) -> None:
        self._unread = b""

    def feed(self, chunk: bytes) -> list[tuple[int, Optional[int]]]:
        """(step, total) of each line that is complete now; anything else is passed over."""
        *lines, rest = (self._unread + chunk).split(b"\n")
        self._unread = rest if len(rest) <= _LINE_LIMIT else b""
        return [step for step in map(_step, lines) if step is not None]


def _step(line: bytes) -> Optional[tuple[int, Optional[int]]]:
    words = line[:_LINE_LIMIT].split()
    if len(words) != 2 or not words[0].isdigit() or not (words[1] == b"-" or words[1].isdigit()):
        return None
    return int(words[0]), None if words[1] == b"-" else int(words[1])


class StepPace:
    """The steps of one round, as this member's first worker reports them."""

    def __init__(self, token: RoundToken) -> None:
        self._token = token
        self._newest: Optional[StepsRead] = None
        self._read_at = 0.0
        self._intervals: deque[float] = deque(maxlen=INTERVALS)
        self._told_at: Optional[float] = None
        self._untold = False

    def saw(self, read: StepsRead, now: float) -> Optional[Stepped]:
        """A report was read: what to tell now, if anything."""
        if self._newest is not None:
            each = (now - self._read_at) / read.reports
            self._intervals.extend([each] * min(read.reports, INTERVALS))
        self._newest, self._read_at, self._untold = read, now, True
        return self.due(now)

    def due(self, now: float) -> Optional[Stepped]:
        """What is to be told by now, if anything."""
        deadline = self.deadline()
        if self._newest is None or deadline is None or now < deadline:
            return None
        self._told_at, self._untold = now, False
        newest = self._newest
        return Stepped(self._token, newest.step, newest.total, self._median_s(), newest.at)

    def deadline(self) -> Optional[float]:
        """When something is to be told; None while all is."""
        if not self._untold:
            return None
        return self._read_at if self._told_at is None else self._told_at + REPORT_EVERY_S

    def _median_s(self) -> float:
        ordered = sorted(self._intervals)
        if not ordered:
            return 0.0
        middle = len(ordered) // 2
        return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2

"""The first failure among the workers that fail in one round. Pure.

One failure aborts workers of many pods within milliseconds, and a worker that raises an exception may end after the
peers that it aborts. So the report that arrives first is often not about the first failure. Each report has the time of
its failure, by the clock of its machine: of the exception if torch's error file has one, else of the worker's end. The
report of an exception whose worker has not ended yet has its age instead, which no clock of another machine affects:
a delay of the report can only make the exception seem later. It has the time by its clock, too, which only shows that
the order is not certain.

Rules:
- The failure that was reported first is the first one, unless another one is earlier by more than the clocks may
  differ: CLOCK_ERROR_S between two nodes, nothing within a node. Machines that synchronize their clocks (NTP) differ by
  a few milliseconds, and by tens where the network is bad.
- A time more than CLOCK_ERROR_S before the round was formed is impossible, and so is a time after its report has
  arrived: the clock is wrong, or the pod lies. Then the time of arrival counts. A time that is less than CLOCK_ERROR_S
  before the round counts as the beginning of the round.
- A worker that has lost its connection to another worker did not fail first, whatever the times are, if a worker has
  failed in another way at most LOST_WITHIN_S later. This is known from the text of its exception.
- The same applies to a worker that ended with an exit code and without an exception, if another one was killed by
  SIGKILL. The kernel closes the connections of a killed process before its parent learns of its end, so a peer may end
  sooner. SIGKILL is never the consequence of a lost connection.
- Clocks alone evict no pod. A pod has certainly failed first only if the first report came from this pod or from its
  node, and no other failure has an earlier time, by its clock either. Failures of the two kinds above do not count
  here, and an age is no clock.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from understudy_protocol.observer import Cause

#: The largest difference between the clocks of two nodes.
CLOCK_ERROR_S = 0.1
#: A worker may lose its connection before the exception of its peer is stored, for example in a `finally` block.
LOST_WITHIN_S = 1.0
#: A failure without a reported time: no other failure counts as earlier.
UNKNOWN = -math.inf
#: Texts of gloo, NCCL (ncclRemoteError) and torch's store.
_LOST_CONNECTION = re.compile(
    r"gloo/transport/|remote process exited or there was a network error|DistNetworkError|"
    r"Did the remote server shutdown or crash|(?:recv|send)\w+ failed on SocketImpl"
)


@dataclass(frozen=True)
class FailureReport:
    """A worker's failure. at: by the clock of its machine, within bounds (`bounded_time`); or UNKNOWN.

    is_alive: the worker has raised an exception, and its process has not ended. Then `at` is known from its age, and
    claimed_at is the time by the clock of its machine, within bounds.
    """

    pod_uid: str
    cause: Cause
    at: float = UNKNOWN
    is_alive: bool = False
    claimed_at: float = math.inf

    @property
    def earliest_at(self) -> float:
        """It may have happened as early as this."""
        return min(self.at, self.claimed_at)

    @property
    def is_lost_connection(self) -> bool:
        return _LOST_CONNECTION.search(self.cause.message) is not None

    def is_consequence_of(self, other: FailureReport) -> bool:
        """Known from the two kinds of failures alone."""
        if self.is_lost_connection:
            return not other.is_lost_connection
        return self.cause.message == f"exit code {self.cause.exit_code}" and other.cause.signal == "SIGKILL"


@dataclass
class FirstFailure:
    """The first of the failures of one round, as far as they are known."""

    first: FailureReport
    _reported_on: str = field(init=False)  # the node from which the first report came
    _earliest_at: float = field(init=False)  # of all of them, as far as they did not prove to be consequences

    def __post_init__(self) -> None:
        self._reported_on, self._earliest_at = self.first.cause.node, self.first.at

    def add(self, report: FailureReport) -> bool:
        """Whether this report is the first failure now."""
        is_same = (report.pod_uid, report.cause.rank) == (self.first.pod_uid, self.first.cause.rank)
        if is_same or report.is_consequence_of(self.first):
            return False
        if self.first.is_consequence_of(report) and report.at <= self.first.at + LOST_WITHIN_S:
            self.first, self._reported_on, self._earliest_at = report, report.cause.node, report.at
            return True
        error_s = 0.0 if report.cause.node == self.first.cause.node else CLOCK_ERROR_S
        if report.at >= self.first.at - error_s:
            self._earliest_at = min(self._earliest_at, report.earliest_at)
            return False
        self._earliest_at = min(self._earliest_at, self.first.earliest_at, report.at)
        self.first = report
        self._reported_on = report.cause.node if report.is_alive else self._reported_on
        return True

    @property
    def is_certain(self) -> bool:
        """Whether no other pod can have failed first."""
        return self.first.cause.node == self._reported_on and self.first.at <= self._earliest_at


def time_of_age(age_s: float, formed_at: float, arrived_at: float) -> float:
    """The time of an exception that is this old; not before its round was formed."""
    return max(formed_at, arrived_at - age_s) if age_s >= 0.0 else arrived_at


def bounded_time(at: float, formed_at: float, arrived_at: float) -> float:
    """The time of a failure by the clock of its machine, limited to times that are possible."""
    if not formed_at - CLOCK_ERROR_S <= at <= arrived_at:
        return arrived_at
    return max(at, formed_at)

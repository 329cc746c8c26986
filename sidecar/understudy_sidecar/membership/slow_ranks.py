"""Finds the rank for which the others wait in each step, from the times at which all ranks enter their collectives.

The argument: no rank leaves a collective before the last one has entered it, so the ranks of a group leave the last
collective of a step together, and soon call step(). From there to its first collective of the next step, a rank waits
for no other, so this time (its delay) is its own work. Both ends of it are of one machine's clock, so no clock offset
between pods matters. In the last collective of a step, the delay also has the rank's waits in the earlier ones. For a
slow rank these are the shortest. But if one rank works longer before it calls step() (rank 0 writes a log), its
reference is later, and all others seem to be late in the last collective. So this collective counts only among three
ranks or more: the majority shows which rank differs. Work between the last collective and step() is not seen, because a
clock that differs would look the same.

    lateness   of a rank in a step: its delay minus the median delay in the same collective (of two middle ones, the
               earlier one); the greater one of the step's first and last collective
    slow       in each of the ten steps, the rank was late by so much that the median step would take less time by the
               factor without it: step / (step - lateness) >= percent / 100

Rules: one step that is not late acquits a rank, so neither a save, an evaluation nor a garbage collection names one. A
rank is named once it was slow in IN_A_ROW windows in a row, because ten steps may take only a second: on a busy machine
a rank may wait for a CPU that long (in 1 of 221 windows of three trainings that shared two cores for an hour). The
median step is that of the ten steps of all ranks, so that a save in the window hides no slow rank. With two ranks, the
later one is slow. If more than half of the ranks are slow, they are the median, and none is named. Of several slow
ranks, the slowest one is named. A finding ends with a window in which the rank was late in fewer than STAYS_LATE steps.
A lateness below LEAST_NS is noise.

A window is decided once all ranks have reported it. If reports are missing, the window is decided when the third later
window has begun, if more than half of the ranks have reported. A rank that has not reported keeps its finding. Ranks
without a common collective are not compared. The content is the workers', so it is checked, and at most WINDOWS windows
are kept.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from understudy_protocol.enums import NO_ROUND, RoundToken

STEPS = 10
#: A rank that is named stays so while it is late in this number of the ten steps.
STAYS_LATE = 6
WINDOWS = 3
#: The windows in a row in which a rank has to be slow before it is named.
IN_A_ROW = 3
LEAST_NS = 10_000_000
#: Of two slow ranks, the one that is named stays so unless the other is later by this factor.
OTHER_IS_LATER_BY = 1.1
MOST_PERCENT = 10_000
_LONGEST_NS = 10**15
_LARGEST = 10**18


@dataclass(frozen=True)
class Report:
    """A rank's window: two collectives and delays of each step, as in CollectiveTimes."""

    step_ns: int
    collectives: Sequence[int]
    delays_ns: Sequence[int]


@dataclass(frozen=True)
class Lateness:
    rank: int
    percent: int  # the duration of a step, in percent of its duration without this rank
    late_ns: int  # the median of the ten steps


def make_report(step_ns: int, collectives: Sequence[int], delays_ns: Sequence[int]) -> Report | None:
    """None if no worker of ours can have sent it."""
    if not len(collectives) == len(delays_ns) == 2 * STEPS or not 0 < step_ns < _LONGEST_NS:
        return None
    if not all(0 <= each < _LARGEST for each in collectives) or not all(0 <= each < _LONGEST_NS for each in delays_ns):
        return None
    return Report(step_ns, array("q", collectives), array("q", delays_ns))


def find_slow_ranks(reports: Mapping[int, Report], percent: int, known: int | None = None) -> list[Lateness]:
    """The slowest one first. reports: of one window, by rank. known: the rank that is named so far."""
    if not reports:
        return []
    step_ns = median(report.step_ns for report in reports.values())
    limit_ns = max(LEAST_NS, step_ns * (1 - 100 / percent))
    late: dict[int, list[int]] = {rank: [] for rank in reports}
    for step in range(STEPS):
        of_step = _lateness(reports, step)
        late = {rank: [*before, of_step.get(rank, 0)] for rank, before in late.items()}
        late = {rank: ns for rank, ns in late.items() if rank == known or ns[-1] >= limit_ns}
        if not late:
            return []
    if known in late and sum(ns >= limit_ns for ns in late[known]) < STAYS_LATE:
        del late[known]
    slowest = sorted(late, key=lambda rank: -median(late[rank]) * (OTHER_IS_LATER_BY if rank == known else 1))
    return [_as_lateness(rank, step_ns, int(median(late[rank]))) for rank in slowest]


def _as_lateness(rank: int, step_ns: float, late_ns: int) -> Lateness:
    without_ns = step_ns - late_ns
    times = round(100 * step_ns / without_ns) if without_ns > 0 else MOST_PERCENT
    return Lateness(rank, min(times, MOST_PERCENT), late_ns)


def _lateness(reports: Mapping[int, Report], step: int) -> dict[int, int]:
    """How much later than the middle rank each rank entered a collective of this step."""
    firsts: dict[int, list[tuple[int, int]]] = {}
    lasts: dict[int, list[tuple[int, int]]] = {}
    for rank, report in reports.items():
        first, last = report.collectives[2 * step : 2 * step + 2]
        firsts.setdefault(first, []).append((report.delays_ns[2 * step], rank))
        if last != first:
            lasts.setdefault(last, []).append((report.delays_ns[2 * step + 1], rank))
    late: dict[int, int] = {}
    for collectives, least in ((firsts, 2), (lasts, 3)):
        for entries in collectives.values():
            if len(entries) >= least:
                middle_ns = sorted(entries)[(len(entries) - 1) // 2][0]
                for delay_ns, rank in entries:
                    late[rank] = max(delay_ns - middle_ns, late.get(rank, 0))
    return late


@dataclass
class SlowRankWatch:
    """The windows of the running round, and the finding."""

    token: RoundToken = NO_ROUND
    found: Lateness | None = None
    since: float = 0.0  # when this rank was found
    _decided: int = 0  # the newest window that was decided
    _in_a_row: dict[int, int] = field(default_factory=dict)  # by slow rank: the windows in a row in which it was slow
    _windows: dict[int, dict[int, Report]] = field(default_factory=dict)

    def add(
        self, token: RoundToken, window: int, rank: int, report: Report, ranks: int, percent: int, now: float
    ) -> bool:
        """Add the report of a rank. Return whether the finding has changed. ranks: the number of all ranks."""
        if token != self.token:
            self.token, self.found, self._decided, self._in_a_row, self._windows = token, None, 0, {}, {}
        if window <= self._decided:
            return False
        self._windows.setdefault(window, {})[rank] = report
        if len(self._windows[window]) < ranks:
            if len(self._windows) <= WINDOWS:
                return False
            window = min(self._windows)
        return self._decide(window, ranks, percent, now)

    def _decide(self, window: int, ranks: int, percent: int, now: float) -> bool:
        reports, self._decided = self._windows[window], window
        self._windows = {number: kept for number, kept in self._windows.items() if number > window}
        known = None if self.found is None else self.found.rank
        if 2 * len(reports) <= ranks or (known is not None and known not in reports):
            return False
        slow = find_slow_ranks(reports, percent, known)
        self._in_a_row = {one.rank: self._in_a_row.get(one.rank, 0) + 1 for one in slow}
        named = (one for one in slow if self._in_a_row[one.rank] >= IN_A_ROW)
        before, self.found = self.found, next(named, None)
        if self.found is not None and self.found.rank != known:
            self.since = now
        return before != self.found

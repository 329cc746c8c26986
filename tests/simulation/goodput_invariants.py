"""The account of the job's time is complete, and productive time was seen.

It continues over all coordinators and over operators that are away. The simulation knows when steps were made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.simulation.cluster import SimulatedCluster
from tests.simulation.faults import Fault
from tests.simulation.training import STEP_S, Numbers
from tests.simulation.world import EPOCH_S, Rule, Violation
from understudy_operator.plan.facts.status import Goodput, JobStatus
from understudy_operator.plan.times.rfc3339 import parse_time
from understudy_protocol.goodput import SINCE_LAST_STEP, Part, parts_at

#: The sum of the parts differs from the wall time by at most this share of it.
SUM_ERROR = 0.01
#: The times of steps are those at which the coordinator gets the reports, by its own clock.
LATE_S = 1.0
#: If all are on time, and an operator is there, so much of the time of steps may be in other parts.
MISSED_S = 3.0
#: And so much more for each of these faults: until the sidecar is back, its pod reports no steps.
SIDECAR_KILLED = ("sidecar killed", "coordinator's sidecar killed")
SIDECAR_IS_BACK_S = 3.0
#: Only these faults do not make reports late.
PUNCTUAL = ("operator down", "operator cut off")


@dataclass
class GoodputInvariants:
    cluster: SimulatedCluster
    faults: Sequence[Fault]

    def check(self) -> None:
        """Of the account in status, as a reader sees it now."""
        status, now = self.cluster.operator.account, self.cluster.world.now
        goodput = status.goodput
        if goodput is None:
            return
        stepped_at = None if status.progress is None or status.progress.at is None else parse_time(status.progress.at)
        parts = parts_at(goodput.seconds_by_field, goodput.part, parse_time(goodput.since), stepped_at, now)
        end = now if status.completion_time is None else parse_time(status.completion_time)
        self._the_parts_are_the_wall_time(parts, end - EPOCH_S)
        self._counted_steps_are_not_compared(status, goodput)
        self._productive_time_was_seen(parts, is_repeated_unknown=goodput.is_repeated_unknown)

    def _the_parts_are_the_wall_time(self, parts: dict[str, float], wall_s: float) -> None:
        total_s = sum(parts.values())
        if any(seconds < 0 for seconds in parts.values()) or abs(total_s - wall_s) > SUM_ERROR * wall_s:
            raise Violation(Rule.PARTS_ARE_THE_WALL_TIME, f"{parts} are {total_s:.3f} s of {wall_s:.3f} s")

    def _counted_steps_are_not_compared(self, status: JobStatus, goodput: Goodput) -> None:
        """If all steps of the job are counted. And if none is, the account knows which are repeated."""
        numbers = self.cluster.setup.numbers
        lost = [x.lost_steps for x in status.recoveries if x.lost_steps is not None]
        if numbers is Numbers.ROUND and (lost or goodput.seconds.repeated or goodput.newest_step is not None):
            raise Violation(Rule.COUNTED_STEPS_ARE_NOT_COMPARED, f"lost steps {lost}, {goodput}")
        if numbers is Numbers.SCRIPT and goodput.is_repeated_unknown:
            raise Violation(Rule.COUNTED_STEPS_ARE_NOT_COMPARED, f"the script reports their numbers: {goodput}")

    def _productive_time_was_seen(self, parts: dict[str, float], *, is_repeated_unknown: bool) -> None:
        """is_repeated_unknown: productive time may contain repeated steps."""
        training, productive_s = self.cluster.training, parts[Part.PRODUCTIVE.field]
        if not self.cluster.setup.reports_steps:
            if productive_s > 0:
                raise Violation(Rule.PRODUCTIVE_TIME_HAS_STEPS, f"the script reports no steps: {parts}")
            return
        seen_s = productive_s + parts[SINCE_LAST_STEP]
        if self.cluster.clocks_differ:
            return
        has_one_leader = len(self.cluster.leaders) == 1 and self.cluster.leader() is not None
        is_watched = has_one_leader and all(fault.lasts_s == 0 for fault in self.faults)
        missed_s = MISSED_S + SIDECAR_IS_BACK_S * sum(fault.kind in SIDECAR_KILLED for fault in self.faults)
        if is_watched and seen_s < training.new_steps_s - missed_s:
            text = f"only {seen_s:.1f} s, and steps were new for {training.new_steps_s:.1f} s: {parts}"
            raise Violation(Rule.PRODUCTIVE_TIME_HAS_STEPS, text)
        # Each fault may hide the report of a step that was made just before it: then that step is new a second time.
        late_s = LATE_S + len(self.faults) * max(STEP_S)
        late_s += sum(fault.lasts_s for fault in self.faults if fault.kind not in PUNCTUAL)
        steps_s = training.steps_s if is_repeated_unknown else training.new_steps_s
        if productive_s > steps_s + late_s:
            text = f"{productive_s:.1f} s, and steps were made for {steps_s:.1f} s: {parts}"
            raise Violation(Rule.PRODUCTIVE_TIME_HAS_STEPS, text)

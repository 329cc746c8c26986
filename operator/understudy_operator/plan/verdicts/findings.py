"""The node health verdict of a node with findings from several sources.

Rules: expired findings are ignored. Among the others only the highest precedence counts. There, Faulty outweighs
Healthy, and Hardware outweighs Preemption, which outweighs Maintenance: a missing save is better than a hanging one,
and an early save better than a late one. A Healthy finding that is not outweighed clears the node.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from understudy_operator.plan.times.reconcile_clock import is_due
from understudy_protocol.enums import FaultClass

_RANKS: dict[FaultClass | None, int] = {
    FaultClass.HARDWARE: 0,
    FaultClass.PREEMPTION: 1,
    FaultClass.MAINTENANCE: 2,
    None: 3,
}


@dataclass(frozen=True)
class Finding:
    """The match of one row of the table on a node."""

    source: str  # name of the row
    fault_class: FaultClass | None  # None: the source reports the node as healthy
    reason: str
    until: float | None = None  # when it expires; None: never
    grace_s: float | None = None  # how long the node stays; None: no limit for its pods
    known_to_scheduler: bool = False  # the scheduler places no pods there

    @property
    def rank(self) -> int:
        """Among findings of equal precedence, the lowest counts."""
        return _RANKS[self.fault_class]

    @property
    def hardware(self) -> bool:
        """Whether pods there may neither save nor get ranks."""
        return self.fault_class is FaultClass.HARDWARE

    @property
    def description(self) -> str:
        """For messages."""
        return f"{self.source}: {self.reason}"


def find_verdict(findings: Iterable[Finding], now: float) -> Finding | None:
    """The verdict: the first finding that has not expired, in their order; None if that reports the node as healthy."""
    first = next((finding for finding in findings if finding.until is None or not is_due(finding.until, now)), None)
    return None if first is None or first.fault_class is None else first

"""What is held about a node, where several sources speak of it.

Rules: what has expired says nothing. Of what is left the highest precedence counts alone; there a fault outweighs a
source that vouches, and of faults Hardware outweighs Preemption, and that Maintenance, for it is better not to save
than to hang, and better to save early than too late. A source that vouches and is not outweighed clears the node.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from understudy_operator.plan.reconcile_clock import is_due
from understudy_protocol.enums import FaultClass

_RANKS: dict[FaultClass | None, int] = {
    FaultClass.HARDWARE: 0,
    FaultClass.PREEMPTION: 1,
    FaultClass.MAINTENANCE: 2,
    None: 3,
}


@dataclass(frozen=True)
class Finding:
    """What one row of the table has found on a node."""

    source: str  # name of the row
    fault_class: FaultClass | None  # None: it vouches for the node
    reason: str
    until: float | None = None  # when it expires; None: not by itself
    grace_s: float | None = None  # how long the node stays; None: as long as its pods may take
    known_to_scheduler: bool = False  # which puts no pod there by itself

    @property
    def rank(self) -> int:
        """Among those of equal precedence: the lower counts."""
        return _RANKS[self.fault_class]

    @property
    def hardware(self) -> bool:
        """Whether nobody there may save, or be given ranks."""
        return self.fault_class is FaultClass.HARDWARE

    @property
    def description(self) -> str:
        """As people read it."""
        return f"{self.source}: {self.reason}"


def find_verdict(findings: Iterable[Finding], now: float) -> Finding | None:
    """The verdict: of findings in their order, the first that has not expired, unless it vouches."""
    first = next((finding for finding in findings if finding.until is None or not is_due(finding.until, now)), None)
    return None if first is None or first.fault_class is None else first

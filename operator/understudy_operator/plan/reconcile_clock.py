"""The time of a pass, and when the next one has to be: some decisions ripen with time alone.

Rule: whoever compares the time of a pass with another one asks `is_due`. What lies ahead is noted, and the earliest of
that is when the plan may be another one though nothing has happened (tests/unit/operator/plan/test_reconcile_clock.py:
no plan changes sooner). Without this a job of thousands of pods would be looked at every other second for nothing.
"""

from math import inf


class ReconcileClock(float):
    """Unix time. next_at: the earliest time ahead that a decision of this pass has asked for; inf for none."""

    next_at: float

    def __new__(cls, at: float) -> "ReconcileClock":
        clock = super().__new__(cls, at)
        clock.next_at = inf
        return clock

    @property
    def remaining_s(self) -> float:
        """Until next_at."""
        return self.next_at - self


def is_due(at: float, now: float) -> bool:
    """Whether it is so late; if not, and now is a pass's Moment, it is to be asked again then."""
    if now >= at:
        return True
    if isinstance(now, ReconcileClock):
        now.next_at = min(now.next_at, at)
    return False

"""The time of a reconcile, and when the next one has to be: some decisions become due by time alone.

Rule: code that compares the time of a reconcile with another one calls `is_due`. That records times ahead; the earliest
of them is when the plan may change without an event (test_reconcile_clock.py: no plan changes
sooner). Otherwise a job of thousands of pods would have to be reconciled every other second.
"""

from math import inf


class ReconcileClock(float):
    """Unix time. next_at: the earliest time ahead that a decision of this reconcile depends on; inf for none."""

    next_at: float

    def __new__(cls, at: float) -> "ReconcileClock":
        clock = super().__new__(cls, at)
        clock.next_at = inf
        return clock

    @property
    def remaining_s(self) -> float:
        """Seconds until next_at."""
        return self.next_at - self


def is_due(at: float, now: float) -> bool:
    """Whether `at` has come. If not, and now is a ReconcileClock, the next reconcile is due then."""
    if now >= at:
        return True
    if isinstance(now, ReconcileClock):
        now.next_at = min(now.next_at, at)
    return False

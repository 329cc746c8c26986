"""Unix seconds that never go back and never jump, but follow the wall clock.

Timers need a clock that does not jump when the machine's wall clock is set. But the times of faults outlive their
coordinator, and its successor on another machine compares them with its own wall clock. So this clock follows a step of
the wall clock slowly, as adjtime(3) does: meanwhile timers run faster or slower by at most SLEW.
"""

import time
from collections.abc import Callable

#: Seconds per second: it follows a one-minute step of the wall clock within ten minutes.
SLEW = 0.1


class SlewedClock:
    """wall: Unix seconds. monotonic: seconds that only grow."""

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._at = monotonic()
        self._offset = wall() - self._at

    def now(self) -> float:
        at = self._monotonic()
        most = SLEW * (at - self._at)
        behind = self._wall() - at - self._offset
        self._offset += max(-most, min(most, behind))
        self._at = at
        return self._offset + at


now = SlewedClock().now

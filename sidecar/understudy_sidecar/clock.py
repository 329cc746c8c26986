"""The time: Unix seconds that never go back and never jump, but follow the wall clock.

Timers need a clock that does not jump when the machine's wall clock is set. But the times of faults outlive their
coordinator, and its successor on another machine compares them with its own wall clock. So this clock follows a step of
the wall clock slowly, as adjtime(3) does: meanwhile timers run faster or slower by at most SLEW.
"""

import asyncio
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


class Alarm:
    """One timer for a state machine: set after each event, it calls back at the machine's deadline.

    A deadline usually moves to a later time with each event: then the running timer stays, and is set again when it
    fires.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._at: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._fires_at = 0.0

    def set(self, at: float | None) -> None:
        """Ring at `at` (Unix seconds of clock.now) instead of the time set before; None: not at all."""
        self._at = at
        if at is not None and (self._timer is None or at < self._fires_at):
            self._start(at)

    def _start(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # Slightly late rather than early: an early tick changes nothing and would have to be repeated.
        delay = max(0.0, at - now()) + 0.001
        self._fires_at = at
        self._timer = asyncio.get_running_loop().call_later(delay, self._fire)

    def _fire(self) -> None:
        self._timer = None
        if self._at is None:
            return
        if self._at > now():
            self._start(self._at)
        else:
            self._at = None
            self._ring()

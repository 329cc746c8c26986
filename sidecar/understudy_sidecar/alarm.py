"""One timer for a state machine: set after each event, it calls back at the machine's deadline.

A deadline usually moves to a later time with each event: then the running timer stays, and is set again when it fires.
"""

import asyncio
from collections.abc import Callable

from understudy_sidecar.clock import now


class Alarm:
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

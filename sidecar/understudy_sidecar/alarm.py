"""One timer for a state machine: asked for again after each event, it calls back at the machine's deadline."""

import asyncio
from collections.abc import Callable

from understudy_sidecar.clock import now


class Alarm:
    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._handle: asyncio.TimerHandle | None = None

    def set(self, at: float | None) -> None:
        """Ring at `at` (Unix seconds of clock.now) instead of the time set before; None: not at all."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if at is not None:
            # A little late rather than early: an early tick changes nothing and would have to be repeated.
            delay = max(0.0, at - now()) + 0.001
            self._handle = asyncio.get_running_loop().call_later(delay, self._ring)

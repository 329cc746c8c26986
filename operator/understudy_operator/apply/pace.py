"""How fast the operator writes, over all jobs: a bucket of tokens that fills at a steady rate."""

import asyncio
from collections.abc import Callable

WRITES_PER_S = 300.0
BURST = 300.0


class Pace:
    """Turns are given in the order in which they were asked for."""

    def __init__(self, now: Callable[[], float], per_s: float = WRITES_PER_S, burst: float = BURST) -> None:
        self._now, self._per_s, self._burst = now, per_s, burst
        self._tokens, self._at = burst, now()

    async def turn(self) -> None:
        """Wait until one more write may be sent."""
        now = self._now()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._per_s) - 1.0
        self._at = now
        if self._tokens < 0.0:  # taken in advance: who comes later waits longer
            await asyncio.sleep(-self._tokens / self._per_s)

"""Simulated time: a heap of (time, number, callback), one seeded source of randomness, and a trace of what happened.

Nothing here knows what is simulated. After every callback `check` runs (the invariants), so that a violation is found
at the event that made it.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

#: Simulated Unix time at the start: as in production no machine ever sees a time near zero.
EPOCH_S = 1_000_000.0
TRACE_LINES = 400


class Violation(AssertionError):
    """An invariant does not hold."""


@dataclass
class World:
    seed: int
    now: float = EPOCH_S
    check: Callable[[], None] = lambda: None
    trace: deque[str] = field(default_factory=lambda: deque(maxlen=TRACE_LINES))
    events: int = 0
    _heap: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _number: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def after(self, delay: float, callback: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._heap, (self.now + delay, self._number, callback))

    def at(self, time: float, callback: Callable[[], None]) -> None:
        self.after(max(0.0, time - self.now), callback)

    def between(self, least: float, most: float) -> float:
        return self.rng.uniform(least, most)

    def say(self, who: str, text: str) -> None:
        self.trace.append(f"{self.now - EPOCH_S:9.3f} {who:<12} {text}")

    def run(self, until: float, over: Callable[[], bool] = lambda: False) -> None:
        """Until the time `until`, or `over()`."""
        while self._heap and not over():
            time, _, callback = self._heap[0]
            if time > until:
                break
            heapq.heappop(self._heap)
            self.now = max(self.now, time)
            self.events += 1
            callback()
            self.check()
        else:
            return
        self.now = until

    @property
    def elapsed(self) -> float:
        return self.now - EPOCH_S

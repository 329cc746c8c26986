"""The operator's two clocks, which tests replace with simulated time; and pauses of random length."""

import itertools
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from understudy_protocol.pauses import growing_pause_s


@dataclass(frozen=True)
class Clock:
    wall: Callable[[], float] = time.time  # Unix time: for display, and to compare with timestamps of other programs
    steady: Callable[[], float] = time.monotonic  # never set back: for durations


def jittered(pause_s: float) -> float:
    """About this long. Random, so that clients stopped by the same outage do not all come back at once."""
    return pause_s * random.uniform(0.75, 1.25)


@dataclass(frozen=True)
class Backoffs:
    """Growing pauses between retries, as many as needed, each of random length."""

    first_s: float = 0.5
    longest_s: float = 4.0

    def __iter__(self) -> Iterator[float]:
        for number in itertools.count(1):
            yield jittered(growing_pause_s(self.first_s, self.longest_s, number))

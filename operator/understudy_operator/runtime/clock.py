"""The operator's two clocks, which tests replace with simulated time; and pauses of random length."""

import itertools
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Clock:
    wall: Callable[[], float] = time.time  # Unix time: for display, and to compare with timestamps of other programs
    steady: Callable[[], float] = time.monotonic  # never set back: for durations


def jittered(pause_s: float) -> float:
    """About this long. Random, so that clients stopped by the same outage do not all come back at once."""
    return pause_s * random.uniform(0.75, 1.25)


class Backoffs:
    """Pauses between the retries of a watch, as many as needed.

    again: called each time a retry begins. Each request takes one pause from the iterator in advance.
    """

    def __init__(self, again: Callable[[], None] = lambda: None) -> None:
        self._again = again

    def __iter__(self) -> Iterator[float]:
        for number, pause_s in enumerate(itertools.chain((0.5, 1.0, 2.0), itertools.repeat(4.0))):
            if number:
                self._again()
            yield jittered(pause_s)

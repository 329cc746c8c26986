"""The two clocks of the operator, so that tests can run it in a time of their own; and pauses that meet nobody's."""

import itertools
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Clock:
    wall: Callable[[], float] = time.time  # Unix time: for people, and for what others have written
    steady: Callable[[], float] = time.monotonic  # never set: for how long something took, or may take


def jittered(pause_s: float) -> float:
    """About so long, so that those whom one outage has stopped do not all come back at one moment."""
    return pause_s * random.uniform(0.75, 1.25)


class Backoffs:
    """Of a watch whose API server is away: it asks for as long as it takes, at times of its own.

    again: told of each time that kopf begins to ask again. It takes one pause in advance, for each request.
    """

    def __init__(self, again: Callable[[], None] = lambda: None) -> None:
        self._again = again

    def __iter__(self) -> Iterator[float]:
        for number, pause_s in enumerate(itertools.chain((0.5, 1.0, 2.0), itertools.repeat(4.0))):
            if number:
                self._again()
            yield jittered(pause_s)

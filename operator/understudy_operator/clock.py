"""The two clocks of the operator, so that tests can run it in a time of their own."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Clock:
    wall: Callable[[], float] = time.time  # Unix time: for people, and for what others have written
    steady: Callable[[], float] = time.monotonic  # never set: for how long something took, or may take

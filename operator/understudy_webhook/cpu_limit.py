"""Limits the CPU time of a computation, by an exception in the middle of it.

The size limits in review.py bound a review's content, but the time of its answer depends on all code that reads it. The
signal of the interval timer for the process's own time (ITIMER_VIRTUAL) ends the computation between two Python
instructions, in the main thread. The signal repeats, because Python ignores exceptions in a `__del__` or in a callback
of the garbage collector, and the computation would continue.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

REPEAT_S = 0.05


class CpuLimitExceeded(BaseException):
    """A BaseException, so that an `except Exception` in the computation does not catch it."""


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Raises CpuLimitExceeded in the body. The body must not change shared state, because it may end anywhere."""
    is_running = True

    def end(_: int, __: FrameType | None) -> None:
        if is_running:
            raise CpuLimitExceeded

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, REPEAT_S)
    try:
        yield
    finally:
        is_running = False
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)

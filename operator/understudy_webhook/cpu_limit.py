"""A limit for the processor time of a calculation, which raises in the middle of it.

The limits of size in review.py bound what a review can contain; how long its answer takes depends on all code that
reads it. The limit ends a calculation between two instructions of Python, in the process's main thread, by the signal
of the interval timer that counts the process's own time (ITIMER_VIRTUAL). The signal repeats: Python swallows what is
raised in a `__del__` or a callback of the garbage collector, and the calculation goes on.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

REPEAT_S = 0.05


class CpuLimitExceeded(BaseException):
    """A BaseException, so that `except Exception` inside of the calculation does not end it."""


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Raises CpuLimitExceeded in the body. The body must keep no state: it may end anywhere."""
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

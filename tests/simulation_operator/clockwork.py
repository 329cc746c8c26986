"""An event loop in simulated time: waiting tasks wake up at once, and the clock shows that they waited."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any

from understudy_operator.runtime.clock import Clock

EPOCH = 1_790_000_000.0


class Deadlock(Exception):
    """All tasks wait, and no timer is due."""


class _NoFiles(selectors.SelectSelector):
    """Nothing is ever read or written: to wait is to move the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock("no task will ever wake up")
        self.now += max(0.0, timeout)
        return []


class SimulatedLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._files = _NoFiles()
        super().__init__(self._files)
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self._files.now


def clock_of(loop: asyncio.AbstractEventLoop) -> Clock:
    return Clock(wall=lambda: EPOCH + loop.time(), steady=loop.time)


def run_simulated(main: Coroutine[Any, Any, None]) -> None:
    loop = SimulatedLoop()
    try:
        loop.run_until_complete(main)
    finally:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.close()

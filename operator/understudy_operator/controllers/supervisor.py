"""Starts all long-lived tasks. If a task ends, the supervisor logs and counts it, and restarts it after a pause.

Rules: pauses are those of clock.Backoffs. After a task has run for HEALTHY_S, they are short again. The way in which a
task ends makes no difference: an exception, a cancellation by other code, or a return. `once` tasks are done when they
return. /healthz names the tasks that wait for their restart, and stays 200: a new process would get the same objects.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field

from understudy_operator.metrics.operator_metrics import OperatorMetrics
from understudy_operator.runtime.clock import Backoffs

#: A task that has run this long before it ended counts as recovered.
HEALTHY_S = 60.0
log = logging.getLogger(__name__)

Run = Callable[[], Coroutine[None, None, None]]


@dataclass
class _Supervised:
    name: str
    display_name: str
    run: Run
    once: bool
    task: asyncio.Task[None] | None = None  # None: it waits for its restart
    timer: asyncio.TimerHandle | None = None
    pauses: Iterator[float] = field(default_factory=lambda: iter(Backoffs()))
    started_at: float = 0.0
    error: str = ""  # of its last end


class TaskSupervisor:
    def __init__(self, metrics: OperatorMetrics) -> None:
        self._metrics = metrics
        self._tasks: dict[str, _Supervised] = {}

    @property
    def names(self) -> Collection[str]:
        """The names of the tasks that should run."""
        return self._tasks.keys()

    @property
    def waiting(self) -> Mapping[str, str]:
        """The error of each task that has ended and waits for its restart."""
        return {entry.display_name: entry.error for entry in self._tasks.values() if entry.task is None}

    def task(self, name: str) -> asyncio.Task[None] | None:
        """None while it waits for its restart, or if there is none."""
        entry = self._tasks.get(name)
        return None if entry is None else entry.task

    def start(self, name: str, run: Run, *, once: bool = False, display_name: str = "") -> None:
        """Run the task from now on. display_name: its name in /healthz and in the metric; by default `name`."""
        assert name not in self._tasks, f"{name} is to run already"
        entry = self._tasks[name] = _Supervised(name, display_name or name, run, once)
        self._metrics.supervises(entry.display_name)
        self._begin(entry)

    async def stop(self, *names: str) -> None:
        """Stop these tasks; all of them if none is named."""
        ended = [self._tasks.pop(name) for name in names or tuple(self._tasks) if name in self._tasks]
        for entry in ended:
            if entry.timer is not None:
                entry.timer.cancel()
        tasks = [entry.task for entry in ended if entry.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, entry: _Supervised) -> None:
        entry.timer, entry.started_at = None, asyncio.get_running_loop().time()
        entry.task = asyncio.create_task(entry.run(), name=entry.name)
        entry.task.add_done_callback(lambda task: self._ended(entry, task))

    def _ended(self, entry: _Supervised, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if self._tasks.get(entry.name) is not entry:
            return  # it was stopped
        if entry.once and error is None and not task.cancelled():
            del self._tasks[entry.name]
            return
        loop = asyncio.get_running_loop()
        if loop.time() - entry.started_at >= HEALTHY_S:
            entry.pauses = iter(Backoffs())
        pause_s = next(entry.pauses)
        entry.task, entry.error = None, "cancelled" if task.cancelled() else repr(error) if error else "returned"
        self._metrics.task_restarts(entry.display_name)
        log.error("the task %s ended (%s), and restarts in %.1f s", entry.name, entry.error, pause_s, exc_info=error)
        entry.timer = loop.call_later(pause_s, self._begin, entry)

"""The loop of every worker: it reconciles when it is enqueued, and when the last reconcile's requeue time has passed.

Rules:
- After a failed reconcile the loop pauses for a growing backoff. After the first MIN_PAUSE_S of this backoff an enqueue
  ends the pause: the change that enqueued the worker may be the fix.
- After each reconcile the loop pauses for PAUSE_PER_PLANNING_S times the planning time, at most LONGEST_PAUSE_S. A job
  of thousands of pods changes all the time while they start. Without the pause, the operator would only plan.
- If a loop ends in another way than by `stop` or a last reconcile, the supervisor restarts it (supervisor.py), and it
  reconciles at once.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from understudy_operator.controllers.supervisor import TaskSupervisor
from understudy_operator.runtime.api import API_FAILURES
from understudy_operator.runtime.clock import jittered
from understudy_protocol import logs
from understudy_protocol.pauses import growing_pause_s

FIRST_BACKOFF_S = 0.2
LONGEST_BACKOFF_S = 30.0
MIN_PAUSE_S = 1.0
PAUSE_PER_PLANNING_S, LONGEST_PAUSE_S = 4.0, 0.5
#: Until the next reconcile, if the object changed during the last one. The new version was read already.
CONFLICT_S = 0.05
_NUMBERS = itertools.count()
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReconcileResult:
    """The result of a reconcile that has not failed."""

    requeue_after_s: float | None  # None: only when the loop is enqueued
    planning_s: float = 0.0  # the duration of the planning


class ReconcileLoop:
    """reconcile: one reconcile; None if nothing is left to reconcile, which ends the loop. The loop begins enqueued.
    log_context: the fields of its log lines. shown: the task name under which the supervisor reports all such loops.
    on_begin: called when a reconcile begins, with the seconds since the enqueue that caused it.
    """

    def __init__(
        self,
        name: str,
        reconcile: Callable[[], Awaitable[ReconcileResult | None]],
        log_context: Mapping[str, str],
        supervisor: TaskSupervisor,
        shown: str,
        on_begin: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._name, self._reconcile, self._log_context = name, reconcile, log_context
        self._on_begin, self._queued, self._queued_at = on_begin, asyncio.Event(), 0.0
        self._runs, self._is_last = False, False
        self._due_at: float | None = None  # by the event loop's time, while it waits
        #: A second loop for a job of the same name may start before the first has ended.
        self._supervisor, self._supervised_as = supervisor, f"{name} #{next(_NUMBERS)}"
        self.enqueue()
        supervisor.start(self._supervised_as, self._run, once=True, display_name=shown)

    @property
    def task(self) -> asyncio.Task[None] | None:
        """None once it has ended, and while it waits for its restart."""
        return self._supervisor.task(self._supervised_as)

    def enqueue(self) -> None:
        if not self.is_queued:
            self._queued_at = asyncio.get_running_loop().time()
        self._queued.set()

    @property
    def is_queued(self) -> bool:
        """Whether something has changed since the last reconcile began."""
        return self._queued.is_set()

    def is_due_within(self, seconds: float) -> bool:
        """Whether the next reconcile begins within this time even if nothing enqueues the loop."""
        return self._due_at is not None and self._due_at <= asyncio.get_running_loop().time() + seconds

    async def stop(self, finish_s: float = 0.0) -> None:
        """Begin no other reconcile. A running one has finish_s to end by itself."""
        self._is_last = True
        if self._runs and finish_s and self.task is not None:
            await asyncio.wait([self.task], timeout=finish_s)
        await self._supervisor.stop(self._supervised_as)

    async def _wait(self, requeue_after_s: float | None) -> None:
        if requeue_after_s is not None:
            self._due_at = asyncio.get_running_loop().time() + requeue_after_s
        # Not wait_for: in Python 3.11 it loses a cancellation that arrives together with the event.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(requeue_after_s):
                await self._queued.wait()
        self._due_at = None

    async def _run_one(self) -> ReconcileResult | None:
        self._runs = True
        try:
            return await self._reconcile()
        finally:
            self._runs = False

    async def _run(self) -> None:
        logs.about(**self._log_context)
        self.enqueue()
        failures = 0
        requeue_after_s: float | None = None
        reported = ""  # the last error that was logged with its traceback
        while True:
            await self._wait(requeue_after_s)
            if self.is_queued:
                self._on_begin(asyncio.get_running_loop().time() - self._queued_at)
            self._queued.clear()
            try:
                result = await self._run_one()
            except Exception as error:
                is_known = isinstance(error, API_FAILURES) or repr(error) == reported
                reported = reported if isinstance(error, API_FAILURES) else repr(error)
                trace = None if is_known else error
                failures += 1
                backoff_s = growing_pause_s(FIRST_BACKOFF_S, LONGEST_BACKOFF_S, failures)
                text = "%s: reconcile failed: %r; retrying in %.1f s"
                log.warning(text, self._name, error, backoff_s, exc_info=trace)
                if self._is_last:
                    return
                pause_s = jittered(backoff_s)
                await asyncio.sleep(min(pause_s, MIN_PAUSE_S))
                requeue_after_s = max(0.0, pause_s - MIN_PAUSE_S)
                continue
            if result is None or self._is_last:
                return
            requeue_after_s, failures = result.requeue_after_s, 0
            await asyncio.sleep(min(PAUSE_PER_PLANNING_S * result.planning_s, LONGEST_PAUSE_S))

"""The loop of every worker: a pass after each wake, and after the time that the last one has named.

Rules:
- After a failed pass nothing is tried for a backoff that grows, at most for MIN_PAUSE_S; after that a wake ends the
  rest of it: what has woken it may be the mend.
- After each pass nothing is decided for PAUSE_PER_PLANNING_S times as long as the decision took, at most for
  LONGEST_PAUSE_S: what consists of thousands of pods changes all the time while these start, and whoever decides anew
  at each change does nothing else.
- A loop that ends in another way than by `stop` or a last pass runs again (supervisor.py), and begins woken.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from understudy_operator.apply.api import API_FAILURES
from understudy_operator.clock import jittered
from understudy_operator.supervisor import Supervisor
from understudy_protocol import logs

FIRST_BACKOFF_S = 0.2
LONGEST_BACKOFF_S = 30.0
MIN_PAUSE_S = 1.0
PAUSE_PER_PLANNING_S, LONGEST_PAUSE_S = 4.0, 0.5
#: Until a pass over what has changed under the last one. It was read anew already.
CONFLICT_S = 0.05
_NUMBERS = itertools.count()
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReconcileResult:
    """A pass that has not failed."""

    requeue_after_s: float | None  # None: only once something wakes the loop
    planning_s: float = 0.0  # how long it took to decide


class ReconcileLoop:
    """reconcile: one pass; None once there is nothing left to care for, which ends the loop. It begins woken.
    about: what the log's lines are about. supervisor: its loops are shown as one task of the name `display_name`.
    """

    def __init__(
        self,
        name: str,
        reconcile: Callable[[], Awaitable[ReconcileResult | None]],
        log_context: Mapping[str, str],
        supervisor: Supervisor,
        shown: str,
    ) -> None:
        self._name, self._reconcile, self._log_context = name, reconcile, log_context
        self._queued = asyncio.Event()
        self._runs, self._is_last = False, False
        #: Of one job's name there may be a second loop before the first has ended.
        self._supervisor, self._supervised_as = supervisor, f"{name} #{next(_NUMBERS)}"
        self.enqueue()
        supervisor.start(self._supervised_as, self._run, once=True, display_name=shown)

    @property
    def task(self) -> asyncio.Task[None] | None:
        """None once it has ended, and while it waits to be started again."""
        return self._supervisor.task(self._supervised_as)

    def enqueue(self) -> None:
        self._queued.set()

    @property
    def is_queued(self) -> bool:
        """Whether something has changed since the last pass began."""
        return self._queued.is_set()

    async def stop(self, finish_s: float = 0.0) -> None:
        """No other pass begins. One that runs has so long to end by itself."""
        self._is_last = True
        if self._runs and finish_s and self.task is not None:
            await asyncio.wait([self.task], timeout=finish_s)
        await self._supervisor.stop(self._supervised_as)

    async def _run_one(self) -> ReconcileResult | None:
        self._runs = True
        try:
            return await self._reconcile()
        finally:
            self._runs = False

    async def _run(self) -> None:
        logs.about(**self._log_context)
        self.enqueue()
        backoff_s = FIRST_BACKOFF_S
        requeue_after_s: float | None = None
        reported = ""  # the error whose traceback was logged last
        while True:
            # Not wait_for: in Python 3.11 it loses a cancellation that comes together with the wake.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(requeue_after_s):
                    await self._queued.wait()
            self._queued.clear()
            try:
                result = await self._run_one()
            except Exception as error:
                is_known = isinstance(error, API_FAILURES) or repr(error) == reported
                reported = reported if isinstance(error, API_FAILURES) else repr(error)
                trace = None if is_known else error
                text = "%s: reconcile failed: %r; retrying in %.1f s"
                log.warning(text, self._name, error, backoff_s, exc_info=trace)
                if self._is_last:
                    return
                pause_s = jittered(backoff_s)
                await asyncio.sleep(min(pause_s, MIN_PAUSE_S))
                requeue_after_s, backoff_s = max(0.0, pause_s - MIN_PAUSE_S), min(2 * backoff_s, LONGEST_BACKOFF_S)
                continue
            if result is None or self._is_last:
                return
            requeue_after_s, backoff_s = result.requeue_after_s, FIRST_BACKOFF_S
            await asyncio.sleep(min(PAUSE_PER_PLANNING_S * result.planning_s, LONGEST_PAUSE_S))

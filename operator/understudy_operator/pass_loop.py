"""The loop of every worker: a pass after each wake, and after the time that the last one has named.

Rules:
- After a failed pass nothing is tried for a backoff that grows, at most for REST_S; after that a wake ends the rest of
  it: what has woken it may be the mend.
- After each pass nothing is decided for REST_OF_PASS times as long as the decision took, at most for LONGEST_REST_S:
  what consists of thousands of pods changes all the time while these start, and whoever decides anew at each change
  does nothing else.
- A loop that ends in another way than by `stop` or a last pass runs again (supervisor.py), and begins woken.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from understudy_operator.apply.api import TROUBLE
from understudy_operator.clock import jittered
from understudy_operator.supervisor import Supervisor
from understudy_protocol import logs

FIRST_BACKOFF_S = 0.2
LONGEST_BACKOFF_S = 30.0
REST_S = 1.0
REST_OF_PASS, LONGEST_REST_S = 4.0, 0.5
#: Until a pass over what has changed under the last one. It was read anew already.
CONFLICT_S = 0.05
_NUMBERS = itertools.count()
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Passed:
    """A pass that has not failed."""

    again_in_s: float | None  # None: only once something wakes the loop
    thought_s: float = 0.0  # how long it took to decide


class PassLoop:
    """run_pass: one pass; None once there is nothing left to care for, which ends the loop. It begins woken.
    about: what the log's lines are about. supervisor: its loops are shown as one task of the name `shown`.
    """

    def __init__(
        self,
        name: str,
        run_pass: Callable[[], Awaitable[Passed | None]],
        about: Mapping[str, str],
        supervisor: Supervisor,
        shown: str,
    ) -> None:
        self._name, self._run_pass, self._about = name, run_pass, about
        self._woken = asyncio.Event()
        self._runs, self._is_last = False, False
        #: Of one job's name there may be a second loop before the first has ended.
        self._supervisor, self._supervised_as = supervisor, f"{name} #{next(_NUMBERS)}"
        self.wake()
        supervisor.start(self._supervised_as, self._run, once=True, shown=shown)

    @property
    def task(self) -> asyncio.Task[None] | None:
        """None once it has ended, and while it waits to be started again."""
        return self._supervisor.task(self._supervised_as)

    def wake(self) -> None:
        self._woken.set()

    @property
    def waits(self) -> bool:
        """Whether something has changed since the last pass began."""
        return self._woken.is_set()

    async def stop(self, finish_s: float = 0.0) -> None:
        """No other pass begins. One that runs has so long to end by itself."""
        self._is_last = True
        if self._runs and finish_s and self.task is not None:
            await asyncio.wait([self.task], timeout=finish_s)
        await self._supervisor.stop(self._supervised_as)

    async def _run_one(self) -> Passed | None:
        self._runs = True
        try:
            return await self._run_pass()
        finally:
            self._runs = False

    async def _run(self) -> None:
        logs.about(**self._about)
        self.wake()
        backoff_s = FIRST_BACKOFF_S
        again_in_s: float | None = None
        reported = ""  # the error whose traceback was logged last
        while True:
            # Not wait_for: in Python 3.11 it loses a cancellation that comes together with the wake.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(again_in_s):
                    await self._woken.wait()
            self._woken.clear()
            try:
                passed = await self._run_one()
            except Exception as error:
                known = isinstance(error, TROUBLE) or repr(error) == reported
                reported = reported if isinstance(error, TROUBLE) else repr(error)
                trace = None if known else error
                text = "%s: reconcile failed: %r; retrying in %.1f s"
                log.warning(text, self._name, error, backoff_s, exc_info=trace)
                if self._is_last:
                    return
                pause_s = jittered(backoff_s)
                await asyncio.sleep(min(pause_s, REST_S))
                again_in_s, backoff_s = max(0.0, pause_s - REST_S), min(2 * backoff_s, LONGEST_BACKOFF_S)
                continue
            if passed is None or self._is_last:
                return
            again_in_s, backoff_s = passed.again_in_s, FIRST_BACKOFF_S
            await asyncio.sleep(min(REST_OF_PASS * passed.thought_s, LONGEST_REST_S))

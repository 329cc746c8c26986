"""Limits the operator's writes over all jobs: a token bucket that fills at a steady rate.

Waiting writes are served round robin: each namespace in turn, and each job of that namespace in turn. The writes of one
job stay in order. So a job that creates thousands of pods delays the next write of another job by one write for each
waiting namespace and job, and not by its whole backlog.
"""

import asyncio
from collections import deque
from collections.abc import Callable

WRITES_PER_S = 300.0
BURST = 300.0
#: A token, minus the rounding errors of summed times.
ONE_TOKEN = 1.0 - 1e-6

Waiter = asyncio.Future[None]


class Pace:
    def __init__(self, now: Callable[[], float], per_s: float = WRITES_PER_S, burst: float = BURST) -> None:
        self._now, self._per_s, self._burst = now, per_s, burst
        self._tokens, self._at = burst, now()
        #: Waiting writes, by namespace and job. The first of each is next; a job without waiting writes has no entry.
        self._waiting: dict[str, dict[str, deque[Waiter]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def acquire(self, namespace: str, uid: str) -> None:
        """Wait until the job or pool with that uid may send one more write."""
        self._fill()
        if not self._waiting and self._tokens >= ONE_TOKEN:
            self._tokens -= 1.0
            return
        waiter: Waiter = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(namespace, {}).setdefault(uid, deque()).append(waiter)
        self._set_timer()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._tokens += 1.0  # its write is not sent
            raise

    def _fill(self) -> None:
        now = self._now()
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self._at) * self._per_s)
        self._at = now

    def _set_timer(self) -> None:
        if self._waiting and self._timer is None:
            wait_s = max(0.0, 1.0 - self._tokens) / self._per_s
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._serve)

    def _serve(self) -> None:
        self._timer = None
        self._fill()
        while self._waiting and self._tokens >= ONE_TOKEN:
            waiter = self._next()
            if not waiter.done():  # else it was canceled
                waiter.set_result(None)
                self._tokens -= 1.0
        self._set_timer()

    def _next(self) -> Waiter:
        """The next waiter. Its namespace and its job go to the end of the line."""
        namespace = next(iter(self._waiting))
        jobs = self._waiting.pop(namespace)
        uid = next(iter(jobs))
        waiters = jobs.pop(uid)
        waiter = waiters.popleft()
        if waiters:
            jobs[uid] = waiters
        if jobs:
            self._waiting[namespace] = jobs
        return waiter

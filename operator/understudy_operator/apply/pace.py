"""Limits the operator's writes over all jobs: a token bucket that fills at a steady rate, and places in each namespace.

Waiting writes are served round robin: each namespace in turn, and each job of that namespace in turn. The writes of one
job stay in order. So a job that creates thousands of pods delays the next write of another job by one write for each
waiting namespace and job, and not by its whole backlog.

In each namespace, at most PLACES writes are on their way at once. If the API server gets more than it can finish within
its timeout of 34 s, it works on all of them and finishes almost none. This happened with 2,000 Services that get IP
addresses, and with the status of 2,000 jobs. The limit is for each namespace, because an admission webhook of one may
answer late. The Lease of the operator does not wait for a turn. Lists of the pods of child Jobs take turns too.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

WRITES_PER_S = 300.0
BURST = 300.0
#: In each namespace. By default, the API server accepts 200 writes at once.
PLACES = 128
#: A token, minus the rounding errors of summed times.
ONE_TOKEN = 1.0 - 1e-6

Waiter = asyncio.Future[None]


class Pace:
    def __init__(
        self, now: Callable[[], float], per_s: float = WRITES_PER_S, burst: float = BURST, places: int = PLACES
    ) -> None:
        self._now, self._per_s, self._burst, self._places = now, per_s, burst, places
        self._tokens, self._at = burst, now()
        #: Waiting writes, by namespace and job. The first of each is next; a job without waiting writes has no entry.
        self._waiting: dict[str, dict[str, deque[Waiter]]] = {}
        self._taken = Counter[str]()  # places, by namespace
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def turn(self, namespace: str, uid: str) -> AsyncGenerator[None]:
        """The body may send one write of the job or pool with that uid. It must not wait for another turn."""
        waiter: Waiter = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(namespace, {}).setdefault(uid, deque()).append(waiter)
        self._serve()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._tokens += 1.0  # its write is not sent
                self._leave(namespace)
            raise
        try:
            yield
        finally:
            self._leave(namespace)

    def _leave(self, namespace: str) -> None:
        self._taken[namespace] -= 1
        if not self._taken[namespace]:
            del self._taken[namespace]
        self._serve()

    def _serve(self) -> None:
        now = self._now()
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self._at) * self._per_s)
        self._at = now
        while (namespace := self._next_namespace()) is not None and self._tokens >= ONE_TOKEN:
            waiter = self._next(namespace)
            if not waiter.done():  # else it was canceled
                waiter.set_result(None)
                self._tokens -= 1.0
                self._taken[namespace] += 1
        if namespace is not None and self._timer is None:
            wait_s = max(0.0, 1.0 - self._tokens) / self._per_s
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._serve()

    def _next_namespace(self) -> str | None:
        """The first in the line with a free place."""
        return next((name for name in self._waiting if self._taken[name] < self._places), None)

    def _next(self, namespace: str) -> Waiter:
        """The next waiter of that namespace. Its namespace and its job go to the end of the line."""
        jobs = self._waiting.pop(namespace)
        uid = next(iter(jobs))
        waiters = jobs.pop(uid)
        waiter = waiters.popleft()
        if waiters:
            jobs[uid] = waiters
        if jobs:
            self._waiting[namespace] = jobs
        return waiter

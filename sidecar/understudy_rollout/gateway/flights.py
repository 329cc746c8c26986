"""Running requests through a gateway, and the weights that they use.

Rules: a request starts only while the weights are Fresh, and its whole answer is of that version: an update waits until
no request runs. Policy.ABORT ends the running requests; Policy.WAIT lets them finish, and ends the rest after
wait_limit_s. A request during an update is denied, with the reason and a time to retry. If the server is lost, all
running requests end, because their answers could come from another process in its place. An update also waits until no
call of an older update runs at the server, and is rejected if that takes longer than CALLS_LIMIT_S. Running requests
also end when a late call makes the weights Uncertain.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Optional

from understudy_rollout.gateway.weights_file import WeightsFile
from understudy_rollout.weights import Begin, Event, EventRejected, UpdateCall, WeightsLost, WeightsState

#: Seconds until a denied client may retry: an update takes seconds, and Uncertain weights wait for the next update.
RETRY_AFTER_S = {WeightsState.UPDATING: 1, WeightsState.UNCERTAIN: 5}
#: Less than an update's default timeout for `close`, 60 s.
WAIT_LIMIT_S = 45.0
#: For calls of older updates that run at the server when an update begins.
CALLS_LIMIT_S = 10.0


class Policy(Enum):
    """The treatment of running requests when an update begins."""

    ABORT = "abort"
    WAIT = "wait"


@dataclass(frozen=True)
class Denied:
    state: WeightsState
    reason: str
    retry_after_s: int


@dataclass(eq=False)
class InFlightRequest:
    """One running request, in the task that handles it."""

    task: "Optional[asyncio.Task[Any]]"
    aborted: bool = False


class InFlightRequests:
    def __init__(
        self, weights_file: WeightsFile, policy: Policy = Policy.ABORT, wait_limit_s: float = WAIT_LIMIT_S
    ) -> None:
        self.weights_file, self.weights = weights_file, weights_file.weights
        self._policy, self._await_limit_s = policy, wait_limit_s
        self._under_way: set[InFlightRequest] = set()
        self._all_ended: Optional[asyncio.Future[None]] = None
        self._calls: dict[object, str] = {}  # running calls to the server -> their update
        self._call_ended = asyncio.Event()

    def __len__(self) -> int:
        return len(self._under_way)

    def denied(self) -> Optional[Denied]:
        weights = self.weights
        if weights.state is WeightsState.FRESH:
            return None
        return Denied(weights.state, weights.reason, RETRY_AFTER_S[weights.state])

    @contextmanager
    def flight(self) -> Iterator[InFlightRequest]:
        """Registers this task as a running request. If it has to end, it is canceled and marked as aborted."""
        assert not self.weights.update
        flight = InFlightRequest(asyncio.current_task())
        self._under_way.add(flight)
        try:
            yield flight
        finally:
            self._under_way.discard(flight)
            if not self._under_way and self._all_ended is not None and not self._all_ended.done():
                self._all_ended.set_result(None)

    async def close(self, begin: Begin) -> int:
        """Admit no more requests, and wait until none runs. Return how many were aborted."""
        self.weights_file.handle(begin)
        if self._policy is Policy.WAIT:
            await self._until_all_ended(self._await_limit_s)
        aborted = self._abort()
        await self._until_all_ended(None)
        await self._until_older_calls_ended(begin)
        return aborted

    def handle(self, event: Event) -> int:
        """Handle an event of an update, but no Begin. Return the number of aborted requests. Raises EventRejected."""
        was_fresh, aborted = self.weights.state is WeightsState.FRESH, 0
        try:
            self.weights_file.handle(event)
        finally:
            if was_fresh and self.weights.state is not WeightsState.FRESH:
                aborted = self._abort()
        return aborted

    @contextmanager
    def call(self, call: UpdateCall) -> Iterator[None]:
        """Registers a running call of the running update to the server. Raises EventRejected."""
        self.handle(call)
        this = object()
        self._calls[this] = call.update
        try:
            yield
        finally:
            del self._calls[this]
            self._call_ended.set()

    def on_engine_lost(self, lost: WeightsLost) -> int:
        """The server is lost. Return how many requests were aborted."""
        self.weights_file.on_engine_lost(lost)
        return self._abort()

    def _abort(self) -> int:
        aborted = list(self._under_way)
        for flight in aborted:
            flight.aborted = True
            if flight.task is not None:
                flight.task.cancel()
        return len(aborted)

    async def _until_older_calls_ended(self, begin: Begin) -> None:
        end = asyncio.get_running_loop().time() + CALLS_LIMIT_S
        while True:
            older = next((update for update in self._calls.values() if update != begin.update), None)
            if older is None:
                return
            self._call_ended.clear()
            try:
                await asyncio.wait_for(self._call_ended.wait(), end - asyncio.get_running_loop().time())
            except (asyncio.TimeoutError, TimeoutError) as error:
                raise EventRejected(
                    f"a call of update {older} still runs at the server after {CALLS_LIMIT_S:g} s, and may change its "
                    f"weights: restart the server, or stop the trainer of that update"
                ) from error

    async def _until_all_ended(self, limit_s: Optional[float]) -> None:
        if not self._under_way:
            return
        if self._all_ended is None or self._all_ended.done():
            self._all_ended = asyncio.get_running_loop().create_future()
        await asyncio.wait({self._all_ended}, timeout=limit_s)

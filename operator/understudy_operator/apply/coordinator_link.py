"""The operator's connections to one job's pods: finds the coordinator. plan/leadership/search.py decides.

Runs until closed. The result is in `coordination`. `on_change` is called when it needs a reconcile at once. Answers
during a search and the training's steps can wait for the next reconcile.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from understudy_operator.plan.facts.observed import Coordination
from understudy_operator.plan.intents import MESSAGE_BYTES, Callee, Follow
from understudy_operator.plan.leadership.search import PodMessage, Search
from understudy_operator.runtime.line import FAILURES, Keys, Line, Share, open_line
from understudy_protocol import wire
from understudy_protocol.frames import ProtocolError
from understudy_protocol.membership import Close
from understudy_protocol.observer import End

#: How often a search decides which pod to call next.
SEARCH_EVERY_S = 0.25
END_TIMEOUT_S = 1.0
LOG_INTERVAL_S = 60.0
log = logging.getLogger(__name__)


@dataclass
class _Call:
    callee: Callee
    line: Line | None = None  # once it is open
    task: asyncio.Task[None] | None = None


class CoordinatorLink:
    def __init__(
        self,
        job_uid: str,
        keys: Keys,
        before: Coordination,
        on_change: Callable[[], None],
        share: Share | None = None,
    ) -> None:
        self._job_uid, self._keys, self._on_change = job_uid, keys, on_change
        self._search = Search(before, time.time())
        self._version = self._search.version
        self._logged_at = -LOG_INTERVAL_S
        self._share, self._message_bytes = share or Share(), MESSAGE_BYTES
        self._calls: dict[str, _Call] = {}
        self._changed = asyncio.Event()
        self._received = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"coordinator-link {job_uid}")
        self._is_closed = False
        self._task.add_done_callback(lambda _: self._ended())

    @property
    def coordination(self) -> Coordination:
        return self._search.coordination

    def follow(self, follow: Follow) -> None:
        """Follow the newest plan."""
        self._message_bytes = follow.message_bytes
        for call in self._calls.values():
            if call.line is not None:
                call.line.limit(follow.message_bytes)
        self._handle_search(self._search.follow(follow, time.time()))

    async def end(self, end: End) -> Close | None:
        """Ask the coordinator to close the rendezvous; without a coordinator, ask every connected pod.

        Returns the close of the rendezvous, which may be an earlier one than `end`; None if no coordinator answers
        within END_TIMEOUT_S.
        """
        holder = self._calls.get(self.coordination.coordinator_uid)
        calls = self._calls.values() if holder is None else [holder]
        lines = [call.line for call in calls if call.line is not None]
        for line in lines:
            line.enqueue(end)
        await asyncio.gather(*(line.flush(END_TIMEOUT_S) for line in lines))
        with suppress(TimeoutError):
            async with asyncio.timeout(END_TIMEOUT_S if holder is not None else 0.0):
                while self._closed is None:
                    self._received.clear()
                    await self._received.wait()
        return self._closed

    @property
    def _closed(self) -> Close | None:
        snapshot = self.coordination.snapshot
        return None if snapshot is None else snapshot.closed

    async def close(self) -> None:
        self._is_closed = True
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    @property
    def has_ended(self) -> bool:
        """Whether it was closed or has failed. Then a new link is needed."""
        return self._task.done()

    def _ended(self) -> None:
        if not self._is_closed:
            self._on_change()  # the next reconcile creates a new link

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._keep_calling(tasks)
        except Exception:
            log.exception("job %s: the connections to its pods failed", self._job_uid)

    async def _keep_calling(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            self._changed.clear()
            self._dial(tasks)
            idle = self._search.is_idle(time.time())
            with suppress(TimeoutError):
                async with asyncio.timeout(None if idle else SEARCH_EVERY_S):
                    await self._changed.wait()

    def _dial(self, tasks: asyncio.TaskGroup) -> None:
        """Open the wanted lines, and end all others."""
        wanted = self._search.calls(time.time())
        for uid, call in list(self._calls.items()):
            assert call.task is not None
            if wanted.get(uid) is not call.callee or call.task.done():
                call.task.cancel()
                del self._calls[uid]
        for uid, callee in wanted.items():
            if uid not in self._calls:
                call = self._calls[uid] = _Call(callee)
                call.task = tasks.create_task(self._run_line(call), name=f"line to {callee.address}")

    async def _run_line(self, call: _Call) -> None:
        """One line from its first message to its end."""
        callee = call.callee
        try:
            limit = self._message_bytes
            line = open_line(callee.address, callee.pod_uid, self._job_uid, self._keys, limit, self._share)
            async with line as call.line:
                call.line.enqueue(callee.greeting)
                async for message in call.line.messages():
                    self._handle_search(self._search.on_message(callee, message, time.time()))
        except (ProtocolError, wire.WireError) as error:
            self._log_violation(f"pod {callee.pod_uid} at {callee.address} breaks the protocol: {error}; reconnecting")
        except FAILURES as error:
            log.debug("pod %s: %r", callee.address, error)
        except Exception:
            log.exception("the connection to pod %s failed; reconnecting", callee.address)
        self._search.on_line_ended(callee, time.time())
        self._handle_search([])

    def _log_violation(self, text: str) -> None:
        """At most once in LOG_INTERVAL_S, so that no pod can fill the log."""
        if time.monotonic() - self._logged_at >= LOG_INTERVAL_S:
            self._logged_at = time.monotonic()
            log.warning("job %s: %s", self._job_uid, text)

    def _handle_search(self, messages: list[PodMessage]) -> None:
        for message in messages:
            call = self._calls[message.pod_uid]
            assert call.line is not None, "the coordinator has just sent a message"
            call.line.enqueue(message.message)
        self._changed.set()
        self._received.set()
        if self._search.version != self._version:
            self._version = self._search.version
            self._on_change()

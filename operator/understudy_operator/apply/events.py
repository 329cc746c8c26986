"""Kubernetes Events on an object of ours, or on an object whose pods are injected.

Rules:
- An event is written at least once. It is sent again if it got no answer, or if this replica may not write now.
- Its name is derived from the reported fact. So the API server rejects a second write as AlreadyExists, and users see
  the event once. A new leader relies on this: it sends the recorded facts again (recorded_events).
- Reconciles never wait for events: each object has a task that sends its events.
- An object's events are sent at most BURST at once, then EVENTS_PER_S: a coordinator decides how often a fault begins.
- An event that the API server rejects is logged and dropped, and so is one that could not be sent for KEPT_S.
"""

import asyncio
import hashlib
import logging
import os
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from understudy_operator.apply.pace import Pace
from understudy_operator.observe.store import Raw
from understudy_operator.plan.intents import Event
from understudy_operator.plan.status.events import RECENT_S
from understudy_operator.runtime.api import API_FAILURES, Api, ApiError
from understudy_operator.runtime.clock import Backoffs

KEPT_S = RECENT_S
EVENTS_PER_S, BURST = 2.0, 100.0
#: For one object. Beyond this the oldest are dropped.
MOST_WAITING = 200
NAME_CHARACTERS = 230
#: The API server rejects an event with a longer note.
NOTE_BYTES = 1024
log = logging.getLogger(__name__)


def event_of(regarding: Mapping[str, str], event: Event) -> Raw:
    """The event's manifest. regarding: the reference to the object."""
    identity = f"{regarding['kind']}|{regarding['uid']}|{event.key}"
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {
            "name": f"{regarding['name'][:NAME_CHARACTERS].rstrip('-.')}.{digest}",
            "namespace": namespace_of(regarding),
        },
        "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "type": event.type,
        "reason": event.reason,
        "action": event.reason,
        "note": event.message.encode(errors="replace")[:NOTE_BYTES].decode(errors="ignore"),
        "reportingController": "understudy.dev/operator",
        "reportingInstance": os.environ.get("HOSTNAME", "understudy-operator"),
        "regarding": regarding,
    }


def namespace_of(regarding: Mapping[str, str]) -> str:
    """The namespace of an object's events. Events on nodes are in the namespace that Kubernetes uses for them, too."""
    return regarding.get("namespace", "default")


async def send_event(api: Api, pace: Pace, regarding: Mapping[str, str], event: Event) -> None:
    """Raises one of API_FAILURES if the event must be sent again. A rejected event is only logged."""
    namespace = namespace_of(regarding)
    try:
        async with pace.turn(namespace, regarding["uid"]):
            await api.create(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events", event_of(regarding, event))
    except ApiError as error:
        if error.status == 429 or error.status >= 500:
            raise
        if error.reason != "AlreadyExists":
            where = f"{regarding['kind']} {namespace}/{regarding['name']}"
            log.warning("%s: event %s was rejected: %r", where, event.reason, error)


class Outbox:
    """The unwritten events of one object, the oldest first. pace: of all writes of this operator."""

    def __init__(self, api: Api, pace: Pace, steady: Callable[[], float]) -> None:
        self._api, self._pace, self._steady = api, pace, steady
        self._own_pace = Pace(steady, EVENTS_PER_S, BURST)
        self._waiting: deque[tuple[float, Mapping[str, str], Event]] = deque(maxlen=MOST_WAITING)
        self._task: asyncio.Task[None] | None = None

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    def add(self, regarding: Mapping[str, str], events: Iterable[Event]) -> None:
        """Send them soon, and retry until they are written."""
        for event in events:
            named = event if event.key else replace(event, key=secrets.token_hex(8))
            self._waiting.append((self._steady(), regarding, named))
        if self._waiting and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._send_all(), name="events")

    async def stop(self, finish_s: float = 0.0) -> None:
        """Events that could not be sent in that time are dropped."""
        if self._task is not None:
            if finish_s:
                await asyncio.wait([self._task], timeout=finish_s)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._waiting.clear()

    async def _send_all(self) -> None:
        pauses = iter(Backoffs())
        while self._waiting:
            async with self._own_pace.turn("", ""):
                pass  # this pace limits only how often: the outbox has one event on its way at a time
            entry = self._waiting[0]
            added_at, regarding, event = entry
            try:
                await send_event(self._api, self._pace, regarding, event)
            except API_FAILURES as error:
                if self._steady() - added_at < KEPT_S:
                    log.info("retrying event %s on %s: %r", event.reason, regarding["name"], error)
                    await asyncio.sleep(next(pauses))
                    continue
                log.warning("event %s on %s was not written: %r", event.reason, regarding["name"], error)
            except Exception:
                log.exception("event %s on %s was not written", event.reason, regarding["name"])
            pauses = iter(Backoffs())
            if self._waiting and self._waiting[0] is entry:  # else newer events have pushed it out
                self._waiting.popleft()

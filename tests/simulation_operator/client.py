"""The requests and watches of one operator process, with all their faults.

- A request needs time in each direction. It may be answered with 429, 500 or 504, or not at all, before or after it was
  executed.
- A process that cancels a request does not revoke it: it may still arrive.
- A watch is slow, repeats events, delivers them out of order or loses them. When it has to restart (410), it reports
  all existing objects, and no deletions from meanwhile.
- While the server is down, or this process is disconnected, requests are rejected or hang, and watches report nothing.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.simulation_operator.api_server import ApiServer, Raw
from understudy_operator.observe.store import Kind
from understudy_operator.operator import Operator
from understudy_operator.plan.facts.queue import API_GROUP
from understudy_operator.runtime.api import REQUEST_S, Api, ApiError, Query
from understudy_protocol import pod as names

WATCHED = {
    "trainingjobs": (Kind.JOB, ""),
    "hotsparepools": (Kind.POOL, ""),
    "pods": (Kind.POD, names.LABEL_JOB_UID),
    "jobs": (Kind.CHILD, names.LABEL_JOB_UID),
    "services": (Kind.SERVICE, names.LABEL_JOB_UID),
    "nodes": (Kind.NODE, ""),
}
#: A request arrives within this time, even a cancelled one: less than the time that a lease leaves between two leaders.
LATEST_S = 0.9


@dataclass
class ClientFaults:
    """The probability of each fault, for a request or an event. All of them end when the faults of the run end."""

    slow: float = 0.0
    throttled: float = 0.0
    failed: float = 0.0
    unanswered: float = 0.0
    claim_unanswered: float = 0.0  # the same for claims, which are few
    list_unanswered: float = 0.0  # and for the lists of a few pods, for which a reconcile waits
    event_lost: float = 0.0
    event_twice: float = 0.0
    event_late: float = 0.0
    away_until: float = 0.0  # until then the API server is down


@dataclass
class Process:
    """A process of the operator: its requests and its watches."""

    server: ApiServer
    faults: ClientFaults
    rng: random.Random
    name: str
    on_write: Callable[[Process, str, str, Raw | None], None]
    dead: bool = False
    cut_until: float = 0.0
    operator: Operator | None = None
    requests: int = 0
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def reaches(self) -> bool:
        return not self.dead and self.server.now() >= max(self.faults.away_until, self.cut_until)

    # Requests

    def connect(self, may_write: Callable[[], bool]) -> Api:
        return _Client(self, may_write)

    async def request(self, method: str, path: str, query: Mapping[str, str], body: Raw | None) -> Raw:
        rng, trouble = self.rng, self.faults
        self.requests += 1
        delay_s = rng.uniform(0.1, LATEST_S) if rng.random() < trouble.slow else rng.uniform(0.001, 0.01)
        arrives_at = self.server.now() + delay_s
        try:
            await asyncio.sleep(delay_s)
        except asyncio.CancelledError:
            if method != "GET" and not self.dead and rng.random() < 0.5:
                left_s = max(0.0, arrives_at - self.server.now())
                self._loop.call_later(left_s, self._arrive_unanswered, method, path, query, body)
            raise
        if not self.reaches():
            await asyncio.sleep(rng.choice([0.0, 0.0, REQUEST_S]))
            raise aiohttp.ClientConnectionError("the API server is away")
        if rng.random() < trouble.throttled:
            raise ApiError(429, "TooManyRequests", "too many requests", rng.choice([1.0, 3.0]))
        if rng.random() < trouble.failed:
            raise ApiError(500, "InternalError", "etcdserver: leader changed")
        answer = self._arrive(method, path, query, body)
        if rng.random() < self._lost(query, body):
            if rng.random() < 0.3:
                raise ApiError(504, "Timeout", "request did not complete within the allotted timeout")
            await asyncio.sleep(rng.choice([0.05, 2.0, REQUEST_S]))
            raise TimeoutError
        await asyncio.sleep(rng.uniform(0.001, 0.01))
        return answer

    def _lost(self, query: Mapping[str, str], body: Raw | None) -> float:
        """The probability that there is no answer."""
        of_claim = self.faults.claim_unanswered if _claims(body) else 0.0
        of_list = self.faults.list_unanswered if "fieldSelector" in query else 0.0
        return max(self.faults.unanswered, of_claim, of_list)

    def _arrive(self, method: str, path: str, query: Mapping[str, str], body: Raw | None) -> Raw:
        if method != "GET" and "dryRun" not in query:
            self.on_write(self, method, path, body)
        return copy.deepcopy(self.server.handle(method, path, query, copy.deepcopy(body)))

    def _arrive_unanswered(self, method: str, path: str, query: Mapping[str, str], body: Raw | None) -> None:
        if self.server.now() >= self.faults.away_until:
            with suppress(ApiError):
                self._arrive(method, path, query, body)

    # Watches

    def on_change(self, plural: str, kind: str, raw: Raw) -> None:
        if plural not in WATCHED or not self.reaches() or WATCHED[plural][1] not in {"", *_labels(raw)}:
            return
        rng, trouble = self.rng, self.faults
        if rng.random() < trouble.event_lost:
            return
        self._deliver_event_later(plural, kind, raw)
        if rng.random() < trouble.event_twice:
            self._deliver_event_later(plural, kind, raw)

    def restart_watches(self) -> None:
        """As after a 410: report all existing objects."""
        for plural, (_, label) in WATCHED.items():
            for raw in self.server.of(plural, label):
                self._deliver_event_later(plural, "", raw)

    def _deliver_event_later(self, plural: str, kind: str, raw: Raw) -> None:
        late = self.rng.random() < self.faults.event_late
        delay_s = self.rng.uniform(0.1, 6.0) if late else self.rng.uniform(0.001, 0.05)
        self._loop.call_later(delay_s, self._deliver_event, WATCHED[plural][0], kind, copy.deepcopy(raw))

    def _deliver_event(self, kind: Kind, event_type: str, raw: Raw) -> None:
        if not self.dead and self.operator is not None:
            self.operator.on_watch_event(kind, event_type or None, raw)


class _Client(Api):
    def __init__(self, process: Process, may_write: Callable[[], bool]) -> None:
        super().__init__(None, may_write)
        self._process = process

    async def send(self, method: str, path: str, query: Query, body: Mapping[str, Any] | None, content: str) -> Raw:
        del content
        if path == f"/apis/{API_GROUP}":  # without faults, so that it changes no seed's schedule
            raise ApiError(404, "NotFound", f"{path} not found")
        return await self._process.request(method, path, dict(query), None if body is None else dict(body))


def _claims(body: Raw | None) -> bool:
    """Whether a request claims a pool's spare."""
    annotations = (body or {}).get("metadata", {}).get("annotations") or {}
    return annotations.get(names.ANNOTATION_CLAIMED_AT) is not None


def _labels(raw: Raw) -> set[str]:
    return set(raw["metadata"].get("labels", {}))

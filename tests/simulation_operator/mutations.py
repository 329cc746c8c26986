"""Rules broken on purpose, one at a time: the simulation has to find each.

A rule whose breach the next list mends (a late word that wins) is for the unit tests of the store; the election's times
are for those of plan/leadership.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from unittest import mock

from understudy_operator import worker
from understudy_operator.apply.api import TROUBLE, Api
from understudy_operator.apply.events import Outbox, send_event
from understudy_operator.apply.gateway import Gateway
from understudy_operator.apply.pools import PoolGateway
from understudy_operator.observe.store import Key, Kind, Raw, Store, owners_of
from understudy_operator.operator import Operator
from understudy_operator.plan.observed import Observed
from understudy_operator.plan.pool import adopting, claiming, reconcile
from understudy_operator.resync import Resync


@dataclass(frozen=True)
class Mutation:
    what: str
    where: Any
    name: str
    instead: Any
    warm: bool = False  # of pools whose spares have a launcher


async def _settles_nothing(self: Gateway, job: Any, refused_too: bool = True) -> None:
    del self, job, refused_too


def _lets_nothing_be_settled(self: Gateway, job_uid: str, name: str) -> None:
    del self, job_uid, name


def _never_looks_at_the_lease(self: Operator) -> bool:
    del self
    return True


def _lists_only_add(self: Store, kind: Kind, raws: list[Raw], asked_at: float) -> None:
    del asked_at
    for raw in raws:
        self.put(kind, raw)


async def _lists_once(self: Resync) -> None:
    while not self.done_once:
        with suppress(*TROUBLE):
            await self.list_all(self.due())
            self.done_once = True
    self._on_listed()
    await asyncio.Event().wait()


async def _sends_once(self: Outbox) -> None:
    while self._waiting:
        _, regarding, event = self._waiting.popleft()
        with suppress(*TROUBLE):
            await send_event(self._api, self._pace, regarding, event)


MUTATIONS = (
    Mutation("a creation without an answer is not asked for again", Gateway, "settle", _settles_nothing),
    Mutation("what was answered is not struck off", Gateway, "_answered", _lets_nothing_be_settled),
    Mutation("a write does not ask for the lease", Operator, "leads", _never_looks_at_the_lease),
    Mutation("a list removes nothing", Store, "replace", _lists_only_add),
    Mutation("nothing is listed after the start", Resync, "run", _lists_once),
    Mutation("an event without an answer is not sent again", Outbox, "_send_all", _sends_once),
    Mutation("a new leader sends no event that status records", worker, "recorded_events", lambda *_: ()),
)


def _forgets_the_version(self: Api, path: str, body: Any) -> Any:
    metadata = {name: value for name, value in body["metadata"].items() if name != "resourceVersion"}
    return _merge(self, path, {**body, "metadata": metadata})


def _releases_nothing(pods: Any, claimants: Any) -> tuple[Any, ...]:
    del pods, claimants
    return ()


def _has_taken_no_place(observed: Observed) -> frozenset[str]:
    del observed
    return frozenset()


async def _settles_no_claim(self: PoolGateway, job_uid: str) -> None:
    del self, job_uid


def _keeps_whom_nothing_concerns(self: Store, kind: Kind, key: Key) -> None:
    entry = self._entries[kind].pop(key, None)
    for owner in () if entry is None else owners_of(entry.raw):
        self._of_job[kind, owner].discard(key)
        self._facts_of_job.pop((kind, owner), None)


_merge = Api.merge
POOL_MUTATIONS = (
    Mutation("a claim does not count on the version", Api, "merge", _forgets_the_version),
    # Found by what is left to be settled for ever. A second spare is claimed only where another one has become the best
    # meanwhile: else the next pass claims the same one, is refused by its version, and reads it anew.
    Mutation("a claim without an answer is not asked for again", PoolGateway, "settle", _settles_no_claim),
    Mutation("claims of jobs that are gone stay", reconcile, "plan_releases", _releases_nothing),
    Mutation("a claim that is carried out stays", claiming, "places_taken", _has_taken_no_place),
    Mutation("of what is gone the index keeps whom it concerned", Store, "_forget", _keeps_whom_nothing_concerns),
    Mutation("a spare that was claimed Warm is not told", adopting, "unadopted", lambda _: [], warm=True),
    Mutation("one that cannot be told stays", adopting, "ADOPT_WITHIN_S", float("inf"), warm=True),
)


@contextmanager
def broken(mutation: Mutation) -> Iterator[None]:
    with mock.patch.object(mutation.where, mutation.name, mutation.instead):
        yield

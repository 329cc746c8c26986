"""Writes an Event on each malformed object, while this replica leads.

Rules: an Event is written once for each object and message, from which its name is derived. Tenants decide how many of
their objects are malformed, and how often the messages change. So at most EVENTS are written in EVERY_S. Namespaces
with new messages take turns: the one whose last turn is longest ago goes first. A failed request costs a turn, too. If
the operator watches named namespaces, it writes Events only there. Nodes then have only a log line and a metric.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Collection

from understudy_operator.apply.events import namespace_of, send_event
from understudy_operator.apply.pace import Pace
from understudy_operator.observe.store import Kind, MalformedObject, Store
from understudy_operator.plan.facts.ownership import API_VERSION, INJECTED_KIND, KIND, POOL_KIND
from understudy_operator.plan.intents import Event
from understudy_operator.runtime.api import API_FAILURES, Api

EVERY_S = 2.0
EVENTS = 20
#: apiVersion and kind for an Event's reference to an object.
_REFERENCES = {
    Kind.JOB: (API_VERSION, KIND),
    Kind.POOL: (API_VERSION, POOL_KIND),
    Kind.INJECTED: (API_VERSION, INJECTED_KIND),
    Kind.POD: ("v1", "Pod"),
    Kind.NODE: ("v1", "Node"),
    Kind.SERVICE: ("v1", "Service"),
    Kind.CHILD: ("batch/v1", "Job"),
    Kind.CLAIM: ("v1", "PersistentVolumeClaim"),
}
log = logging.getLogger(__name__)


class MalformedEvents:
    """namespaces: the watched ones; empty: all."""

    def __init__(self, api: Api, store: Store, pace: Pace, namespaces: Collection[str] = ()) -> None:
        self._api, self._store, self._pace, self._namespaces = api, store, pace, namespaces
        self._written: set[tuple[Kind, str, str]] = set()
        self._served: dict[str, int] = {}  # namespaces with malformed objects -> the number of their last turn
        self._served_count = 0

    async def run(self) -> None:
        while True:
            await self.run_once()
            await asyncio.sleep(EVERY_S)

    async def run_once(self) -> None:
        """Write the Events that are due."""
        malformed = [found for kind in Kind for found in self._store.malformed(kind) if self._may_have_event(found)]
        self._written &= {_identity(found) for found in malformed}
        namespaces = {found.namespace for found in malformed}
        self._served = {name: turn for name, turn in self._served.items() if name in namespaces}
        new = [found for found in malformed if _identity(found) not in self._written]
        for found in self._in_turn(new)[:EVENTS]:
            self._served_count += 1
            self._served[found.namespace] = self._served_count
            try:
                await send_event(self._api, self._pace, _regarding(found), _event(found))
            except API_FAILURES as error:
                log.info("retrying the event on %s %s: %r", found.kind.value, found.name, error)
                return
            self._written.add(_identity(found))

    def _may_have_event(self, found: MalformedObject) -> bool:
        where = namespace_of(_regarding(found))
        return bool(found.uid) and (not self._namespaces or where in self._namespaces)

    def _in_turn(self, new: list[MalformedObject]) -> list[MalformedObject]:
        """The first object of each namespace, then the second ones, and so on."""
        places = Counter[str]()
        order: list[tuple[int, int, MalformedObject]] = []
        for found in new:
            order.append((places[found.namespace], self._served.get(found.namespace, 0), found))
            places[found.namespace] += 1
        return [found for *_, found in sorted(order, key=lambda entry: entry[:2])]


def _identity(found: MalformedObject) -> tuple[Kind, str, str]:
    return found.kind, found.uid, found.message


def _regarding(found: MalformedObject) -> dict[str, str]:
    api_version, kind = _REFERENCES[found.kind]
    named = {"apiVersion": api_version, "kind": kind, "name": found.name, "uid": found.uid}
    return named | ({"namespace": found.namespace} if found.namespace else {})


def _event(found: MalformedObject) -> Event:
    message = (
        f"{found.message}. Correct this object; until then the operator ignores the parts of it that it cannot read"
    )
    return Event("Warning", "MalformedObject", message, f"Malformed/{found.message}")

"""The lists behind the watches: from them a watch continues, and they repair what a watch has lost.

Rules: a list is consistent (without a resourceVersion, the API server answers with its newest state and not from a
cache), because the store removes objects that a list lacks. It comes in pages. A failed list is retried soon, and the
lists before it count: occasional errors do not stop the resync, and an API server that is down is asked with growing
pauses. All pauses have random lengths, so replicas and operators do not all come back at once after an outage.
If the API server forbids the lists of a namespace (its RoleBinding is missing, or the namespace is deleted), no other
namespace waits. The store keeps that namespace's content, and the operator decides nothing about it until all of its
lists succeed. The items of other shards are dropped as they arrive.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from understudy_operator.observe.store import Kind, Raw, Store, key_of
from understudy_operator.plan.facts.ownership import API_VERSION
from understudy_operator.plan.leadership.shard import SINGLE_SHARD, Shard
from understudy_operator.runtime.api import API_FAILURES, Api, ApiError, in_namespaces, namespace_in
from understudy_operator.runtime.clock import Clock, jittered
from understudy_protocol import pod as names
from understudy_protocol.pauses import growing_pause_s

#: How often `on_listed` is called, and kinds without a watch are listed.
RESYNC_S = 60.0
#: A watch reports everything that the API server sends. The list repairs what the API server did not send.
RESYNC_WATCHED_S = 600.0
FIRST_RETRY_S = 1.0
LONGEST_RETRY_S = 15.0
PATHS = {
    Kind.NODE: ("/api/v1/nodes", ""),
    Kind.SERVICE: ("/api/v1/services", names.LABEL_JOB_UID),
    Kind.CLAIM: ("/api/v1/persistentvolumeclaims", names.LABEL_JOB_UID),
    Kind.POD: ("/api/v1/pods", names.LABEL_JOB_UID),
    Kind.INJECTED: (f"/apis/{API_VERSION}/injectedjobs", ""),
    Kind.CHILD: ("/apis/batch/v1/jobs", names.LABEL_JOB_UID),
    Kind.POOL: (f"/apis/{API_VERSION}/hotsparepools", ""),
    Kind.JOB: (f"/apis/{API_VERSION}/trainingjobs", ""),
}
log = logging.getLogger(__name__)


def paths_of(kind: Kind, namespaces: Sequence[str]) -> tuple[str, ...]:
    """The collections of the kind: one of all namespaces, or one for each. Nodes have no namespace."""
    return (PATHS[kind][0],) if kind is Kind.NODE else in_namespaces(PATHS[kind][0], namespaces)


class Resync:
    """on_listed: called after each round of lists. watched: the kinds that have a watch, and are listed seldom.
    namespaces: empty: all.
    """

    def __init__(
        self,
        api: Api,
        store: Store,
        clock: Clock,
        on_listed: Callable[[], None],
        watched: Iterable[Kind] = (),
        namespaces: tuple[str, ...] = (),
        shard: Shard = SINGLE_SHARD,
    ) -> None:
        self._api, self._store, self._clock, self._on_listed = api, store, clock, on_listed
        self._shard = shard
        self._watched, self._namespaces = frozenset(watched), namespaces
        self._versions: dict[str, str] = {}  # by path
        self._listed_at: dict[Kind, float] = {}
        self._listed = {path: asyncio.Event() for kind in PATHS for path in paths_of(kind, namespaces)}
        self._forbidden: dict[Kind, frozenset[str]] = {}  # namespaces
        self.done_once = False

    async def run(self) -> None:
        while True:
            await self._list_due()
            self.done_once = True
            self._on_listed()
            await asyncio.sleep(jittered(LONGEST_RETRY_S if any(self._forbidden.values()) else RESYNC_S))

    async def _list_due(self) -> None:
        due, failures = self.due(), 0
        while due:
            before = len(due)
            try:
                await self.list_all(due)
            except API_FAILURES as error:
                failures = 1 if len(due) < before else failures + 1
                retry_s = growing_pause_s(FIRST_RETRY_S, LONGEST_RETRY_S, failures)
                log.warning("could not list %s; retrying in about %.0f s: %r", due[0].value, retry_s, error)
                await asyncio.sleep(jittered(retry_s))

    async def list_kind(self, kind: Kind) -> None:
        requested_at = self._clock.steady()
        items: list[Raw] = []
        versions: dict[str, str] = {}
        forbidden, select_fields = set[str](), self._store.item_filter(kind)

        def keep(raw: dict[str, Any]) -> dict[str, Any] | None:
            return select_fields(raw) if self._shard.owns(key_of(raw)[0]) else None

        for path in paths_of(kind, self._namespaces):
            try:
                listed = await self._api.list(path, PATHS[kind][1], keep)
            except ApiError as error:
                namespace = namespace_in(path)
                if error.status != 403 or not namespace:
                    raise
                forbidden.add(namespace)
                items += [raw for raw in self._store.all(kind) if key_of(raw)[0] == namespace]
                self._listed[path].clear()
                self._warn_once(kind, namespace, error)
                continue
            items += listed.items
            versions[path] = listed.version
        self._store.replace(kind, items, requested_at)
        self._versions |= versions
        self._listed_at[kind], self._forbidden[kind] = requested_at, frozenset(forbidden)
        for path in versions:
            self._listed[path].set()

    async def first(self, path: str) -> str:
        """Wait for the first list of the path. Return the newest list's version, from which a watch continues."""
        await self._listed[path].wait()
        return self._versions[path]

    def is_readable(self, namespace: str) -> bool:
        return not any(namespace in forbidden for forbidden in self._forbidden.values())

    def _warn_once(self, kind: Kind, namespace: str, error: ApiError) -> None:
        if namespace not in self._forbidden.get(kind, ()):
            log.warning(
                "may not list %s in namespace %s, so its jobs and pools wait: install the chart again, or remove the "
                "namespace from watchNamespaces: %s",
                kind.value,
                namespace,
                error,
            )

    def due(self) -> list[Kind]:
        """The kinds to list now, in the order of PATHS."""
        return [kind for kind in PATHS if not self._is_known(kind)]

    async def list_all(self, due: list[Kind]) -> None:
        """Remove each kind from `due` once it is listed. Raises one of API_FAILURES."""
        while due:
            await self.list_kind(due[0])
            del due[0]

    def _is_known(self, kind: Kind) -> bool:
        listed_at = self._listed_at.get(kind)
        if kind not in self._watched or listed_at is None or self._forbidden.get(kind):
            return False
        return self._clock.steady() - listed_at < RESYNC_WATCHED_S

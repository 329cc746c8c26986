"""The periodic lists behind the watches: what a watch has lost is known a minute later at most.

Rules: a list is consistent (no resourceVersion is given: the API server answers with its newest state, and not with
some cache's), because what it lacks is taken for gone; it comes page by page. One that fails is tried again soon, and
those before it count: an API server that fails now and then is got through, one that is away is asked with growing
pauses. Every pause is of random length, so that replicas and operators do not come all at once when it is back.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from understudy_operator.apply.api import TROUBLE, Api
from understudy_operator.clock import Clock, jittered
from understudy_operator.observe.store import Kind, Store
from understudy_operator.plan.ownership import API_VERSION
from understudy_protocol import pod as names

RESYNC_S = 60.0
#: Of kinds that there are thousands of. Their watches miss nothing that the API server tells.
RESYNC_WATCHED_S = 600.0
FIRST_RETRY_S = 1.0
LONGEST_RETRY_S = 15.0
PATHS = {
    Kind.NODE: ("/api/v1/nodes", ""),
    Kind.SECRET: ("/api/v1/secrets", names.LABEL_JOB_UID),
    Kind.SERVICE: ("/api/v1/services", names.LABEL_JOB_UID),
    Kind.CLAIM: ("/api/v1/persistentvolumeclaims", names.LABEL_JOB_UID),
    Kind.POD: ("/api/v1/pods", names.LABEL_JOB_UID),
    Kind.INJECTED: (f"/apis/{API_VERSION}/injectedjobs", ""),
    Kind.CHILD: ("/apis/batch/v1/jobs", names.LABEL_JOB_UID),
    Kind.POOL: (f"/apis/{API_VERSION}/hotsparepools", ""),
    Kind.JOB: (f"/apis/{API_VERSION}/trainingjobs", ""),
}
MANY = (Kind.POD, Kind.NODE)
log = logging.getLogger(__name__)


class Resync:
    """on_listed: is called after each turn. watched: the kinds that a watch tells of, and that are listed seldom."""

    def __init__(
        self, api: Api, store: Store, clock: Clock, on_listed: Callable[[], None], watched: Iterable[Kind] = ()
    ) -> None:
        self._api, self._store, self._clock, self._on_listed = api, store, clock, on_listed
        self._watched = frozenset(watched)
        self._versions: dict[Kind, str] = {}
        self._listed_at: dict[Kind, float] = {}
        self._listed = {kind: asyncio.Event() for kind in PATHS}
        self.done_once = False

    async def run(self) -> None:
        while True:
            await self._turn()
            self.done_once = True
            self._on_listed()
            await asyncio.sleep(jittered(RESYNC_S))

    async def _turn(self) -> None:
        due, retry_s = self.due(), 0.0
        while due:
            before = len(due)
            try:
                await self.list_all(due)
            except TROUBLE as error:
                retry_s = FIRST_RETRY_S if len(due) < before else min(max(2 * retry_s, FIRST_RETRY_S), LONGEST_RETRY_S)
                log.warning("a list of %s failed, and is tried again in about %.0f s: %r", due[0].value, retry_s, error)
                await asyncio.sleep(jittered(retry_s))

    async def list_kind(self, kind: Kind) -> str:
        """The version that a watch goes on from."""
        path, selector = PATHS[kind]
        asked_at = self._clock.steady()
        listed = await self._api.list(path, selector)
        self._store.replace(kind, listed.items, asked_at)
        self._versions[kind], self._listed_at[kind] = listed.version, asked_at
        self._listed[kind].set()
        return listed.version

    async def first(self, kind: Kind) -> str:
        """The version of the kind's newest list, as soon as there is one."""
        await self._listed[kind].wait()
        return self._versions[kind]

    def due(self) -> list[Kind]:
        """What is to be listed by now, in the order of PATHS."""
        return [kind for kind in PATHS if not self._is_known(kind)]

    async def list_all(self, due: list[Kind]) -> None:
        """Takes each kind from `due` once it is listed. Raises one of TROUBLE."""
        while due:
            await self.list_kind(due[0])
            del due[0]

    def _is_known(self, kind: Kind) -> bool:
        listed_at = self._listed_at.get(kind)
        return kind in self._watched and listed_at is not None and self._clock.steady() - listed_at < RESYNC_WATCHED_S

"""The running operator: store, workers, and the periodic lists behind the watches."""

import asyncio
import logging
import time
from typing import Any

from understudy_operator.apply.api import Api
from understudy_operator.apply.gateway import Gateway
from understudy_operator.observe.read import read_node
from understudy_operator.observe.store import Key, Kind, Store, job_key_of, key_of
from understudy_operator.plan.ownership import API_VERSION
from understudy_operator.worker import JobWorker
from understudy_protocol import pod as names

RESYNC_S = 60.0
_PATHS = {
    Kind.NODE: ("/api/v1/nodes", ""),
    Kind.SECRET: ("/api/v1/secrets", names.LABEL_JOB_UID),
    Kind.SERVICE: ("/api/v1/services", names.LABEL_JOB_UID),
    Kind.POD: ("/api/v1/pods", names.LABEL_JOB_UID),
    Kind.CHILD: ("/apis/batch/v1/jobs", names.LABEL_JOB_UID),
    Kind.JOB: (f"/apis/{API_VERSION}/trainingjobs", ""),
}
log = logging.getLogger(__name__)


class Operator:
    def __init__(self, api: Api, sidecar_image: str) -> None:
        self.store = Store()
        self._api = api
        self._gateway = Gateway(api, self.store)
        self._sidecar_image = sidecar_image
        self._workers: dict[Key, JobWorker] = {}
        self._synced = False
        self._resync: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """The first list, then workers for all jobs, then a list every minute."""
        await self._list()
        self._synced = True
        self._wake_all()
        self._resync = asyncio.create_task(self._keep_listing(), name="resync")

    async def stop(self) -> None:
        if self._resync is not None:
            self._resync.cancel()
        await asyncio.gather(*(worker.stop() for worker in self._workers.values()))

    def saw(self, kind: Kind, event_type: str | None, raw: dict[str, Any]) -> None:
        """A watch event: DELETED, or anything else with the object as it is now."""
        before = self.store.get(kind, key_of(raw))
        if event_type == "DELETED":
            self.store.remove(kind, raw)
        else:
            self.store.put(kind, raw)
        if kind is Kind.NODE:
            if before is None or event_type == "DELETED" or read_node(before) != read_node(raw):
                self._wake_all()  # a node's heartbeats alone wake nobody
        elif kind is Kind.JOB:
            self._wake(key_of(raw))
        elif key := job_key_of(raw):
            self._wake(key)

    def _wake(self, key: Key) -> None:
        if not self._synced:
            return  # no decision on half the facts
        if key not in self._workers and self.store.get(Kind.JOB, key) is not None:
            self._workers[key] = JobWorker(key, self.store, self._gateway, self._sidecar_image, self._forget)
        elif key in self._workers:
            self._workers[key].wake()

    def _forget(self, key: Key) -> None:
        self._workers.pop(key, None)

    def _wake_all(self) -> None:
        for raw in self.store.all(Kind.JOB):
            self._wake(key_of(raw))
        for key in list(self._workers):
            self._wake(key)

    async def _list(self) -> None:
        for kind, (path, selector) in _PATHS.items():
            asked_at = time.monotonic()
            self.store.replace(kind, await self._api.list(path, selector), asked_at)

    async def _keep_listing(self) -> None:
        while True:
            await asyncio.sleep(RESYNC_S)
            try:
                await self._list()
                self._wake_all()
            except Exception:
                log.exception("a periodic list failed; the next one is in %g s", RESYNC_S)

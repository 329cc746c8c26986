"""The watch of one kind: it decodes only the kept fields of each line.

Rules: it continues from a list. If the API server ends it or stops responding, it continues from the last version that
it received. If that version is too old (410), or a line cannot be decoded, it continues from a new list, which also
shows the deleted objects. Of objects of other shards it decodes only the namespace, and ignores them. No object ends a
watch: an error in an event is logged and counted, and the watch goes on.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing

import msgspec

from understudy_operator.metrics.operator_metrics import OperatorMetrics
from understudy_operator.observe.resync import PATHS, Resync
from understudy_operator.observe.store import Kind, key_of, resource_version_of
from understudy_operator.plan.leadership.shard import SINGLE_SHARD, Shard
from understudy_operator.runtime.api import API_FAILURES, GONE, Api, ApiError, namespace_in
from understudy_operator.runtime.clock import Backoffs
from understudy_operator.runtime.decoding import Raw, WatchEvent, object_of, origin_of

log = logging.getLogger(__name__)


class Watch:
    """path: the collection, of one namespace or of all. on_event: called with the kind, the event's type and the
    object's current state.
    """

    def __init__(
        self,
        api: Api,
        kind: Kind,
        path: str,
        resync: Resync,
        on_event: Callable[[Kind, str, Raw], None],
        metrics: OperatorMetrics | None = None,
        shard: Shard = SINGLE_SHARD,
    ) -> None:
        self._shard = shard
        self._api, self._kind, self._path, self._resync, self._on_event = api, kind, path, resync, on_event
        self._metrics = OperatorMetrics() if metrics is None else metrics
        self._metrics.watches(kind.value)
        self._version = ""
        namespace = namespace_in(path)
        self.name = f"watch of {kind.value}" + (f" in {namespace}" if namespace else "")

    async def run(self) -> None:
        self._version = await self._resync.first(self._path)
        pauses = iter(Backoffs())
        while True:
            before, least_s = self._version, 0.0
            try:
                await self._follow()
            except API_FAILURES as error:
                self._metrics.watch_failed(self._kind.value)
                log.warning("the %s ended, and restarts soon: %r", self.name, error)
                if isinstance(error, ApiError) and error.is_gone:
                    self._version = ""
                elif isinstance(error, ApiError) and error.status == 429:
                    least_s = error.retry_after_s
            self._metrics.watch_restarts(self._kind.value)
            if self._version == before:
                await asyncio.sleep(max(next(pauses), least_s))
            else:
                pauses = iter(Backoffs())

    async def _follow(self) -> None:
        if not self._version:
            await self._resync.list_kind(self._kind)
            self._version = await self._resync.first(self._path)
        selector = PATHS[self._kind][1]
        async with aclosing(self._api.watch(self._path, selector, self._version)) as events:
            async for event in events:
                self._handle_event(event)

    def _handle_event(self, event: WatchEvent) -> None:
        try:
            if self._shard.count > 1:
                namespace, version = origin_of(event)
                if not self._shard.owns(namespace):
                    self._version = version or self._version
                    return
            raw = object_of(self._kind.value, event)
        except msgspec.DecodeError as error:
            raise ApiError(GONE, "Undecodable", f"a line of the {self.name}: {error}") from error
        if event.type != "BOOKMARK":
            try:
                self._on_event(self._kind, event.type, raw)
            except Exception:
                self._metrics.event_failed(self._kind.value)
                log.exception("the %s continues without %s", self.name, "/".join(key_of(raw)))
        self._version = resource_version_of(raw) or self._version

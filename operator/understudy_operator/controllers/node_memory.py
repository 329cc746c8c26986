"""Stores which nodes have failed jobs (plan/faults/node_history.py) in a ConfigMap, while this replica leads.

Rules: the ConfigMap is read before it is written, and a write replaces the version that was read. If another writer was
faster, it is read again, and ours is merged in. Faults that a leader has not written yet are in the jobs' statuses,
where the next leader reads them. Nothing waits for the ConfigMap: if the API server is down, the memory in this process
counts.
If the operator has several shards, each leader adds the faults of its own jobs, and reads the ConfigMap each time, to
learn the faults of the others. What was read replaces the memory then: a leader that kept a fault that another shard
has corrected would write it back.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator

from understudy_operator.apply.config_map import ConfigMap
from understudy_operator.observe.read_injected import job_statuses
from understudy_operator.observe.read_node import NodeReader
from understudy_operator.observe.store import Store, job_kind, key_of
from understudy_operator.plan.faults.node_history import (
    NO_MEMORY,
    JobRecoveries,
    Offenders,
    decode_memory,
    encode_memory,
    find_offenders,
    offences_of,
)
from understudy_operator.runtime.api import API_FAILURES, Api
from understudy_operator.runtime.clock import Clock, jittered

#: How often statuses are checked. The ConfigMap is written at most as often.
EVERY_S = 5.0
log = logging.getLogger(__name__)


class NodeMemory:
    """place: namespace and name of the ConfigMap; None: the memory lasts as long as this process. is_shared: leaders of
    other shards write the ConfigMap, too.
    """

    def __init__(
        self,
        api: Api,
        place: tuple[str, str] | None,
        store: Store,
        node_reader: NodeReader,
        clock: Clock,
        on_change: Callable[[], None],
        *,
        is_shared: bool = False,
    ) -> None:
        self.offenders = Offenders({}, {})
        self._map = None if place is None else ConfigMap(api, *place)
        self._store, self._clock = store, clock
        self._read_node, self._on_change = node_reader, on_change
        self._memory, self._is_shared = NO_MEMORY, is_shared

    async def run(self) -> None:
        while True:
            try:
                await self.run_once()
            except API_FAILURES as error:
                if self._map is not None:
                    self._map.data = None  # read it again
                log.warning("the faults of nodes could not be read or stored; retrying: %r", error)
            await asyncio.sleep(jittered(EVERY_S))

    async def run_once(self) -> None:
        """Read the jobs' statuses, then write the ConfigMap."""
        if self._map is not None and (self._is_shared or self._map.data is None):
            stored = decode_memory(await self._map.read())
            own = NO_MEMORY if self._is_shared else self._memory
            self._memory = own.merged(stored, self._clock.wall())
        self._update()
        data = encode_memory(self._memory)
        if self._map is not None and data != self._map.data:
            await self._map.write(data)

    def _update(self) -> None:
        now = self._clock.wall()
        self._memory = self._memory.after(self._jobs(), now)
        nodes = self._store.nodes(self._read_node)
        found = find_offenders(self._memory, nodes, now)
        if found != self.offenders:  # even if only a reason differs: jobs' statuses contain it
            for name in sorted(found.nodes - self.offenders.nodes):
                log.info("node %s has failed several jobs, so jobs avoid it", name)
            self.offenders = found
            self._on_change()

    def _jobs(self) -> Iterator[JobRecoveries]:
        for raw, status in job_statuses(self._store):
            key, readable = key_of(raw), list[JobRecoveries]()
            with self._store.contain_errors(job_kind(key), raw):
                job = JobRecoveries(raw["metadata"]["uid"], "/".join(key), status.recoveries)
                tuple(offences_of(job))  # raise an error here, where it is contained to this job
                readable.append(job)
            yield from readable

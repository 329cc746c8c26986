"""The operator's state for a Prometheus scrape: its store and its workers. A scrape iterates over jobs, pools and
nodes, but not over pods.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from understudy_operator.controllers.job_worker import JobWorker
from understudy_operator.controllers.pool_worker import PoolWorker
from understudy_operator.observe.read_injected import job_statuses
from understudy_operator.observe.read_node import NodeReader
from understudy_operator.observe.read_pool import read_pool
from understudy_operator.observe.store import Kind, Store
from understudy_operator.plan.facts.cluster_objects import Node
from understudy_operator.plan.facts.status import JobStatus, PoolStatus
from understudy_operator.plan.leadership.shard import Shard
from understudy_operator.runtime.clock import Clock


@dataclass(frozen=True)
class OperatorState:
    """leads: whether this replica leads. filled: whether its store has been filled."""

    store: Store
    read_node: NodeReader
    clock: Clock
    shard: Shard
    leads: Callable[[], bool]
    filled: Callable[[], bool]
    workers: Callable[[], Collection[JobWorker]]
    pool_workers: Callable[[], Collection[PoolWorker]]
    offenders: Callable[[], int]

    def knows(self) -> bool:
        return self.leads() and self.filled()

    def jobs(self) -> list[JobStatus]:
        return [status for _, status in job_statuses(self.store)]

    def pools(self) -> list[PoolStatus]:
        return [pool.status for pool in self.store.facts(Kind.POOL, read_pool)]

    def nodes(self) -> list[Node]:
        return self.store.facts(Kind.NODE, self.read_node)

    def malformed(self) -> Mapping[str, int]:
        return {kind.value: len(self.store.malformed(kind)) for kind in Kind}

    def waiting(self) -> int:
        jobs = sum(worker.loop.is_queued for worker in self.workers())
        return jobs + sum(worker.loop.is_queued for worker in self.pool_workers())

    def without_coordinator(self) -> int:
        return sum(worker.misses_coordinator for worker in self.workers())

    def now(self) -> float:
        return self.clock.wall()

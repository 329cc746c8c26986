"""The running operator: a store that is always up to date, and workers that act while this replica leads."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace

from understudy_operator.apply.election import Election
from understudy_operator.apply.executor import Executor
from understudy_operator.apply.malformed_events import MalformedEvents
from understudy_operator.controllers.injected_jobs import InjectedJobCreator
from understudy_operator.controllers.job_worker import JobWorker, planning_turns
from understudy_operator.controllers.network_policies import NetworkPolicies
from understudy_operator.controllers.node_memory import NodeMemory
from understudy_operator.controllers.pool_worker import PoolWorker
from understudy_operator.controllers.supervisor import TaskSupervisor
from understudy_operator.metrics.operator_metrics import OperatorMetrics
from understudy_operator.observe.kueue_discovery import KueueDiscovery
from understudy_operator.observe.read_node import NodeReader
from understudy_operator.observe.read_pool import claimed_pods, interested_jobs
from understudy_operator.observe.resync import Resync, paths_of
from understudy_operator.observe.store import (
    Key,
    Kind,
    Raw,
    Store,
    is_of_pool,
    job_key_of,
    job_kind,
    key_of,
    pool_key_of,
)
from understudy_operator.observe.watch import Watch
from understudy_operator.operator_state import OperatorState
from understudy_operator.plan.facts.cluster_objects import Node
from understudy_operator.plan.facts.keyring import Keyring
from understudy_operator.plan.facts.sidecar_settings import DEFAULT_SIDECAR_SETTINGS, SidecarSettings
from understudy_operator.plan.leadership.lease_election import LeaseTimes
from understudy_operator.plan.leadership.shard import SINGLE_SHARD, Shard
from understudy_operator.plan.manifests.network_policy import Rules
from understudy_operator.runtime.api import API_FAILURES, Api
from understudy_operator.runtime.clock import Clock, jittered
from understudy_operator.runtime.line import LineLimits
from understudy_operator.settings import FaultSettings
from understudy_protocol import pod as names

#: Creates an Api that sends writes only while the given function returns true.
Connect = Callable[[Callable[[], bool]], Api]
BEGIN_AGAIN_S = 0.5
#: The watch may not have reported the previous leader's last writes to these kinds. A leader that decides on an older
#: state deletes pods that train.
WRITTEN_BY_LEADERS = (Kind.POD, Kind.POOL, Kind.INJECTED, Kind.JOB)
#: At a clean stop: time for running reconciles, and then for writes that are on their way. The operator releases the
#: lease only if all writes were answered.
FINISH_S = 2.0
FINISH_WRITES_S = 1.0
BEGIN, ELECTION = "begin to lead", "election"
#: The jobs that each round of lists enqueues are enqueued within this time, which is less than RESYNC_S.
SPREAD_S = 30.0
#: The leader's tasks besides reconciles.
NODE_MEMORY, NETWORK_POLICIES, MALFORMED = "memory of nodes", "network policies", "events of malformed objects"
LEADER_TASKS = (BEGIN, NODE_MEMORY, NETWORK_POLICIES, MALFORMED)
log = logging.getLogger(__name__)


class Operator:
    """lease: namespace and name of the Lease that the replicas of a single shard share; None for a single replica.
    watches: the kinds that it watches itself. For all others the caller calls `on_watch_event`.
    namespaces: the watched namespaces of all shards; empty: all.
    shard: this operator ignores the objects of all other shards, and watches only its own ones of `namespaces`.
    """

    def __init__(
        self,
        connect: Connect,
        keyring: Keyring,
        sidecar_image: str,
        lease: tuple[str, str] | None,
        identity: str,
        clock: Clock,
        faults: FaultSettings | None = None,
        network_rules: Rules | None = None,
        watches: Iterable[Kind] = (),
        namespaces: tuple[str, ...] = (),
        metrics: OperatorMetrics | None = None,
        times: LeaseTimes | None = None,
        sidecar_settings: SidecarSettings = DEFAULT_SIDECAR_SETTINGS,
        shard: Shard = SINGLE_SHARD,
    ) -> None:
        self.store = Store(clock.steady, clock.wall)
        self._clock = clock
        namespaces = shard.watched(namespaces)
        self._metrics = OperatorMetrics() if metrics is None else metrics
        faults = FaultSettings() if faults is None else faults
        self._read_node = NodeReader(faults.table)
        api = connect(lambda: True)
        self._election = None
        if lease is not None:
            times = LeaseTimes() if times is None else times
            self._election = Election(
                api, lease, identity, clock, self._start_leading, self._stop_leading, times, shard
            )
        self._writer = connect(self.may_write)
        self._executor = Executor(self._writer, self.store, clock)
        self._injection = InjectedJobCreator(
            self._writer, self.store, self._enqueue, clock, self._executor.pace, self._read_node
        )
        watches = tuple(watches)
        self._resync = Resync(api, self.store, clock, self._enqueue_after_lists, watches, namespaces, shard)
        self._node_memory = NodeMemory(
            self._writer,
            faults.memory,
            self.store,
            self._read_node,
            clock,
            self._enqueue_all,
            is_shared=shard.count > 1,
        )
        self._network_policies = None
        if network_rules is not None:
            self._network_policies = NetworkPolicies(
                self._writer, network_rules, self.store, clock, self._executor.pace, namespaces, shard
            )
        self._malformed_events = MalformedEvents(self._writer, self.store, self._executor.pace, namespaces)
        self._kueue = KueueDiscovery(api, self._enqueue_all)
        self._watches = [
            Watch(api, kind, path, self._resync, self.on_watch_event, self._metrics, shard)
            for kind in watches
            for path in paths_of(kind, namespaces)
        ]
        #: The workers have their own supervisor, because they may finish after all other tasks have ended.
        self._supervisor, self._reconciles = TaskSupervisor(self._metrics), TaskSupervisor(self._metrics)
        self._keyring, self._sidecar_image, self._sidecar_settings = keyring, sidecar_image, sidecar_settings
        self._line_limits, self._turns = LineLimits(), planning_turns()
        self._workers: dict[Key, JobWorker] = {}
        self._pool_workers: dict[Key, PoolWorker] = {}
        self._acts = False
        self._metrics.read(
            OperatorState(
                self.store,
                self._read_node,
                clock,
                shard,
                self.leads,
                lambda: self.synced,
                lambda: self._workers.values(),
                lambda: self._pool_workers.values(),
                lambda: len(self._node_memory.offenders.nodes),
            )
        )

    def start(self) -> None:
        """Fill the store and keep it up to date. Act once it is filled and this replica leads."""
        self._supervisor.start("resync", self._resync.run)
        self._supervisor.start("discovery of Kueue", self._kueue.run)
        for watch in self._watches:
            self._supervisor.start(watch.name, watch.run)
        if self._election is None:
            log.warning("UNDERSTUDY_LEASE is not set: this operator assumes that it is the only one")
            self._start_leading()
        else:
            self._supervisor.start(ELECTION, self._election.run)

    async def stop(self) -> None:
        """Stop acting, then release the lease to another replica."""
        await self._supervisor.stop()
        await self._stop_acting(FINISH_S)
        finished = await self._writer.wait_for_writes(FINISH_WRITES_S)
        self._writer.cancel_writes()
        if self._election is not None and finished:
            await self._election.release()

    def leads(self) -> bool:
        return self._election is None or self._election.leads()

    def may_write(self) -> bool:
        """True a little longer than `leads`, so a running reconcile is not cut off between two of its writes."""
        return self._election is None or self._election.may_write_for_s() > 0.0

    @property
    def synced(self) -> bool:
        """Whether the store has been filled once. Until then the operator decides nothing."""
        return self._resync.done_once

    @property
    def alive(self) -> bool:
        """Whether the operator was started and not stopped. Tasks that end by themselves are restarted."""
        return bool(self._supervisor.names)

    @property
    def waiting(self) -> Mapping[str, str]:
        """The error of each long-lived task that has ended and waits for its restart."""
        return {**self._supervisor.waiting, **self._reconciles.waiting}

    def on_watch_event(self, kind: Kind, event_type: str | None, raw: Raw) -> None:
        """A watch event: DELETED, or another type with the object's current state."""
        key = key_of(raw)
        was = self.store.get(kind, key)
        before = self.store.fact(kind, key, self._read_node) if kind is Kind.NODE else None
        known = event_type != "DELETED" and self.store.has_state(kind, raw)
        take = self.store.remove if event_type == "DELETED" else self.store.put
        kept = take(kind, raw) or was
        if kept is not None:  # else it is malformed, or was not known
            self._enqueue_for(kind, event_type, kept, before, known=known)

    def _enqueue_for(self, kind: Kind, event_type: str | None, raw: Raw, before: Node | None, *, known: bool) -> None:
        """raw: the object as the store had it, or its current state. known: the store had that state, as after the
        answer to our own write.
        """
        if kind is Kind.NODE:
            self._on_node_change(key_of(raw)[1], before, self.store.fact(kind, key_of(raw), self._read_node))
        elif kind in (Kind.JOB, Kind.INJECTED):
            if not known and not self._is_own_write(event_type, key_of(raw)):
                self._enqueue(key_of(raw))
            if kind is Kind.INJECTED and event_type == "DELETED" and self._acts and self.synced:
                self._injection.check_pods_of_job(key_of(raw))
            worker = self._workers.get(key_of(raw))
            if kind is Kind.JOB and (worker is None or worker.has_news_for_pools()):
                self._enqueue_pools(key_of(raw)[0])
        elif kind is Kind.POOL:
            self._enqueue_pool(key_of(raw))
        else:
            if key := job_key_of(raw):
                self._enqueue(key)
            if kind is Kind.POD:
                self._on_pool_pod(raw)
                if event_type != "DELETED" and self._acts and self.synced:
                    self._injection.on_pod(raw)

    def _is_own_write(self, event_type: str | None, key: Key) -> bool:
        worker = self._workers.get(key)
        return event_type != "DELETED" and worker is not None and worker.is_own_write

    def _on_node_change(self, name: str, before: Node | None, node: Node | None) -> None:
        """A heartbeat triggers no reconcile. A label triggers only jobs whose spares are chosen by it. Any other change
        triggers the jobs that the node may concern, which are few of thousands.
        """
        if before == node:
            return
        if before is None or node is None or replace(before, labels=node.labels) != node:
            self._enqueue_all(name)
            return
        for key, worker in self._workers.items():
            with self._contain_errors(job_kind(key), key):
                if worker.is_concerned(before, node):
                    worker.enqueue()

    def _on_pool_pod(self, raw: Raw) -> None:
        """A pool's pod concerns the jobs that name the pool. A job's pod concerns the pool that it came from."""
        if (key := pool_key_of(raw)) and is_of_pool(raw):
            self._enqueue_pool(key)
            for job in interested_jobs(self.store, raw):
                with self._contain_errors(job_kind(job), job):
                    self._enqueue(job)
        elif names.LABEL_POOL_UID in raw["metadata"].get("labels", {}):
            self._enqueue_pools(key_of(raw)[0])

    def _start_leading(self) -> None:
        self._supervisor.start(BEGIN, self._begin, once=True)

    async def _begin(self) -> None:
        """Act, once the store has the previous leader's last writes: its pods, and its statuses of jobs."""
        due = list(WRITTEN_BY_LEADERS)
        while due:
            try:
                await self._resync.list_all(due)
            except API_FAILURES as error:
                log.warning("could not list %s before this replica leads; retrying: %r", due[0].value, error)
                await asyncio.sleep(jittered(BEGIN_AGAIN_S))
        self._acts = True
        leader_tasks = {NODE_MEMORY: self._node_memory.run, MALFORMED: self._malformed_events.run}
        if self._network_policies is not None:
            leader_tasks[NETWORK_POLICIES] = self._network_policies.run
        for name, run in leader_tasks.items():
            if name not in self._supervisor.names:  # else an earlier, failed run of _begin has started it
                self._supervisor.start(name, run)
        self._enqueue_all()

    async def _stop_leading(self) -> None:
        assert self._election is not None, "it has lost the lease"
        await self._stop_acting(self._election.may_write_for_s())
        self._writer.cancel_writes()

    async def _stop_acting(self, finish_s: float) -> None:
        """Begin nothing more. Running reconciles have finish_s to end by themselves."""
        await self._supervisor.stop(*LEADER_TASKS)
        self._acts = False
        workers: list[JobWorker | PoolWorker] = [*self._workers.values(), *self._pool_workers.values()]
        self._workers, self._pool_workers = {}, {}
        for error in await asyncio.gather(*(worker.stop(finish_s) for worker in workers), return_exceptions=True):
            if isinstance(error, Exception):
                log.error("a worker did not stop cleanly: %r", error)
        await self._injection.stop()
        self._executor.forget()

    def _may_decide(self, namespace: str) -> bool:
        """Whether this replica leads and can list the namespace: it would create duplicates of pods that it cannot
        list.
        """
        return self._acts and self.synced and self._resync.is_readable(namespace)

    def _enqueue(self, key: Key) -> None:
        if not self._may_decide(key[0]):
            return
        if key not in self._workers and self.store.get(job_kind(key), key) is not None:
            self._workers[key] = JobWorker(
                key,
                self.store,
                self._executor,
                self._keyring,
                self._sidecar_image,
                self._forget,
                self._clock,
                self._read_node,
                self._node_memory,
                self._metrics,
                lambda: self._kueue.present,
                self._line_limits,
                self._turns,
                self._reconciles,
                self._sidecar_settings,
            )
        elif key in self._workers:
            self._workers[key].enqueue()

    def _forget(self, key: Key) -> None:
        self._workers.pop(key, None)

    def _enqueue_pool(self, key: Key) -> None:
        if not self._may_decide(key[0]):
            return
        if key in self._pool_workers:
            self._pool_workers[key].enqueue()
        elif self.store.get(Kind.POOL, key) is not None or claimed_pods(self.store, key):
            self._pool_workers[key] = PoolWorker(
                key,
                self.store,
                self._executor,
                self._keyring,
                self._forget_pool,
                self._clock,
                self._read_node,
                self._sidecar_image,
                self._metrics,
                lambda: self._node_memory.offenders.of(key[0]),
                self._reconciles,
                self._sidecar_settings,
            )

    def _enqueue_pools(self, namespace: str) -> None:
        """Enqueue the pools of a namespace in which a job has changed: they may have claims of that job."""
        for key in list(self._pool_workers):
            if key[0] == namespace:
                with self._contain_errors(Kind.POOL, key):
                    self._enqueue_pool(key)

    def _forget_pool(self, key: Key) -> None:
        self._pool_workers.pop(key, None)

    def _enqueue_all(self, node: str = "") -> None:
        """node: the change of which causes it. Jobs that it does not concern are not enqueued."""
        self._check_injected_pods()
        for key in self._all_jobs():
            worker = self._workers.get(key)
            if worker is None or not node or worker.is_concerned_by(node):
                with self._contain_errors(job_kind(key), key):
                    self._enqueue(key)
        self._enqueue_all_pools()

    def _enqueue_after_lists(self) -> None:
        """Enqueue the jobs that have no worker at once, and those that would not be reconciled soon one after another.
        If all jobs of a fleet were enqueued at once, a job with a fault would wait for their reconciles.
        """
        self._check_injected_pods()
        late = list[Key]()
        for key in self._all_jobs():
            with self._contain_errors(job_kind(key), key):
                worker = self._workers.get(key)
                if worker is None:
                    self._enqueue(key)
                elif not worker.loop.is_due_within(SPREAD_S):
                    late.append(key)
        for number, key in enumerate(late):
            asyncio.get_running_loop().call_later(SPREAD_S * number / len(late), self._enqueue, key)
        self._enqueue_all_pools()

    def _all_jobs(self) -> Iterable[Key]:
        in_store = [key_of(raw) for kind in (Kind.JOB, Kind.INJECTED) for raw in self.store.all(kind)]
        return dict.fromkeys([*in_store, *self._workers])

    def _check_injected_pods(self) -> None:
        if self._acts and self.synced:
            self._injection.check_all_pods()

    def _enqueue_all_pools(self) -> None:
        pools = {key_of(raw) for raw in self.store.all(Kind.POOL)} | set(self._pool_workers)
        for pool in pools | set(self.store.pools_of_pods()):
            with self._contain_errors(Kind.POOL, pool):
                self._enqueue_pool(pool)

    def _contain_errors(self, kind: Kind, key: Key) -> AbstractContextManager[None]:
        """Contain an error of the body to this object."""
        unknown = {"metadata": {"namespace": key[0], "name": key[1]}}
        return self.store.contain_errors(kind, self.store.get(kind, key) or unknown)


def new_identity(host: str) -> str:
    """Unique among replicas, and different from the identity of this pod's container before a restart."""
    return f"{host}_{secrets.token_hex(4)}"

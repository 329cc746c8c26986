"""One worker for each pool: observes, calls the plan, executes it. It decides nothing.

A deleted pool may have left pods that jobs have claimed. It has a worker until the last of them is released.
"""

import logging
import secrets
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial

from understudy_operator.apply.executor import Executor
from understudy_operator.controllers.reconcile_loop import CONFLICT_S, ReconcileLoop, ReconcileResult
from understudy_operator.controllers.supervisor import TaskSupervisor
from understudy_operator.metrics.operator_metrics import OperatorMetrics
from understudy_operator.observe.read_node import NodeReader, read_node
from understudy_operator.observe.read_pool import (
    claimants,
    claimed_pods,
    clients,
    pods_from_pool,
    pods_of_pool,
    read_pool,
    split,
)
from understudy_operator.observe.store import Key, Kind, Store
from understudy_operator.plan.facts.keyring import Keyring
from understudy_operator.plan.facts.ownership import POOL_KIND
from understudy_operator.plan.facts.pods import Pods
from understudy_operator.plan.facts.pool_facts import ObservedPool, Pool
from understudy_operator.plan.facts.refusals import Refusal
from understudy_operator.plan.facts.secret_writes import SecretWrites
from understudy_operator.plan.facts.sidecar_settings import DEFAULT_SIDECAR_SETTINGS, SidecarSettings
from understudy_operator.plan.intents import CREATE_POD, Create, Intent, PoolPlan
from understudy_operator.plan.manifests.warm_spare_pods import pool_secret_name
from understudy_operator.plan.pool.reconcile_pool import plan_releases, reconcile_pool
from understudy_operator.plan.status.events import failed_reconcile
from understudy_operator.plan.times.reconcile_clock import ReconcileClock
from understudy_operator.plan.world.retries import TRY_AGAIN_S, Retries, is_retry_due, without_paused_of_pool
from understudy_operator.runtime.api import API_FAILURES
from understudy_operator.runtime.clock import Clock, jittered

RECONCILES = "reconciles of pools"
log = logging.getLogger(__name__)


class PoolWorker:
    """Reconciles one pool until the pool and all of its claims are gone."""

    def __init__(
        self,
        key: Key,
        store: Store,
        executor: Executor,
        keyring: Keyring,
        on_gone: Callable[[Key], None],
        clock: Clock,
        node_reader: NodeReader = read_node,
        sidecar_image: str = "",
        metrics: OperatorMetrics | None = None,
        offenders: Callable[[], Collection[str]] = tuple,
        supervisor: TaskSupervisor | None = None,
        sidecar_settings: SidecarSettings = DEFAULT_SIDECAR_SETTINGS,
    ) -> None:
        self._key, self._store, self._executor, self._on_gone, self._clock = key, store, executor, on_gone, clock
        self._keyring, self._secret_writes = keyring, SecretWrites()
        self._read_node, self._sidecar_image, self._sidecar_settings = node_reader, sidecar_image, sidecar_settings
        self._offenders = offenders
        self._metrics = OperatorMetrics() if metrics is None else metrics
        self._retries = Retries()
        self._tried_generation = 0  # the generation of which all intents were tried once
        self._pool_uid = ""
        self._outbox = executor.outbox()
        supervisor = TaskSupervisor(self._metrics) if supervisor is None else supervisor
        log_context = {"namespace": key[0], "pool": key[1]}
        on_begin = partial(self._metrics.waited, POOL_KIND)
        name = f"pool {'/'.join(key)}"
        self.loop = ReconcileLoop(name, self._reconcile, log_context, supervisor, RECONCILES, on_begin)

    def enqueue(self) -> None:
        self.loop.enqueue()

    async def stop(self, finish_s: float = 0.0) -> None:
        await self.loop.stop(finish_s)
        await self._outbox.stop()

    def _is_gone(self) -> bool:
        if self._store.get(Kind.POOL, self._key) is not None or claimed_pods(self._store, self._key):
            return False
        self._executor.forget(self._pool_uid)
        self._on_gone(self._key)
        return True

    async def _reconcile(self) -> ReconcileResult | None:
        if self._is_gone():
            await self._outbox.stop()
            return None
        with self._metrics.time_reconcile(POOL_KIND, API_FAILURES):
            try:
                return await self._reconcile_pool()
            except API_FAILURES:
                raise
            except Exception as error:
                if (pool := self._read()) is not None:
                    self._executor.subjects.add_events(self._outbox, pool, [failed_reconcile(error)])
                raise

    async def _reconcile_pool(self) -> ReconcileResult:
        pool = self._read()
        if pool is None and self._store.get(Kind.POOL, self._key) is not None:
            return ReconcileResult(
                None
            )  # it cannot be read: the store has reported the cause, and its next change enqueues this worker
        if pool is None:
            wanted, clock = claimants(self._store, self._key[0]), ReconcileClock(self._clock.wall())
            releases = PoolPlan(releases=plan_releases(claimed_pods(self._store, self._key), wanted))
            await self._release(without_paused_of_pool(releases, self._retries.paused(clock), clock))
            return ReconcileResult(min(clock.remaining_s, TRY_AGAIN_S))
        if pool.uid != self._pool_uid:  # another pool of the same name
            self._executor.forget(self._pool_uid)
            self._pool_uid, self._tried_generation, self._secret_writes = pool.uid, 0, SecretWrites()
        now = self._clock.wall()
        await self._executor.resolve_unanswered(
            pool, refused_too=is_retry_due(CREATE_POD, self._retries.paused(now), now)
        )
        await self._executor.read_unknown_nodes(pods_of_pool(self._store, (pool.namespace, pool.uid)))
        pool = self._read()
        if pool is None or pool.uid != self._pool_uid:
            return ReconcileResult(0.0)  # it is gone, or replaced by another pool of the same name
        if pool.generation != self._tried_generation:
            self._retries = Retries()  # rejections of another spec do not apply to this one
        observed, began = self._observe(pool), self._clock.steady()
        plan = reconcile_pool(observed, self._clock.wall())
        planning_s = self._clock.steady() - began
        done = await self._execute(pool, plan)
        return ReconcileResult(plan.requeue_after_s if done else jittered(CONFLICT_S), planning_s)

    def _read(self) -> Pool | None:
        """None if there is no pool, or it cannot be read."""
        pool = self._store.fact(Kind.POOL, self._key, read_pool)
        return None if pool is None else replace(pool, sidecar_settings=self._sidecar_settings)

    def _observe(self, pool: Pool) -> ObservedPool:
        owner = (pool.namespace, pool.uid)
        return ObservedPool(
            pool=pool,
            pods=pods_of_pool(self._store, owner),
            replacement_pods=pods_from_pool(self._store, owner),
            orphaned_claims=split(Pods(claimed_pods(self._store, self._key)), pool.uid)[1],
            nodes=self._store.nodes(self._read_node),
            active_claimants=claimants(self._store, pool.namespace),
            entropy=secrets.token_hex(32),
            clients=clients(self._store, pool) if pool.auto_size is not None else (),
            refusals=self._retries.refusals if self._tried_generation == pool.generation else None,
            paused=self._retries.paused(self._clock.wall()),
            sidecar_image=self._sidecar_image,
            keyring=self._keyring,
            secret=pool_secret_name(pool, self._keyring),
            secret_writes=self._secret_writes,
            offenders=frozenset(self._offenders()),
        )

    async def _execute(self, pool: Pool, plan: PoolPlan) -> bool:
        """In the order that PoolPlan promises. False: the pool has changed since it was read; the rest was skipped."""
        reported, results = self._retries.refusals, [await self._create(create) for create in plan.objects]
        self._record_refusals(plan.objects, filter(None, results))
        if not all(results):
            self.enqueue()  # an object is new: pods may be possible now
        if plan.status is not None and not await self._executor.subjects.status(pool, plan.status):
            return False
        self._executor.subjects.add_events(self._outbox, pool, plan.events)
        await self._release(plan)
        self._record_refusals(plan.pods, await self._executor.pods(pool, plan.pods))
        self._retries = self._retries.keep_wanted(plan, self._clock.wall())
        if self._tried_generation != pool.generation or reported != self._retries.refusals:
            self._tried_generation = pool.generation
            self.enqueue()  # to report it
        return True

    async def _create(self, secret: Create) -> Refusal | None:
        refusal = await self._executor.create(secret)
        if refusal is None:
            name = secret.manifest["metadata"]["name"]
            self._secret_writes = self._secret_writes.after_creation(name, self._clock.wall())
        return refusal

    async def _release(self, plan: PoolPlan) -> None:
        self._record_refusals(
            plan.releases, await self._executor.pools.claims(self._key[0], self._pool_uid, plan.releases)
        )

    def _record_refusals(self, tried: Iterable[Intent], refusals: Iterable[Refusal]) -> None:
        """Record the API server's rejections of these intents."""
        refused = tuple(refusals)
        self._retries = self._retries.after(tried, refused, self._clock.wall())
        for refusal in refused:
            log.warning(
                "pool %s/%s: the API server rejects a request: %s: %s", *self._key, refusal.key, refusal.message
            )
        if refused:
            self.enqueue()  # to compute when they are retried

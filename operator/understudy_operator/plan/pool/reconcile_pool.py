"""One reconcile of one HotSparePool: from everything observed to the plan."""

from collections.abc import Iterable
from dataclasses import replace
from math import inf

from understudy_operator.plan.facts.cluster_objects import Pod
from understudy_operator.plan.facts.pool_facts import ObservedPool, claimant
from understudy_operator.plan.facts.secret_writes import is_to_be_created
from understudy_operator.plan.intents import Create, PoolPlan, ReleaseClaim
from understudy_operator.plan.manifests.warm_spare_pods import secret_manifest
from understudy_operator.plan.pool.claiming import release
from understudy_operator.plan.pool.holding import plan_spares, spare_pause_s
from understudy_operator.plan.pool.pool_status import plan_pool_events, plan_pool_status
from understudy_operator.plan.pool.sizing import COUNT_EVERY_S, desired
from understudy_operator.plan.times.reconcile_clock import ReconcileClock
from understudy_operator.plan.world.retries import TRY_AGAIN_S, without_paused_of_pool

#: A decision that becomes due is made at most so much later.
AT_ONCE_S = 0.2


def reconcile_pool(observed: ObservedPool, at: float) -> PoolPlan:
    """The plan of this reconcile. Pure: the same facts give the same plan."""
    now = ReconcileClock(at)
    releases = plan_releases((*observed.pods, *observed.orphaned_claims), observed.active_claimants)
    if observed.pool.deleting:
        plan = without_paused_of_pool(PoolPlan(releases=releases), observed.paused, now)
        return replace(plan, requeue_after_s=TRY_AGAIN_S if plan.paused_writes else None)
    wanted, auto = desired(observed, now)
    status = plan_pool_status(observed, wanted, auto, now)
    plan = PoolPlan(
        objects=_objects(observed, now),
        status=status if status != observed.pool.status else None,
        releases=releases,
        pods=plan_spares(observed, wanted, now),
        events=plan_pool_events(observed.pool.status, status),
    )
    plan = without_paused_of_pool(plan, observed.paused, now)
    return replace(plan, requeue_after_s=_again_in_s(observed, now))


def _objects(observed: ObservedPool, now: float) -> tuple[Create, ...]:
    """The Secret, before the pods that mount it."""
    name, pool = observed.secret, observed.pool
    if not name or not is_to_be_created(name, observed.secret_writes, now, observed.pods):
        return ()
    return (Create(secret_manifest(pool, observed.keyring)),)


def plan_releases(pods: Iterable[Pod], claimants: frozenset[str]) -> tuple[ReleaseClaim, ...]:
    """Releases of claims whose job is deleted, has ended or is suspended, also if the pool is deleted."""
    reason = "the job that claimed it no longer needs it"
    return tuple(release(pod, reason) for pod in pods if claimant(pod) and claimant(pod) not in claimants)


def _again_in_s(observed: ObservedPool, now: ReconcileClock) -> float | None:
    at_most_s = TRY_AGAIN_S if observed.refusals else inf
    if (pause := spare_pause_s(observed, now)) > 0.0:
        return min(pause, at_most_s)
    again_in_s = min(now.remaining_s, at_most_s, inf if observed.pool.auto_size is None else COUNT_EVERY_S)
    return None if again_in_s == inf else max(AT_ONCE_S, again_in_s)

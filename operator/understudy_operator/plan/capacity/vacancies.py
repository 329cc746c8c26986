"""How many pods a job may claim from the pool that it names, and how many it leaves to the pool instead of creating.

Rules:
- The job's own spares come first: a rank is vacant only if no pod of the job can take it. Before the first round no
  rank is vacant: each pod has its index, and a pool is for faults. Own spares that the job recreates at the same time
  cover no vacant rank before they are up.
- A vacant rank waits for the pool, including a refill that is still to come, for the job's spareTimeout. After that the
  job creates a pod itself, and still claims a spare that becomes available before its own pod has a node.
- A claim is kept as long as the job does not have all its pods without it. The job does not wait for a spare whose
  claim the API server rejects.
- A pod that replaces a spare and finds no room on the node is stuck. Then the job creates a pod without a fixed node,
  and claims nothing until the stuck pod is deleted, because the next spare would be lost in the same way. If the
  scheduler preempts pods for the replacement, it has room as soon as these pods have ended. Until it has a node the job
  recreates no own spares: on a full cluster such spares would get its place, and their equal priority would protect
  them from preemption.
"""

from understudy_operator.plan.facts.cluster_objects import Pod
from understudy_operator.plan.facts.observed import Observed, cached_per_reconcile
from understudy_operator.plan.facts.pool_facts import available, claimed_at, taken_by, template_of, unclaimed
from understudy_operator.plan.facts.reported_conditions import condition
from understudy_operator.plan.faults.avoidance import avoidance, preferred, required
from understudy_operator.plan.intents import claim_key
from understudy_operator.plan.times.reconcile_clock import is_due
from understudy_operator.plan.times.rfc3339 import parse_time
from understudy_protocol import pod as names

#: The type of the condition with which a job reports on its pool.
CONDITION = "PoolAvailable"
#: How long a pod that is bound to a spare's node may wait for the scheduler.
BOUND_S = 10.0
#: The same while the scheduler preempts pods that have taken the place: they have their grace periods.
PREEMPTING_S = 60.0


def count_vacancies(observed: Observed, now: float) -> int:
    """Ranks without a pod. A pod counts if it is up, if it replaces a spare, or if it was created for the rank."""
    if observed.pool is None or not _uses_pools(observed):
        return 0
    world, live, up = observed.job.world, observed.live, _up(observed)
    usable = sum(pod.uid in up or _is_bound(pod, now) for pod in live)
    created = sum(pod.uid not in up and not _is_from_pool(pod) and _has_place(pod) for pod in live)
    return max(0, world.actives - usable - max(0, created - world.spares))


def claim_budget(observed: Observed, now: float) -> int:
    """The most claims that leave the job with no more pods than it declares."""
    if not _uses_pools(observed):
        return 0
    world = observed.job.world
    return max(0, world.actives + world.spares - _of_use(observed, now))


def deficit(observed: Observed, now: float) -> int:
    """Pods that a job with a first round has to create itself; negative if it has too many."""
    world = observed.job.world
    return world.actives + world.spares - _of_use(observed, now) - count_awaited(observed, now)


def count_refills(observed: Observed, missing: int, now: float) -> int:
    """How many of the missing pods the job creates now, among them those that only restore its spares."""
    claims = bool(coming_claims(observed)) or (count_vacancies(observed, now) > 0 and bool(claimable(observed, now)))
    placing = any(_is_from_pool(pod) and not is_stuck(pod, now) for pod in observed.live.without_node)
    return max(0, missing - observed.job.world.spares) if claims or placing else missing


def _of_use(observed: Observed, now: float) -> int:
    """Pods of the job that are up, or may still come up."""
    return len(observed.live) - sum(is_stuck(pod, now) for pod in observed.live.without_node)


def count_awaited(observed: Observed, now: float) -> int:
    """Missing pods that the job does not create itself."""
    wanted, coming = count_vacancies(observed, now), len(coming_claims(observed))
    kept = min(coming, claim_budget(observed, now))
    if _waits_for_refill(observed, now):
        return max(wanted, kept)
    return max(min(wanted, coming + len(claimable(observed, now))), kept)


def coming_claims(observed: Observed) -> list[Pod]:
    """Claimed pods that no pod of the job has replaced yet; the oldest claim first."""
    replaced = places_taken(observed)
    return [pod for pod in claims_in_order(observed) if pod.uid not in replaced and observed.node_ready(pod.node)]


def candidates(observed: Observed, now: float) -> list[Pod]:
    """Pods of the pool that the job could claim, on nodes that it does not avoid. The best come first: not rejected
    before, on a node that is not avoided at all, near to the lost pods; then by template and age.
    """
    pool = observed.pool
    if pool is None or any(is_stuck(pod, now) for pod in observed.live.without_node):
        return []
    domains, avoided = _lost_domains(observed), avoidance(observed, now)
    avoid, avoid_if_possible = set(required(avoided)), set(preferred(avoided))
    warm = pool.definition is not None and pool.definition.launcher is not None

    def claim_order(pod: Pod) -> tuple[bool, bool, bool, bool, float, str]:
        is_far = _domain(observed, pod.node) not in domains
        newest = template_of(pod) == pool.template
        # In a pool of warm spares only those of the newest template can be claimed Warm.
        refused = _is_refused(observed, pod)
        return refused, pod.node in avoid_if_possible, is_far, newest is not warm, pod.created_at, pod.name

    return sorted((pod for pod in available(pool.pods, observed.nodes, now) if pod.node not in avoid), key=claim_order)


def claimable(observed: Observed, now: float) -> list[Pod]:
    """The candidates whose claim the API server has not rejected."""
    return [pod for pod in candidates(observed, now) if not _is_refused(observed, pod)]


def is_stuck(pod: Pod, now: float) -> bool:
    """Whether it was created to replace a spare, and finds no room there."""
    within_s = PREEMPTING_S if pod.nominated_node else BOUND_S
    return _is_from_pool(pod) and not _has_place(pod) and is_due(pod.created_at + within_s, now)


def _is_refused(observed: Observed, pod: Pod) -> bool:
    """Whether the API server has rejected the claim on it: the operator retries, and the job does not wait for it."""
    return claim_key(pod.name) in observed.paused


@cached_per_reconcile
def places_taken(observed: Observed) -> frozenset[str]:
    """Uids of the pool's pods that the job has, or had, replaced by a pod of its own."""
    return taken_by(observed.pods) | taken_by(observed.previous_pods)


def claims_in_order(observed: Observed) -> list[Pod]:
    """The claimed pods in a fixed order, so that two operators decide the same."""
    return sorted(observed.claimed, key=lambda pod: (claimed_at(pod), pod.name))


def _uses_pools(observed: Observed) -> bool:
    """Whether faults of the job count: it has had a round, and goes on."""
    job, newest = observed.job, -1 if observed.snapshot is None else observed.snapshot.token.round
    return not job.spec.suspend and observed.close is None and max(newest, job.round) >= 0


def _up(observed: Observed) -> frozenset[str]:
    """Uids of the pods whose sidecar runs, as the kubelet or the coordinator reports. The coordinator knows it sooner,
    because the watch may be far behind, and every member can take a rank.
    """
    return observed.member_uids.union(pod.uid for pod in observed.pods if pod.sidecar_started)


def _has_place(pod: Pod) -> bool:
    """Whether it is on a node, or the scheduler has not reported yet that no node has room."""
    return bool(pod.node) or not pod.trouble


def _is_from_pool(pod: Pod) -> bool:
    return names.ANNOTATION_CLAIMED_POD_UID in pod.annotations


def _is_bound(pod: Pod, now: float) -> bool:
    return _is_from_pool(pod) and not is_stuck(pod, now)


def _waits_for_refill(observed: Observed, now: float) -> bool:
    if observed.pool is None or not (observed.pool.desired or unclaimed(observed.pool.pods)):
        return False
    return not is_due(_vacant_since(observed, now) + observed.job.world.spare_timeout_s, now)


def _vacant_since(observed: Observed, now: float) -> float:
    """When the job began to wait, as its status records; or the newest loss after that.

    The coordinator alone does not know: without a majority it reports no pod as lost.
    """
    availability = condition(observed.job.status, CONDITION)
    waiting_since = now
    if availability is not None and availability.status == "False":
        waiting_since = parse_time(availability.last_transition_time)
    lost = () if observed.snapshot is None else observed.snapshot.lost
    return max([waiting_since, *(x.at for x in lost)])


def _lost_domains(observed: Observed) -> set[str]:
    lost = () if observed.snapshot is None else observed.snapshot.lost
    return {_domain(observed, x.node) for x in lost} - {""}


def _domain(observed: Observed, name: str) -> str:
    key, node = observed.job.world.topology_key, observed.nodes.get(name)
    return node.labels.get(key, "") if key and node is not None else ""

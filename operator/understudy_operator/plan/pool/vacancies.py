"""How many pods a job may claim of the pool that it names, and how many it is not to make itself meanwhile.

Rules: its own spares come first: only ranks that nobody can take any more are vacant. Before the first round none is:
each pod has its index, and a pool is for faults. Own spares that the job makes anew at the same time are just that, and
cover no vacant rank before they are up. A vacant rank waits for the pool, a refill that is still to come included, for
the job's spareTimeout; after that the job makes a pod of its own, and takes a spare of the pool all the same if that is
there before a node is found for its own one. A claim is kept as long as the job does not have all its pods without it.
For a spare whose claim the API server refuses nobody waits.

A pod that stands in a spare's place and finds no room there is stuck: the job makes one that may go anywhere, and
claims nothing more until the stuck one is gone, because the next spare would be lost in the same way. One for which the
scheduler preempts others there has room as soon as they have ended. Until it has its place the job makes no own spares
anew: on a full cluster they would get that place, and by the same priority nobody could take it from them.
"""

from understudy_operator.plan.faults.avoidance import avoidance, preferred, required
from understudy_operator.plan.intents import claim_key
from understudy_operator.plan.observed import Observed, Pod
from understudy_operator.plan.pool.facts import available, claimed_at, taken_by, template_of, unclaimed
from understudy_operator.plan.reconcile_cache import cached_per_reconcile
from understudy_operator.plan.reconcile_clock import is_due
from understudy_operator.plan.reported_conditions import condition
from understudy_operator.plan.rfc3339 import parse_time
from understudy_protocol import pod as names

#: The type of the condition by which a job tells what it has of the pool.
CONDITION = "PoolAvailable"
#: How long a pod that is bound to a spare's node may wait for the scheduler to put it there.
BOUND_S = 10.0
#: The same where others that have taken the place are being preempted for it: they have their grace periods.
PREEMPTING_S = 60.0


def count_vacancies(observed: Observed, now: float) -> int:
    """Ranks that nobody can take: no pod that is up, none that stands in a spare's place, none that is made for it."""
    if observed.pool is None or not _uses_pools(observed):
        return 0
    world, live, up = observed.job.world, observed.live(), _up(observed)
    usable = sum(pod.uid in up or _is_bound(pod, now) for pod in live)
    created = sum(pod.uid not in up and not _is_from_pool(pod) and _has_place(pod) for pod in live)
    return max(0, world.actives - usable - max(0, created - world.spares))


def claim_budget(observed: Observed, now: float) -> int:
    """Claims that may be under way without the job having more pods in the end than it declares."""
    if not _uses_pools(observed):
        return 0
    world = observed.job.world
    return max(0, world.actives + world.spares - _of_use(observed, now))


def deficit(observed: Observed, now: float) -> int:
    """Pods that the job is to make itself, once it has trained; negative where it has too many."""
    world = observed.job.world
    return world.actives + world.spares - _of_use(observed, now) - count_awaited(observed, now)


def count_refills(observed: Observed, missing: int, now: float) -> int:
    """How many of the pods that are missing the job is to make now, if only to have spares again."""
    claims = bool(coming_claims(observed)) or (count_vacancies(observed, now) > 0 and bool(claimable(observed, now)))
    placing = any(_is_from_pool(pod) and not pod.node and not is_stuck(pod, now) for pod in observed.live())
    return max(0, missing - observed.job.world.spares) if claims or placing else missing


@cached_per_reconcile
def _of_use(observed: Observed, now: float) -> int:
    """Pods of the job that are there, or may still come."""
    return sum(not is_stuck(pod, now) for pod in observed.live())


def count_awaited(observed: Observed, now: float) -> int:
    """Pods that the job lacks, and is not to make itself."""
    wanted, coming = count_vacancies(observed, now), len(coming_claims(observed))
    kept = min(coming, claim_budget(observed, now))
    if _waits_for_refill(observed, now):
        return max(wanted, kept)
    return max(min(wanted, coming + len(claimable(observed, now))), kept)


def coming_claims(observed: Observed) -> list[Pod]:
    """Claimed pods in whose place a pod of the job is to stand, and does not yet; the oldest claim first."""
    replaced = places_taken(observed)
    return [pod for pod in claims_in_order(observed) if pod.uid not in replaced and observed.node_ready(pod.node)]


def candidates(observed: Observed, now: float) -> list[Pod]:
    """Pods of the pool that could be claimed, on nodes that the job does not avoid. The best first: one that was not
    refused, where nothing at all is held against the node, near to what was lost, then of an old template.
    """
    pool = observed.pool
    if pool is None or any(is_stuck(pod, now) for pod in observed.live()):
        return []
    domains, avoided = _lost_domains(observed), avoidance(observed, now)
    avoid, avoid_if_possible = set(required(avoided)), set(preferred(avoided))
    warm = pool.definition is not None and pool.definition.launcher is not None

    def claim_order(pod: Pod) -> tuple[bool, bool, bool, bool, float, str]:
        is_far = _domain(observed, pod.node) not in domains
        newest = template_of(pod) == pool.template
        # Of a pool of warm spares the newest are those that can be claimed Warm.
        refused = _is_refused(observed, pod)
        return refused, pod.node in avoid_if_possible, is_far, newest is not warm, pod.created_at, pod.name

    return sorted((pod for pod in available(pool.pods, observed.nodes, now) if pod.node not in avoid), key=claim_order)


def claimable(observed: Observed, now: float) -> list[Pod]:
    """Of these, all whose claim was not refused."""
    return [pod for pod in candidates(observed, now) if not _is_refused(observed, pod)]


def is_stuck(pod: Pod, now: float) -> bool:
    """Whether it was to stand in a spare's place, and there is no room."""
    within_s = PREEMPTING_S if pod.nominated_node else BOUND_S
    return _is_from_pool(pod) and not _has_place(pod) and is_due(pod.created_at + within_s, now)


def _is_refused(observed: Observed, pod: Pod) -> bool:
    """Whether the API server has refused the claim on it: it is tried again, and nobody waits for that."""
    return claim_key(pod.name) in observed.paused


@cached_per_reconcile
def places_taken(observed: Observed) -> frozenset[str]:
    """Uids of the pool's pods in whose place the job has, or had, a pod of its own."""
    return taken_by((*observed.pods, *observed.previous_pods))


def claims_in_order(observed: Observed) -> list[Pod]:
    """The claimed pods; so two that decide at once decide the same."""
    return sorted(observed.claimed, key=lambda pod: (claimed_at(pod), pod.name))


def _uses_pools(observed: Observed) -> bool:
    """Whether the job is one that faults may befall: it has trained, and is to go on."""
    job, newest = observed.job, -1 if observed.snapshot is None else observed.snapshot.token.round
    return not job.spec.suspend and observed.close is None and max(newest, job.round) >= 0


def _up(observed: Observed) -> frozenset[str]:
    """Uids of the pods whose sidecar runs, as the kubelet says or the coordinator, which hears of it sooner: a watch
    may be far behind, and who is a member can take a rank, or holds one.
    """
    members = () if observed.snapshot is None else observed.snapshot.members
    return frozenset({pod.uid for pod in observed.pods if pod.sidecar_started} | {member.pod_uid for member in members})


def _has_place(pod: Pod) -> bool:
    """Whether it is on a node, or the scheduler has not said yet that there is none for it."""
    return bool(pod.node) or not pod.trouble


def _is_from_pool(pod: Pod) -> bool:
    return names.ANNOTATION_FROM_POD in pod.annotations


def _is_bound(pod: Pod, now: float) -> bool:
    return _is_from_pool(pod) and not is_stuck(pod, now)


def _waits_for_refill(observed: Observed, now: float) -> bool:
    if observed.pool is None or not (observed.pool.desired or unclaimed(observed.pool.pods)):
        return False
    return not is_due(_vacant_since(observed, now) + observed.job.world.spare_timeout_s, now)


def _vacant_since(observed: Observed, now: float) -> float:
    """When the job began to wait, as its status tells; or the newest loss after that.

    The coordinator alone does not know: of a job that has no majority left, nobody says that a pod is lost.
    """
    availability = condition(observed.job.status, CONDITION)
    waiting_since = parse_time(availability["lastTransitionTime"]) if availability.get("status") == "False" else now
    lost = () if observed.snapshot is None else observed.snapshot.lost
    return max([waiting_since, *(x.at for x in lost)])


def _lost_domains(observed: Observed) -> set[str]:
    lost = () if observed.snapshot is None else observed.snapshot.lost
    return {_domain(observed, x.node) for x in lost} - {""}


def _domain(observed: Observed, name: str) -> str:
    key, node = observed.job.world.topology_key, observed.nodes.get(name)
    return node.labels.get(key, "") if key and node is not None else ""

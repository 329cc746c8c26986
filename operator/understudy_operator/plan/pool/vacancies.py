"""How many pods a job may claim of the pool that it names, and how many it is not to make itself meanwhile.

Rules: its own spares come first: only ranks that nobody can take any more are vacant. Before the first round none is:
each pod has its index, and a pool is for faults. A vacant rank waits for the pool, a refill that is still to come
included, for the job's spareTimeout; after that the job makes a pod of its own, and takes a spare of the pool all the
same if that is there before a node is found for its own one. A pod that stands in a spare's place and finds no room
there is stuck: the job makes one that may go anywhere, and claims nothing more until the stuck one is gone, because
the next spare would be lost in the same way.
"""

from understudy_operator.plan.observed import Observed, Pod
from understudy_operator.plan.pool.facts import available, claimed_at, template_of, unclaimed
from understudy_protocol import pod as names

#: How long a pod that is bound to a spare's node may wait for the scheduler to put it there.
BOUND_S = 10.0


def vacant(observed: Observed, now: float) -> int:
    """Ranks that neither a pod on a node nor one on its way to a node can take."""
    job, newest = observed.job, -1 if observed.snapshot is None else observed.snapshot.token.round
    if observed.pool is None or job.spec.suspend or observed.close is not None or max(newest, job.round) < 0:
        return 0
    placed = sum(bool(pod.node) or not pod.trouble or _is_bound(pod, now) for pod in observed.live())
    return max(0, job.world.actives - placed)


def awaited(observed: Observed, now: float) -> int:
    """Pods that the job lacks, and is not to make itself."""
    wanted = vacant(observed, now)
    coming = min(wanted, len(coming_claims(observed)) + len(candidates(observed, (), now)))
    return wanted if _waits_for_refill(observed, now) else coming


def coming_claims(observed: Observed) -> list[Pod]:
    """Claimed pods in whose place a pod of the job is to stand, and does not yet; the oldest claim first."""
    made = places_taken(observed)
    return [pod for pod in in_order(observed) if pod.uid not in made and observed.node_ready(pod.node)]


def candidates(observed: Observed, avoid: tuple[str, ...], now: float) -> list[Pod]:
    """Pods of the pool that could be claimed, the best first: near to what was lost, then of an old template."""
    if observed.pool is None or any(is_stuck(pod, now) for pod in observed.live()):
        return []
    domains = _lost_domains(observed)

    def worth(pod: Pod) -> tuple[bool, bool, float, str]:
        near = _domain(observed, pod.node) in domains
        assert observed.pool is not None
        return not near, template_of(pod) == observed.pool.template, pod.created_at, pod.name

    return sorted((pod for pod in available(observed.pool.pods, observed.nodes) if pod.node not in avoid), key=worth)


def is_stuck(pod: Pod, now: float) -> bool:
    """Whether it was to stand in a spare's place, and there is no room."""
    waits = names.ANNOTATION_FROM_POD in pod.annotations and not pod.node and bool(pod.trouble)
    return waits and now - pod.created_at >= BOUND_S


def places_taken(observed: Observed) -> frozenset[str]:
    """Uids of the pool's pods in whose place the job has, or had, a pod of its own."""
    return frozenset(filter(None, (pod.annotations.get(names.ANNOTATION_FROM_POD) for pod in _all(observed))))


def in_order(observed: Observed) -> list[Pod]:
    """The claimed pods; so two that decide at once decide the same."""
    return sorted(observed.claimed, key=lambda pod: (claimed_at(pod), pod.name))


def _is_bound(pod: Pod, now: float) -> bool:
    return names.ANNOTATION_FROM_POD in pod.annotations and not is_stuck(pod, now)


def _waits_for_refill(observed: Observed, now: float) -> bool:
    if observed.pool is None or not (observed.pool.desired or unclaimed(observed.pool.pods)):
        return False
    lost = () if observed.snapshot is None else observed.snapshot.lost
    since = max((x.at for x in lost), default=0.0)
    return now - since < observed.job.world.spare_timeout_s


def _lost_domains(observed: Observed) -> set[str]:
    lost = () if observed.snapshot is None else observed.snapshot.lost
    return {_domain(observed, x.node) for x in lost} - {""}


def _domain(observed: Observed, name: str) -> str:
    key, node = observed.job.world.topology_key, observed.nodes.get(name)
    return node.labels.get(key, "") if key and node is not None else ""


def _all(observed: Observed) -> tuple[Pod, ...]:
    return (*observed.pods, *observed.former)

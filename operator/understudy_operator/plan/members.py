"""Which pods to create and which to delete, so that the declared actives and spares are there.

Rules: before the first round each completion index has a pod of its own. From then on ranks move: a lost pod is
replaced by a new spare, never by name. Pods beyond the declared number go, spares that wait first; the coordinator
stays. No pod is put on a node that is silent, or faulty; one that still waits for a node when such a node is well again
is made anew. A lost pod is deleted; on a node that is not ready its object is removed at once, because no kubelet will.
Whom a coordinator without a majority believes to be silent is left alone: it may itself be the one that is cut off.
Failed pods stay for their logs, the newest few.
"""

from collections.abc import Iterator

from understudy_operator.plan.intents import CreatePod, DeletePod, PatchPod
from understudy_operator.plan.jobset.children import blocked
from understudy_operator.plan.jobset.startup import startup
from understudy_operator.plan.jobset.views import group_counts
from understudy_operator.plan.observed import Node, Observed, Pod, ends_early
from understudy_operator.plan.pods import pod_manifest
from understudy_protocol import pod as names
from understudy_protocol.words import Fault

FAILED_PODS_KEPT = 5
#: A lost pod whose node is well may come back by itself (its sidecar was restarted): it gets so long.
RETURN_S = 15.0
#: A node that fell silent is avoided for so long; then the node controller has marked it, or it is back.
SUSPECT_S = 60.0
#: After the close pods end by themselves; what has not by then is removed.
CLOSED_S = 10.0

PodIntent = CreatePod | DeletePod | PatchPod


def plan_members(observed: Observed, sidecar_image: str, now: float) -> tuple[PodIntent, ...]:
    if observed.job.deleting:
        return ()  # the garbage collector follows the owner references
    if observed.job.spec.world is None:
        return ()
    if observed.job.injected is not None:
        return tuple(_of_injected(observed, now))
    former = tuple(_clear_former(observed))
    if observed.close is not None:
        return (*former, *_clear_after_close(observed, now))
    return (*former, *_remove(observed, now), *_create(observed, sidecar_image, now), *_relabel(observed))


def silent_nodes(observed: Observed, now: float) -> list[str]:
    """Nodes on which a member fell silent a moment ago, and that have not become ready anew since."""
    if observed.snapshot is None:
        return []
    lost = [x for x in observed.snapshot.lost if x.fault is Fault.NODE and now - x.at < SUSPECT_S]
    return sorted({x.node for x in lost if not _came_back(observed.nodes.get(x.node), x.at)})


def avoided_nodes(observed: Observed, now: float) -> list[str]:
    """Where no new pod is put: on silent nodes, and on faulty ones, where it would be given no ranks."""
    faulty = (node.name for node in observed.nodes.values() if node.faulty)
    return sorted({*silent_nodes(observed, now), *faulty})


def avoided_by(pod: Pod) -> set[str]:
    """The nodes that were avoided when the pod was made: it is kept off them for good."""
    return set(filter(None, pod.annotations.get(names.ANNOTATION_AVOIDS, "").split(",")))


def _listed(nodes: set[str]) -> str:
    return ", ".join(sorted(nodes))


def _came_back(node: Node | None, at: float) -> bool:
    return node is not None and node.ready and node.since > at


def _create(observed: Observed, sidecar_image: str, now: float) -> Iterator[CreatePod]:
    if not observed.coordinator_address or not observed.has_secret or not may_start(observed):
        return
    world, live = observed.job.world, observed.live()
    avoid = avoided_nodes(observed, now)

    def create(index: int | None, number: int, reason: str) -> CreatePod:
        manifest = pod_manifest(
            observed.job,
            index=index,
            serial=f"{observed.entropy}-{number}",
            coordinator_address=observed.coordinator_address,
            sidecar_image=sidecar_image,
            avoid_nodes=avoid,
        )
        return CreatePod(manifest, reason)

    if _before_first_round(observed):
        there = {pod.index for pod in live}
        missing = [index for index in range(world.actives) if index not in there]
        yield from (create(index, index, f"group rank {index} has no pod") for index in missing)
        spares = world.spares - sum(pod.spare for pod in live)
    else:
        spares = world.actives + world.spares - len(live)
    for number in range(spares):
        yield create(None, world.actives + number, f"a spare is missing ({len(live)} pods are alive)")


def may_start(observed: Observed) -> bool:
    """Whether the job may have pods of the world: it is not suspended, and what these wait for is there."""
    job = observed.job
    if job.spec.suspend or observed.complaint or blocked(observed):
        return False
    return job.round >= 0 or job.world.groups[0].name in startup(job.spec, group_counts(observed)).started


def _before_first_round(observed: Observed) -> bool:
    newest = -1 if observed.snapshot is None else observed.snapshot.token.round
    return max(newest, observed.job.round) < 0


def _clear_former(observed: Observed) -> Iterator[DeletePod]:
    """What is left of former attempts; those that have ended may stay for their logs."""
    why = "the job is suspended" if observed.job.spec.suspend else "the job has restarted without it"
    for pod in observed.former:
        if pod.ended:
            continue
        if pod.node and not observed.node_ready(pod.node):
            yield DeletePod(pod.name, pod.uid, 0, f"{why}, and node {pod.node} is not ready")
        elif pod.deleting_since is None:
            yield DeletePod(pod.name, pod.uid, None, why)


def _of_injected(observed: Observed, now: float) -> Iterator[PodIntent]:
    """Their controller makes them: where a pod is lost, it is removed, so that it makes another one."""
    if observed.close is None:
        yield from _remove_lost(observed, now)
        yield from _relabel(observed)
        return
    for pod in observed.pods:  # the rest end by themselves: who starts only now is told of the close
        if not pod.ended and pod.node and not observed.node_ready(pod.node):
            yield DeletePod(pod.name, pod.uid, 0, f"the job has ended, and node {pod.node} is not ready")


def _remove(observed: Observed, now: float) -> Iterator[DeletePod]:
    yield from _remove_lost(observed, now)
    avoid = set(avoided_nodes(observed, now))
    for pod in observed.pods:
        needless = avoided_by(pod) - avoid
        if pod.alive and not pod.node and pod.trouble and needless:
            yield DeletePod(pod.name, pod.uid, 0, f"it waits for a node, and {_listed(needless)} may be used again")
    failed = [pod for pod in (*observed.pods, *observed.former) if pod.ended and pod.deleting_since is None]
    failed.sort(key=lambda pod: pod.created_at)
    for pod in failed[:-FAILED_PODS_KEPT]:
        yield DeletePod(pod.name, pod.uid, None, f"the newest {FAILED_PODS_KEPT} failed pods are kept")
    yield from _surplus(observed)


def _remove_lost(observed: Observed, now: float) -> Iterator[DeletePod]:
    lost = {x.pod_uid: x for x in observed.snapshot.lost} if observed.snapshot is not None else {}
    live = {pod.uid for pod in observed.live()}
    for pod in observed.pods:
        dead_node = bool(pod.node) and not observed.node_ready(pod.node)
        if pod.deleting_since is not None:
            if dead_node:
                yield DeletePod(pod.name, pod.uid, 0, f"node {pod.node} is not ready: no kubelet will end it")
        elif pod.uid in lost and not pod.ended:
            entry = lost[pod.uid]
            silent = entry.fault is Fault.NODE
            if (silent and not observed.cut_off) or (not silent and now - entry.at >= RETURN_S):
                yield DeletePod(pod.name, pod.uid, None, f"it was lost ({entry.fault.value}): {entry.reason}")
        elif not pod.ended and dead_node and pod.uid not in live and not _comes_back(observed, pod, now):
            yield DeletePod(pod.name, pod.uid, 0, f"node {pod.node} is not ready, and nobody hears of the pod")


def _comes_back(observed: Observed, pod: Pod, now: float) -> bool:
    """It was made since its node fell silent: the scheduler has seen that come back, and our watch may be behind."""
    node = observed.nodes.get(pod.node)
    return node is not None and 0.0 < node.since < pod.created_at and now - pod.created_at < RETURN_S


def _surplus(observed: Observed) -> Iterator[DeletePod]:
    world, live = observed.job.world, observed.live()
    coordinators = {observed.job.status.get("coordinator", {}).get("podUID"), observed.coordination.in_office}
    if _before_first_round(observed):
        spares = [pod for pod in live if pod.spare]
        surplus = len(spares) - world.spares
        free = [pod for pod in spares if pod.uid not in coordinators]
    elif observed.snapshot is None or not observed.seating_known or observed.snapshot.waiting_for:
        return
    else:
        seated = {x.pod_uid for x in observed.snapshot.members if x.group_rank is not None}
        surplus = len(live) - world.actives - world.spares
        free = [pod for pod in live if pod.uid not in seated and pod.uid not in coordinators]
    free.sort(key=lambda pod: (pod.sidecar_started, -pod.created_at))  # unstarted ones first, then the youngest
    for pod in free[: max(0, surplus)]:
        yield DeletePod(pod.name, pod.uid, None, f"{world.spares} spares are wanted")


def _clear_after_close(observed: Observed, now: float) -> Iterator[DeletePod]:
    since = now if observed.job.completed_at is None else observed.job.completed_at
    for pod in observed.pods:
        if pod.ended or (pod.deleting_since is not None and observed.node_ready(pod.node)):
            continue
        if not pod.sidecar_ran:
            yield DeletePod(pod.name, pod.uid, 0, "the job has ended before it started")
        elif not observed.node_ready(pod.node):
            yield DeletePod(pod.name, pod.uid, 0, f"the job has ended, and node {pod.node} is not ready")
        elif ends_early(observed):
            yield DeletePod(pod.name, pod.uid, None, "the job has ended, and its training has not")
        elif now - since >= CLOSED_S:
            yield DeletePod(pod.name, pod.uid, None, "the job has ended, and it has not")


def _relabel(observed: Observed) -> Iterator[PatchPod]:
    """Let labels tell who holds which rank now."""
    if observed.snapshot is None or not observed.seating_known or _before_first_round(observed):
        return
    ranks = {x.pod_uid: x.group_rank for x in observed.snapshot.members}
    for pod in observed.pods:
        if pod.uid not in ranks or not pod.alive:
            continue
        rank = ranks[pod.uid]
        role = names.ROLE_SPARE if rank is None else names.ROLE_ACTIVE
        wanted = None if rank is None else str(rank)
        if pod.labels.get(names.LABEL_ROLE) != role or pod.annotations.get(names.ANNOTATION_GROUP_RANK) != wanted:
            yield PatchPod(pod.name, {names.LABEL_ROLE: role}, {names.ANNOTATION_GROUP_RANK: wanted})

"""Which of a pool's pods to create and which to delete.

Rules:
- A claimed pod is no longer the pool's: the pool does not change it, and creates another spare. Before that, the pool
  waits until the job has a pod in the place of the claimed one, for at most TAKING_S: on a full cluster this place is
  the only free one, and a new spare would get it before the job. For the same reason the pool deletes spares without a
  node meanwhile.
- The pool replaces a spare on a node that is not ready or has findings, and a spare without a node that avoids a node
  which is usable again.
- A spare of an old template stays usable. The pool deletes it only if more spares are ready than desired, so it creates
  a new one first (a surge of one at a time). Without room for that, the roll waits until a job claims a spare.
- Spares that end by themselves are replaced after growing pauses; the newest are kept for their logs. A spare that is
  not ready for UNREADY_S is replaced, on another node if one has room.
- Every deletion requires the observed version: a job may have claimed the spare since.
"""

from collections.abc import Iterator
from functools import partial

from understudy_operator.plan.facts.cluster_objects import Pod, with_findings
from understudy_operator.plan.facts.pool_facts import (
    ObservedPool,
    claimant,
    claimed_at,
    node_is_well,
    taken_by,
    template_of,
    unclaimed,
)
from understudy_operator.plan.facts.secret_writes import can_be_mounted
from understudy_operator.plan.faults.avoidance import (
    PREFERRED,
    REQUIRED,
    join_names,
    needs_anti_affinity,
    tolerates_all,
    usable_again,
)
from understudy_operator.plan.intents import CreatePod, DeletePod
from understudy_operator.plan.manifests.pool_pods import pool_fingerprint, pool_spare_manifest
from understudy_operator.plan.times.reconcile_clock import is_due
from understudy_protocol.pauses import growing_pause_s

ENDED_KEPT = 5
FIRST_PAUSE_S, LONGEST_PAUSE_S = 4.0, 64.0
UNREADY_S = 600.0
#: From a claim to the job's pod in the spare's place: the end of the spare, and a moment for the operator.
TAKING_S = 10.0


def plan_spares(observed: ObservedPool, desired: int, now: float) -> tuple[CreatePod | DeletePod, ...]:
    if observed.pool.deleting:
        return ()  # the garbage collector follows the owner references
    return (*_clear(observed, now), *_roll(observed, desired, now))


def usable_spares(observed: ObservedPool, now: float) -> list[Pod]:
    """Spares that can stay: alive, unclaimed, and not on a node where they are useless."""
    return [pod for pod in unclaimed(observed.pods) if not pod.node or node_is_well(observed.nodes, pod.node, now)]


def outdated(observed: ObservedPool, now: float) -> list[Pod]:
    newest = pool_fingerprint(observed.pool)
    return [
        pod for pod in usable_spares(observed, now) if template_of(pod) != newest or _has_another_key(observed, pod)
    ]


def say_outdated(count: int) -> str:
    return "1 spare has an old template" if count == 1 else f"{count} spares have an old template"


def _has_another_key(observed: ObservedPool, pod: Pod) -> bool:
    """Whether the operator now derives another key for the pool: the spare would reject the orders of a job."""
    return bool(observed.secret) and observed.secret not in pod.secrets


def spare_pause_s(observed: ObservedPool, now: float) -> float:
    """Seconds until the pool creates a spare again, after spares that ended by themselves."""
    ended = ended_by_themselves(observed)
    if not ended:
        return 0.0
    pause_s = growing_pause_s(FIRST_PAUSE_S, LONGEST_PAUSE_S, len(ended))
    return max(0.0, ended[-1].created_at + pause_s - now)


def ended_by_themselves(observed: ObservedPool) -> list[Pod]:
    """The newest last."""
    ended = [pod for pod in observed.pods if pod.ended and not claimant(pod) and pod.deleting_since is None]
    return sorted(ended, key=lambda pod: pod.created_at)


def spares_being_claimed(observed: ObservedPool, now: float) -> list[Pod]:
    """Spares that a job has claimed a moment ago, and that no pod of the job has replaced yet."""
    taken = taken_by(observed.replacement_pods)
    return [
        pod
        for pod in observed.pods
        if claimant(pod) in observed.active_claimants
        and pod.uid not in taken
        and _has_kubelet(observed, pod)
        and not is_due(claimed_at(pod) + TAKING_S, now)
    ]


def _has_kubelet(observed: ObservedPool, pod: Pod) -> bool:
    node = observed.nodes.get(pod.node)
    return node is not None and node.ready


def _clear(observed: ObservedPool, now: float) -> Iterator[DeletePod]:
    """Delete pods that are no longer useful."""
    nodes, avoid = observed.nodes, set(_avoided(observed, now))
    for pod in observed.pods:
        node, dead = nodes.get(pod.node), bool(pod.node) and not _has_kubelet(observed, pod)
        if claimant(pod) or pod.ended:
            continue
        if dead and not pod.blocking_finalizers:
            yield DeletePod(
                pod.name, pod.uid, 0, f"node {pod.node} is not ready, so no kubelet ends the pod", pod.version
            )
        elif not dead and pod.deleting_since is None and node is not None and (finding := node.verdict_at(now)):
            yield DeletePod(
                pod.name, pod.uid, None, f"no job would claim it on node {pod.node}: {finding.description}", pod.version
            )
        elif pod.alive and not pod.node and pod.trouble and (free := usable_again(pod, avoid, nodes)):
            reason = f"it waits for a node, and {join_names(free)} may be used again"
            yield DeletePod(pod.name, pod.uid, 0, reason, pod.version)
        elif not dead and pod.alive and _unready(pod, now):
            yield DeletePod(pod.name, pod.uid, None, f"it has not been ready for {UNREADY_S:g} s", pod.version)
    for pod in ended_by_themselves(observed)[:-ENDED_KEPT]:
        yield DeletePod(
            pod.name, pod.uid, None, f"only the newest {ENDED_KEPT} spares that ended are kept", pod.version
        )


def _unready(pod: Pod, now: float) -> bool:
    return bool(pod.node) and not pod.ready and pod.unready_since > 0.0 and is_due(pod.unready_since + UNREADY_S, now)


def _roll(observed: ObservedPool, desired: int, now: float) -> Iterator[CreatePod | DeletePod]:
    spares, old = usable_spares(observed, now), outdated(observed, now)
    leaving = list(_leaving(spares, old, desired))
    for pod, reason in leaving:
        yield DeletePod(pod.name, pod.uid, None, reason, pod.version)
    deleted = {pod.uid for pod, _ in leaving}
    spares = [pod for pod in spares if pod.uid not in deleted]
    old = [pod for pod in old if pod.uid not in deleted]
    if taking := spares_being_claimed(observed, now):
        yield from _make_way(spares, taking[0])
        return
    if spare_pause_s(observed, now) > 0.0 or not _has_secret(observed):
        return
    missing = desired - len(spares)
    for number in range(missing):
        yield _create(observed, number, f"a spare is missing ({len(spares)} of {desired} exist)", now)
    starting = any(not pod.ready for pod in spares)
    if missing <= 0 and old and not starting and len(spares) <= desired:
        yield _create(observed, 0, f"the template has changed: {say_outdated(len(old))}", now)


def _has_secret(observed: ObservedPool) -> bool:
    """Whether spares can mount the pool's Secret, or need none."""
    return not observed.secret or can_be_mounted(observed.secret, observed.secret_writes, observed.pods)


def _make_way(spares: list[Pod], taken: Pod) -> Iterator[DeletePod]:
    for pod in spares:
        if not pod.node and pod.trouble:
            reason = f"it waits for room, and could take the place of {taken.name}, which a job has claimed"
            yield DeletePod(pod.name, pod.uid, 0, reason, pod.version)


def _leaving(spares: list[Pod], old: list[Pod], desired: int) -> Iterator[tuple[Pod, str]]:
    """While spares of an old template exist, at least the desired number stays ready."""
    for pod in old:
        if not pod.ready:
            yield pod, "it is not ready, and has an old template"
    ready = sum(pod.ready for pod in spares)
    for pod in sorted((pod for pod in old if pod.ready), key=_oldest_first):
        if ready > desired:
            ready -= 1
            yield pod, "it has an old template, and enough other spares are ready"
    new = sorted((pod for pod in spares if pod not in old), key=_least_use_first)
    for pod in new[: max(0, len(new) - desired)]:
        yield pod, f"the pool has more spares than it needs ({desired})"


def _oldest_first(pod: Pod) -> tuple[float, str]:
    return pod.created_at, pod.name


def _least_use_first(pod: Pod) -> tuple[bool, float, str]:
    return pod.ready, -pod.created_at, pod.name


def _create(observed: ObservedPool, number: int, reason: str, now: float) -> CreatePod:
    build = partial(
        pool_spare_manifest,
        observed.pool,
        f"{observed.entropy}-{number}",
        sorted(_avoided(observed, now))[:REQUIRED],
        avoid_if_possible=sorted(_suspects(observed))[:PREFERRED],
        sidecar_image=observed.sidecar_image,
        secret=observed.secret,
    )
    return CreatePod(build, reason)


def _suspects(observed: ObservedPool) -> set[str]:
    """Nodes that have failed jobs, or spares, before."""
    ended = {pod.node for pod in ended_by_themselves(observed)}
    return {name for name in observed.offenders | ended if name in observed.nodes}


def _avoided(observed: ObservedPool, now: float) -> Iterator[str]:
    """Nodes where no job would claim a spare, and that the scheduler does not avoid by itself."""
    tolerates_taints = tolerates_all([observed.pool.template.get("spec", {})])
    for node in with_findings(observed.nodes):
        finding = node.verdict_at(now)
        if finding is not None and needs_anti_affinity(finding, tolerates_taints):
            yield node.name

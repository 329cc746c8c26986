"""Which pods to create and which to delete, so that the declared actives and spares exist.

Rules:
- Before the first round each completion index has its own pod. From then on ranks move: a new spare replaces a lost
  pod, and no name is reused. Pods beyond the declared number are deleted, waiting spares first; the coordinator stays.
- No pod is created for a node that is silent or faulty. A pod without a node is recreated when a node that it avoids is
  usable again.
- A lost pod is deleted; on a node that is not ready its object is removed at once, because no kubelet does it. A pod is
  also deleted if its sidecar reports that it is no longer a member, and its launcher does not end.
- A pod that only a coordinator without a majority considers silent stays: that coordinator may itself be cut off.
- The newest few failed pods stay for their logs. Pods that fail before they can take part are recreated after growing
  pauses (failed_starts.py).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from understudy_operator.plan.capacity.failed_starts import failed_in_a_row, plan_start_backoff
from understudy_operator.plan.capacity.gang import (
    Opening,
    enroll_pod,
    has_gang,
    in_gang,
    is_abandoned_by_kueue,
    openings,
    spares_in_the_way,
)
from understudy_operator.plan.capacity.vacancies import count_refills, deficit, is_stuck
from understudy_operator.plan.facts import queue as kueue
from understudy_operator.plan.facts.cluster_objects import Node, Pod, with_findings
from understudy_operator.plan.facts.malformed import number_in
from understudy_operator.plan.facts.observed import Observed, ends_early
from understudy_operator.plan.facts.pod_answers import PodAnswer
from understudy_operator.plan.facts.pods import NO_PODS, Pods, cached_with_pods
from understudy_operator.plan.facts.trainer import AUTO, TORCHRUN, words_of
from understudy_operator.plan.faults.annotations import plan_annotations
from understudy_operator.plan.faults.avoidance import (
    OFF,
    REQUIRED,
    avoidance,
    join_names,
    preferred,
    required,
    unusable_nodes,
    usable_again,
)
from understudy_operator.plan.faults.drains import drained_spares
from understudy_operator.plan.intents import CreatePod, DeletePod, PatchPod, PodIntent, ReleasePod
from understudy_operator.plan.jobset.children import waits_for_claims, waits_for_previous_attempt
from understudy_operator.plan.jobset.startup import startup
from understudy_operator.plan.jobset.views import group_counts
from understudy_operator.plan.manifests.pods import pod_manifest, trainer_of
from understudy_operator.plan.manifests.shape import facts_secret_name
from understudy_operator.plan.times.reconcile_clock import is_due
from understudy_operator.plan.verdicts.findings import Finding
from understudy_operator.plan.world.objects import has_secrets, lacks_service
from understudy_operator.plan.world.replacements import plan_replacements
from understudy_protocol import pod as names
from understudy_protocol.command_words import may_call_torchrun
from understudy_protocol.enums import CloseReason, Fault

#: A coordinator that has been the leader for so long knows all rank holders.
RANKS_KNOWN_S = 30.0
FAILED_PODS_KEPT = 5
#: How long a pod with hostNetwork may wait for a node on which its ports are free.
PORT_S = 10.0
#: The template has changed while the job was suspended, and rules out the default launcher now.
NO_LAUNCHER = "the job has no launcher any more (see condition FaultTolerant)"
#: A lost pod whose node is healthy may come back by itself (its sidecar restarts) within so long.
RETURN_S = 15.0
#: A launcher that has not connected for this long counts as hanging. On a busy machine a start may take half a minute.
LAUNCHER_S = 120.0
#: After the close pods end by themselves; a pod that still runs is deleted then. On a busy machine it took over 10 s.
CLOSED_S = 30.0


def plan_members(observed: Observed, sidecar_image: str, now: float) -> tuple[PodIntent, ...]:
    if observed.job.deleting:
        return ()  # the garbage collector follows the owner references
    if observed.job.spec.world is None:
        return tuple(_clear(observed, (*observed.pods, *observed.previous_pods), NO_LAUNCHER))
    if observed.job.injected is not None:
        return tuple(_of_injected(observed, now))
    reason = "the job is suspended" if observed.job.spec.suspend else "it is from before the restart of the job"
    previous = tuple(_clear(observed, observed.previous_pods, reason))
    if observed.close is not None:
        return (*previous, *_clear_after_close(observed, now))
    patches = (*_relabel(observed), *plan_annotations(observed, now))
    return (*previous, *_remove(observed, now), *_create(observed, sidecar_image, now), *patches)


def avoided_nodes(observed: Observed, now: float) -> list[str]:
    """Nodes for which no new pod is created, even if no other node is free."""
    return required(avoidance(observed, now))


def _create(observed: Observed, sidecar_image: str, now: float) -> Iterator[CreatePod]:
    if lacks_service(observed) or not has_secrets(observed) or not may_start(observed):
        return
    avoided, ganged = avoidance(observed, now), has_gang(observed)
    backoff, in_a_row = plan_start_backoff(observed, now), failed_in_a_row(observed, now)
    if backoff.delays_all:
        return
    wanted = openings(observed, now) if ganged else _missing(observed, now)
    avoid_nodes, avoid_if_possible = required(avoided)[:REQUIRED], preferred(avoided)
    facts_secret = facts_secret_name(observed.job, observed.coordinator_address)

    def build(opening: Opening, serial: str) -> dict[str, Any]:
        manifest = pod_manifest(
            observed.job,
            index=opening.index,
            serial=serial,
            facts=facts_secret,
            sidecar_image=sidecar_image,
            avoid_nodes=avoid_nodes,
            avoid_if_possible=avoid_if_possible,
            template_of=opening.template,
        )
        if in_a_row:
            manifest["metadata"]["annotations"][names.ANNOTATION_FAILED_STARTS] = str(in_a_row)
        return enroll_pod(manifest, observed, opening) if ganged else manifest

    spares_delayed = backoff.spares
    for number, opening in enumerate(wanted):
        if opening.index in backoff.indexes:
            continue
        if opening.index is None and spares_delayed > 0:
            spares_delayed -= 1
            continue
        serial = observed.job.world.actives + number if opening.index is None else opening.index
        yield CreatePod(partial(build, opening, f"{observed.entropy}-{serial}"), opening.reason)


def _missing(observed: Observed, now: float) -> Iterator[Opening]:
    world, live = observed.job.world, observed.live
    if observed.before_first_round:
        indexes = {pod.index for pod in live}
        missing = [index for index in range(world.actives) if index not in indexes]
        yield from (Opening(index, None, True, f"group rank {index} has no pod") for index in missing)
        spares = world.spares - sum(pod.spare for pod in live)
    else:
        spares = count_refills(observed, deficit(observed, now), now)
    for _ in range(spares):
        yield Opening(None, None, False, f"a spare is missing ({len(live)} pods are alive)")


def may_start(observed: Observed) -> bool:
    """Whether the world may have pods: the job is not suspended, its claims exist, and the dependencies are met."""
    job = observed.job
    if job.spec.suspend or observed.spec_error or waits_for_previous_attempt(observed) or waits_for_claims(observed):
        return False
    return job.round >= 0 or job.world.groups[0].name in startup(job.spec, group_counts(observed)).started


def _delete(pod: Pod, reason: str) -> DeletePod:
    """With the pod's own grace period."""
    return DeletePod(pod.name, pod.uid, None, reason, pod.version)


def _drop(pod: Pod, reason: str) -> DeletePod:
    """At once, because no kubelet manages it. The version protects a pod that has reported again meanwhile."""
    return DeletePod(pod.name, pod.uid, 0, reason, pod.version)


def _clear(observed: Observed, pods: Iterable[Pod], reason: str) -> Iterator[PodIntent]:
    """Delete pods that the job does not have any more; those that have ended may stay for their logs."""
    for pod in pods:
        dead_node = bool(pod.node) and not observed.node_ready(pod.node)
        if dead_node:
            yield from _release(pod)
        if pod.is_done:
            continue
        if dead_node:
            yield _drop(pod, f"{reason}, and node {pod.node} is not ready")
        elif pod.deleting_since is None:
            yield _delete(pod, reason)


def _release(pod: Pod) -> Iterator[ReleasePod]:
    """Remove Kueue's finalizer. It keeps a deleted pod until its containers have ended: forever on a dead node."""
    if pod.deleting_since is not None and kueue.MANAGED in pod.finalizers:
        others = tuple(name for name in pod.finalizers if name != kueue.MANAGED)
        reason = f"node {pod.node} is not ready, so no kubelet reports its end"
        yield ReleasePod(pod.name, pod.uid, others, reason, pod.version)


def _of_injected(observed: Observed, now: float) -> Iterator[PodIntent]:
    """Their controller creates a new pod for each one that the operator deletes, or lets the operator create it."""
    if observed.close is None:
        yield from plan_replacements(observed, now)
        without_node = NO_PODS if observed.snapshot is None else observed.pods.without_node
        unusable = unusable_nodes(observed, now) if without_node else []
        for pod in without_node:
            if reason := _waits_in_vain(pod, unusable, observed):
                yield _drop(pod, reason)
        yield from _remove_lost(observed, now)
        yield from _remove_drained(observed)
        yield from _relabel(observed)
        yield from plan_annotations(observed, now)
        return
    for pod in observed.on_dead_nodes:  # the others end by themselves: one that starts now gets the close from us
        if not pod.is_done:
            yield _drop(pod, f"the job has ended, and node {pod.node} is not ready")


def _remove(observed: Observed, now: float) -> Iterator[PodIntent]:
    yield from _remove_lost(observed, now)
    yield from _make_way(observed, now)
    yield from _remove_useless(observed, now)
    failed = [*_ended(observed.pods), *_ended(observed.previous_pods)]
    failed.sort(key=lambda pod: pod.created_at)
    for pod in failed[:-FAILED_PODS_KEPT]:
        yield _delete(pod, f"only the newest {FAILED_PODS_KEPT} failed pods are kept")
    for pod in spares_in_the_way(observed, now):
        yield _delete(pod, "it is a spare, and pods of the job that have to train wait for nodes or for quota")
    yield from _remove_drained(observed)
    yield from _surplus(observed, now)


@cached_with_pods
def _ended(pods: Pods) -> Pods:
    """Those that have ended and are not being deleted."""
    return pods.where(lambda pod: pod.ended and pod.deleting_since is None)


def _remove_lost(observed: Observed, now: float) -> Iterator[PodIntent]:
    lost = {x.pod_uid: x for x in observed.snapshot.lost} if observed.snapshot is not None else {}
    useless, without_launcher = _useless(observed), _without_launcher(observed)
    live, dead_nodes = observed.live.by_uid, observed.on_dead_nodes.by_uid
    deleting = observed.pods.deleting.by_uid
    for pod in observed.pods.with_uids({*lost, *useless, *without_launcher, *dead_nodes, *deleting}):
        dead_node = pod.uid in dead_nodes
        if pod.deleting_since is not None:
            if dead_node:
                yield from _release(pod)
            if dead_node and not pod.blocking_finalizers:
                yield _drop(pod, f"node {pod.node} is not ready, so no kubelet ends the pod")
        elif pod.uid in lost and not pod.ended:
            entry = lost[pod.uid]
            silent = entry.fault is Fault.NODE
            if (silent and not observed.lacks_majority) or (not silent and is_due(entry.at + RETURN_S, now)):
                yield _delete(pod, f"it was lost ({entry.fault.value}): {entry.reason}")
        elif pod.uid in without_launcher and is_due(without_launcher[pod.uid] + LAUNCHER_S, now):
            yield _delete(
                pod, f"its trainer container runs, but no launcher has connected for {LAUNCHER_S:g} s: it hangs"
            )
        elif pod.uid in useless and not pod.ended and is_due(useless[pod.uid].replaced_at + RETURN_S, now):
            yield _delete(pod, f"it has to be replaced: {useless[pod.uid].replacement_reason}")
        elif not pod.ended and dead_node and pod.uid not in live and not _may_return(observed, pod, now):
            yield _drop(pod, f"node {pod.node} is not ready, and no coordinator reports the pod")


def _without_launcher(observed: Observed) -> dict[str, float]:
    """By uid: since when the trainer container runs and its sidecar has no launcher. Excluded are commands that call
    torchrun, because their launchers connect at any later time, and injected pods, whose commands are unknown.
    """
    if observed.job.injected is not None or _calls_torchrun(observed):
        return {}
    coordination = observed.coordination
    since = {uid: answer.no_launcher_since for uid, answer in coordination.answers.by_pod.items()}
    coordinator, snapshot = coordination.coordinator_uid, observed.snapshot
    if coordinator and snapshot is not None:
        known = [x.pod_uid for x in snapshot.members] + [x.pod_uid for x in snapshot.lost]
        if coordinator not in known:  # its own member has not joined it
            since[coordinator] = coordination.since
    pods = observed.pods.with_uids(since)
    return {pod.uid: max(pod.trainer_started_at, since[pod.uid]) for pod in pods if pod.trainer_started_at}


def _calls_torchrun(observed: Observed) -> bool:
    """Whether the command of the trainer container may call torchrun."""
    world = observed.job.world
    if world.mode != AUTO:
        return world.mode == TORCHRUN
    trainers = (trainer_of(group.pod_template["spec"], world.container) for group in world.groups)
    return any(may_call_torchrun(words_of(trainer)) for trainer in trainers)


def _useless(observed: Observed) -> dict[str, PodAnswer]:
    """By uid: the pods that report that they are no longer members, unless a connected coordinator reports them as
    members. The last snapshot of a coordinator that is not connected may be older than the report.
    """
    found = {uid: answer for uid, answer in observed.coordination.answers.by_pod.items() if answer.replacement_reason}
    if found and observed.snapshot is not None and observed.coordination.coordinator_uid:
        members = {member.pod_uid for member in observed.snapshot.members}
        found = {uid: answer for uid, answer in found.items() if uid not in members}
    return found


def _may_return(observed: Observed, pod: Pod, now: float) -> bool:
    """It was created since its node became silent: so the scheduler has seen the node come back before our watch."""
    node = observed.nodes.get(pod.node)
    return node is not None and 0.0 < node.since < pod.created_at and not is_due(pod.created_at + RETURN_S, now)


def _make_way(observed: Observed, now: float) -> Iterator[DeletePod]:
    """Delete pods that wait if a new pod would not have to."""
    avoid = set(avoided_nodes(observed, now))
    # Without a coordinator's report an operator that has just started does not know which nodes are silent.
    nodes_known = observed.snapshot is not None or observed.before_first_round
    for pod in observed.pods.without_node:
        if pod.alive and is_abandoned_by_kueue(pod):
            yield _drop(pod, "it waits for Kueue, which considers its pod group finished")
        elif pod.lacks_port_since and pod.alive and is_due(pod.lacks_port_since + PORT_S, now):
            yield _drop(pod, "no node with room for it has its ports free: the next pod has other ports")
        elif nodes_known and (reason := _waits_in_vain(pod, avoid, observed)):
            yield _drop(pod, reason)


def _waits_in_vain(pod: Pod, avoid: Collection[str], observed: Observed) -> str:
    """Why a pod without a node is recreated: its affinity excludes a node that may be used again. "": it is not.

    avoid: the nodes that a new pod would avoid.
    """
    if not pod.alive or not pod.trouble:
        return ""
    free = usable_again(pod, avoid, observed.nodes)
    return f"it waits for a node, and {join_names(free)} may be used again" if free else ""


def _remove_useless(observed: Observed, now: float) -> Iterator[DeletePod]:
    """A pod on broken hardware without a rank would never get one: replace it by a pod on another node."""
    broken = {
        node.name: finding.description for node in with_findings(observed.nodes) if (finding := _broken(node, now))
    }
    if not broken or observed.job.world.avoid_nodes == OFF:
        return
    if observed.before_first_round:
        rank_holders: Mapping[str, int] = {}
    elif observed.snapshot is None or not observed.rank_holders_known:
        return
    elif observed.snapshot.waiting_for and not is_due(observed.coordination.since + RANKS_KNOWN_S, now):
        return  # a new coordinator may not know all rank holders yet
    else:
        rank_holders = observed.ranks
    for pod in observed.live:
        if pod.node in broken and pod.uid not in rank_holders:
            yield _delete(pod, f"it would get no ranks on node {pod.node}: {broken[pod.node]}")


def _remove_drained(observed: Observed) -> Iterator[DeletePod]:
    """The coordinator evicts a drained pod with ranks. One without ranks can go at once."""
    for pod, reason in drained_spares(observed):
        yield _delete(pod, f"a user drains it, and it has no ranks: {reason}")


def _broken(node: Node, now: float) -> Finding | None:
    """The finding about its hardware."""
    finding = node.verdict_at(now)
    return finding if finding is not None and finding.hardware else None


def _surplus(observed: Observed, now: float) -> Iterator[DeletePod]:
    world, live = observed.job.world, observed.live
    coordinators = {observed.job.status.coordinator.pod_uid, observed.coordination.coordinator_uid}
    if observed.before_first_round:
        # A pod with a group rank was in a round that no coordinator has reported to this operator yet.
        spares = [pod for pod in live.spares if names.ANNOTATION_GROUP_RANK not in pod.annotations]
        surplus = len(spares) - world.spares
        free = [pod for pod in spares if pod.uid not in coordinators]
    elif observed.snapshot is None or not observed.rank_holders_known or observed.snapshot.waiting_for:
        return
    else:
        surplus = len(live) - world.actives - world.spares
        free = [pod for pod in live.without_uids(observed.ranks) if pod.uid not in coordinators] if surplus > 0 else []
    ganged = has_gang(observed)

    def deletion_order(pod: Pod) -> tuple[Any, ...]:
        """Stuck and unstarted pods go first, then the youngest; pods of a gang go last."""
        return not is_stuck(pod, now), ganged and in_gang(pod), pod.sidecar_started, _costs(pod), -pod.created_at

    free.sort(key=deletion_order)
    for pod in free[: max(0, surplus)]:
        # The deletion requires the observed version: a pod that has got a rank since has another one.
        yield _delete(pod, f"the job has more spares than it needs ({world.spares})")


def _costs(pod: Pod) -> tuple[bool, bool]:
    """The cost of a pod that has not started: a pool's spare, a place on a node."""
    return names.ANNOTATION_CLAIMED_POD_UID in pod.annotations, bool(pod.node)


def _clear_after_close(observed: Observed, now: float) -> Iterator[PodIntent]:
    since = now if observed.job.completed_at is None else observed.job.completed_at
    for pod in observed.pods:
        ready = observed.node_ready(pod.node)
        if not ready:
            yield from _release(pod)
        if pod.is_done or (pod.deleting_since is not None and ready):
            continue
        if not pod.sidecar_ran:
            yield _drop(pod, "the job has ended before it started")
        elif not ready:
            yield _drop(pod, f"the job has ended, and node {pod.node} is not ready")
        elif ends_early(observed):
            yield _delete(pod, "the job has ended before its training")
        elif not _may_continue(observed, pod) and is_due(since + CLOSED_S, now):
            yield _delete(pod, "the job has ended, but the pod still runs")


def _may_continue(observed: Observed, pod: Pod) -> bool:
    """Whether this pod's script may still work after its torchrun has succeeded, for example on an upload."""
    if observed.close is None or observed.close.reason is not CloseReason.SUCCEEDED:
        return False
    if observed.snapshot is None:
        had_ranks = names.ANNOTATION_GROUP_RANK in pod.annotations
    else:
        had_ranks = pod.uid in observed.ranks
    return had_ranks and _calls_torchrun(observed)


def _relabel(observed: Observed) -> Iterator[PatchPod]:
    """Write the current role and group rank to the pods."""
    if observed.snapshot is None or not observed.rank_holders_known or observed.before_first_round:
        return
    written = _written_ranks(observed.pods.alive)
    ranks = {x.pod_uid: x.group_rank for x in observed.snapshot.members}
    changed = {uid for uid, rank in ranks.items() if written.get(uid, rank) != rank}
    for pod in observed.pods.with_uids(changed):
        role, text = _role(ranks[pod.uid])
        yield PatchPod(pod.name, {names.LABEL_ROLE: role}, {names.ANNOTATION_GROUP_RANK: text})


def _role(group_rank: int | None) -> tuple[str | None, str | None]:
    """The label and the annotation of a pod with that rank."""
    return (names.ROLE_SPARE, None) if group_rank is None else (names.ROLE_ACTIVE, str(group_rank))


@cached_with_pods
def _written_ranks(pods: Pods) -> Mapping[str, int | None]:
    """The group rank that each pod's label and annotation show, by uid; -1 if they show neither a rank nor a spare."""

    def rank_of(pod: Pod) -> int | None:
        text = pod.annotations.get(names.ANNOTATION_GROUP_RANK)
        rank = None if text is None else number_in(text)
        return rank if _role(rank) == (pod.labels.get(names.LABEL_ROLE), text) else -1

    return {pod.uid: rank_of(pod) for pod in pods}

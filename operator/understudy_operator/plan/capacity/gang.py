"""The gang: as many pods as train. They start together and keep their quota, and no spare takes resources that they
need.

The plan looks after the gang of a job in Kueue's queue, of a job whose pods have the marks of a gang scheduler, and of
a job whose spares have a priority of their own. Rules:
- The gang consists of pods, not ranks: the pods created for an index, and those created later to replace a lost one of
  the gang. Promotion does not change that: a spare stays a spare. So a job has quota and priority for as many pods as
  it declares: the actives in the gang, and each spare by itself.
- Kueue deletes a pod beyond its group's size, and counts a pod that is being deleted until its containers have ended.
  So a new pod joins once Kueue counts a free place, with the template of the replicatedJob that has lost a pod.
- A gang without pods queues again, as another group. Each pod is created with a mark: its group is finished when all
  pods of the group have ended. Without the mark Kueue would reserve quota and keep pods for replacements that never
  come.
- A spare is its own workload, without the marks of a gang scheduler. It is created once the gang has its nodes, and
  deleted when the gang waits again: so it takes nothing that the gang needs to start.
- A pod that replaces a pool's spare is outside the gang, without marks and in no queue: it has a node already.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from understudy_operator.plan.capacity.vacancies import count_refills, deficit, is_stuck
from understudy_operator.plan.facts import queue as kueue
from understudy_operator.plan.facts.cluster_objects import Pod
from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.observed import Observed, cached_per_reconcile
from understudy_operator.plan.facts.pods import NO_PODS, Pods, cached_with_pods
from understudy_operator.plan.facts.queue import Queue
from understudy_operator.plan.facts.spec import ReplicatedJob
from understudy_operator.plan.times.reconcile_clock import is_due
from understudy_protocol import pod as names

#: How long the gang waits before its spares are deleted. Kueue opens the gate of an admitted group's pod at once.
YIELD_S = 5.0
#: Labels and annotations by which gang schedulers know a pod's group: coscheduling, Koordinator, Volcano, YuniKorn.
SCHEDULERS_MARKS = (
    "scheduling.x-k8s.io/pod-group",
    "pod-group.scheduling.sigs.k8s.io",
    "pod-group.scheduling.sigs.k8s.io/name",
    "gang.scheduling.koordinator.sh/name",
    "scheduling.k8s.io/group-name",
    "scheduling.volcano.sh/group-name",
    "yunikorn.apache.org/task-group-name",
    "yunikorn.apache.org/task-groups",
)
#: The same of Kubernetes' own gang scheduling, in a pod's spec.
SCHEDULING_GROUP = "schedulingGroup"


@dataclass(frozen=True)
class Gang:
    pods: Pods  # that are alive
    counted: Pods  # that Kueue counts
    queue: Queue | None
    group: str  # Kueue's pod group; "" without a queue

    @property
    def placed(self) -> bool:
        """Whether any pod of it has a node: then the gang has started, or is about to."""
        return any(pod.node for pod in self.pods)

    @property
    def waiting(self) -> Pods:
        return self.pods.without_node

    @property
    def gated(self) -> tuple[Pod, ...]:
        return tuple(pod for pod in self.waiting if gated(pod))


@dataclass(frozen=True)
class Opening:
    """A pod to create."""

    index: int | None  # None: as a spare
    template: ReplicatedJob | None  # for a spare that replaces one of its pods; None: the spares' own
    of_gang: bool
    reason: str


def has_gang(observed: Observed) -> bool:
    """Whether the plan looks after the gang."""
    job = observed.job
    return gang(observed).queue is not None or bool(job.world.spare_priority_class) or has_gang_scheduler(job)


@cached_per_reconcile
def gang(observed: Observed) -> Gang:
    """The group and queue come from its pods, even if the job has changed since: a group has one queue."""
    job = observed.job
    live, newest = _in_gang(observed.live), _newest_counted(observed.pods)
    if newest is None:
        fresh = hashlib.sha256(f"{job.uid}/{observed.entropy}".encode()).hexdigest()[:8]
        return Gang(live, NO_PODS, job.queue, f"{job.name}-{fresh}" if job.queue is not None else "")
    group = newest.labels.get(kueue.GROUP_NAME, "")
    return Gang(live, _mates(observed.pods, group), kueue.read_queue(newest.labels) if group else None, group)


@cached_with_pods
def _in_gang(pods: Pods) -> Pods:
    return pods.where(lambda pod: in_gang(pod) and not is_abandoned_by_kueue(pod))


@cached_with_pods
def _newest_counted(pods: Pods) -> Pod | None:
    return max(_in_gang(pods).where(_counts), key=lambda pod: (pod.created_at, pod.name), default=None)


@cached_with_pods
def _mates(pods: Pods, group: str) -> Pods:
    """The pods of Kueue's group that it counts."""
    return _in_gang(pods).where(lambda pod: _counts(pod) and pod.labels.get(kueue.GROUP_NAME, "") == group)


def in_gang(pod: Pod) -> bool:
    return pod.index is not None or names.ANNOTATION_GANG_MEMBER in pod.annotations


def gated(pod: Pod) -> bool:
    """Whether the pod waits for Kueue."""
    return kueue.GATE in pod.gates


def is_abandoned_by_kueue(pod: Pod) -> bool:
    """Whether Kueue considers the pod's group finished, and will never open its gate."""
    return gated(pod) and pod.labels.get(kueue.MANAGED) == "true" and kueue.MANAGED not in pod.finalizers


def openings(observed: Observed, now: float) -> Iterator[Opening]:
    """The pods to create, those of the gang first."""
    world, live, job_gang = observed.job.world, observed.live, gang(observed)
    before_first_round, missing = observed.before_first_round, deficit(observed, now)
    gang_openings = list(_of_gang(observed, before_first_round))[: None if before_first_round else max(0, missing)]
    yield from gang_openings
    spares = world.spares - sum(not in_gang(pod) and not is_stuck(pod, now) for pod in live)
    if not before_first_round:
        spares = count_refills(observed, min(spares, missing - len(gang_openings)), now)
    starts = not job_gang.placed or (before_first_round and bool(gang_openings or job_gang.waiting))
    if starts and (job_gang.queue is not None or has_gang_scheduler(observed.job)):
        return
    for _ in range(spares):
        yield Opening(None, None, False, f"a spare is missing ({len(live)} pods are alive)")


def spares_in_the_way(observed: Observed, now: float) -> tuple[Pod, ...]:
    """Spares that have, or may get, resources that a waiting gang needs."""
    job_gang = gang(observed)
    queued = job_gang.queue is not None or has_gang_scheduler(observed.job)
    if not queued or job_gang.placed or not job_gang.waiting:
        return ()
    if not is_due(min(x.created_at for x in job_gang.waiting) + YIELD_S, now):
        return ()
    return tuple(pod for pod in observed.live if not in_gang(pod) and pod.uid not in observed.ranks)


def enroll_pod(manifest: dict[str, Any], observed: Observed, opening: Opening) -> dict[str, Any]:
    """The manifest with the marks of the gang, or without marks for a spare."""
    world, job_gang = observed.job.world, gang(observed)
    metadata, spec = manifest["metadata"], manifest["spec"]
    if opening.of_gang:
        if opening.index is None:
            metadata["annotations"][names.ANNOTATION_GANG_MEMBER] = "true"
        if job_gang.queue is not None:
            metadata["labels"] |= job_gang.queue.labels | {kueue.GROUP_NAME: job_gang.group}
            metadata["annotations"] |= {
                kueue.GROUP_SIZE: str(world.actives),
                # Kueue's own hash differs between pods with different affinity: a pod that avoids a node would have a
                # role that the admitted group does not contain.
                kueue.ROLE: metadata["labels"][names.LABEL_REPLICATED_JOB],
                kueue.RETRIABLE: "false",
            }
        return manifest
    unmark(manifest)
    if job_gang.queue is not None:
        own = Queue(job_gang.queue.name) if world.spare_priority_class else job_gang.queue
        metadata["labels"] |= own.labels
    if world.spare_priority_class:
        spec["priorityClassName"] = world.spare_priority_class
        for computed in ("priority", "preemptionPolicy"):  # set from the class, and rejected if they differ from it
            spec.pop(computed, None)
    return manifest


def unmark(manifest: dict[str, Any]) -> None:
    """Remove the marks of gang schedulers: the pod is scheduled alone."""
    for mark in SCHEDULERS_MARKS:
        manifest["metadata"]["labels"].pop(mark, None)
        manifest["metadata"]["annotations"].pop(mark, None)
    manifest["spec"].pop(SCHEDULING_GROUP, None)


def has_gang_scheduler(job: Job) -> bool:
    """Whether the job's pods have marks of a gang scheduler."""

    def marked(metadata: Mapping[str, Any]) -> bool:
        marks = {**metadata.get("labels", {}), **metadata.get("annotations", {})}
        return any(mark in marks for mark in SCHEDULERS_MARKS)

    return any(
        marked(group.job_metadata)
        or marked(group.pod_template.get("metadata", {}))
        or SCHEDULING_GROUP in group.pod_template.get("spec", {})
        for group in job.world.groups
    )


def _counts(pod: Pod) -> bool:
    """Whether Kueue counts the pod as running, waiting or succeeded."""
    return pod.phase != "Failed" and (pod.deleting_since is None or bool(pod.node))


def _of_gang(observed: Observed, before_first_round: bool) -> Iterator[Opening]:
    """The missing pods by replicatedJob, as far as the group has room for them."""
    job_gang, first = gang(observed), 0
    indexes_present = {pod.index for pod in job_gang.pods}
    for group in observed.job.world.groups:
        room = group.pods - sum(pod.labels.get(names.LABEL_REPLICATED_JOB) == group.name for pod in _holding(job_gang))
        indexes = [index for index in range(first, first + group.pods) if index not in indexes_present]
        first += group.pods
        if before_first_round:
            count = len(indexes) if job_gang.queue is None else max(0, room)
            yield from (Opening(index, None, True, f"group rank {index} has no pod") for index in indexes[:count])
        else:
            reason = f"the gang lacks a pod of {group.name} ({len(observed.live)} pods are alive)"
            yield from (Opening(None, group, True, reason) for _ in range(room))


def _holding(job_gang: Gang) -> Pods:
    return job_gang.pods if job_gang.queue is None else job_gang.counted

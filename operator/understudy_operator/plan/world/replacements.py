"""Pods of injected Jobs that the operator creates, because the Job controller waits.

The Job controller replaces a failed pod 10 s after its end. After each further failure it waits twice as long, up to
ten minutes, until a pod of the Job succeeds. But a training survives many failures, and none of its pods succeeds
before its end. So the operator creates the pod itself. Then the Job controller finds all indexes occupied.

Rules:
- The status of the Job counts fewer active pods than the Job needs: the Job controller knows of the loss, and waits.
- The training has formed a round in this attempt: a Job that has just started may still create its pods.
- The pods avoid nodes that are silent, or whose hardware is broken.
- Pods that fail to start are followed after growing delays, as those of a TrainingJob (failed_starts.py).
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from understudy_operator.plan.capacity.failed_starts import failed_in_a_row, plan_start_backoff
from understudy_operator.plan.facts import keys
from understudy_operator.plan.facts.cluster_objects import ChildJob
from understudy_operator.plan.facts.malformed import number_in
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.faults.avoidance import REQUIRED, unusable_nodes
from understudy_operator.plan.intents import CreatePod
from understudy_operator.plan.manifests.job_pods import job_pod
from understudy_operator.plan.manifests.node_affinity import exclude_nodes
from understudy_protocol import pod as names


def plan_replacements(observed: Observed, now: float) -> Iterator[CreatePod]:
    """The pods for vacant indexes of an injected job's Jobs."""
    if observed.snapshot is None or observed.snapshot.token.round < 0:
        return
    waiting = {job.uid: job for job in observed.children if _missing(job) > 0}
    if not waiting:
        return
    backoff, in_a_row = plan_start_backoff(observed, now), failed_in_a_row(observed, now)
    if backoff.delays_all:
        return
    avoid = unusable_nodes(observed, now)[:REQUIRED]
    occupied = _occupied_indexes(waiting, observed)
    vacant = [(job, index) for job in waiting.values() for index in _vacant(job, occupied[job.uid])]
    for job, index in vacant[backoff.spares :]:
        serial = f"{observed.entropy}-{index}"
        reason = f"the Job controller waits before it replaces the pod of index {index} of Job {job.name}"
        yield CreatePod(partial(_build, job, index, serial, in_a_row, avoid), reason)


def _build(job: ChildJob, index: int, serial: str, in_a_row: int, avoid: Sequence[str]) -> dict[str, Any]:
    manifest = job_pod(job, index, serial)
    annotations = manifest["metadata"]["annotations"]
    if in_a_row:
        annotations[names.ANNOTATION_FAILED_STARTS] = str(in_a_row)
    if avoid:
        exclude_nodes(manifest["spec"], avoid, annotations)
    return manifest


def _missing(job: ChildJob) -> int:
    """The number of pods that the Job controller itself would create."""
    if job.ended or job.deleting or job.suspended:
        return 0
    return job.desired_pods - job.succeeded - job.active


def _occupied_indexes(jobs: Mapping[str, ChildJob], observed: Observed) -> Mapping[str, set[int | None]]:
    """By the uid of the Job."""
    occupied: dict[str, set[int | None]] = {uid: set() for uid in jobs}
    for pod in observed.pods:
        job = jobs.get(pod.controller.uid)
        if job is None or pod.phase == "Failed":
            continue
        if pod.deleting_since is None or job.replaces_ended_pods_only:
            occupied[job.uid].add(number_in(pod.annotations.get(keys.COMPLETION_INDEX)))
    return occupied


def _vacant(job: ChildJob, occupied: Container[int | None]) -> list[int]:
    return [index for index in range(job.desired_pods) if index not in occupied][: _missing(job)]

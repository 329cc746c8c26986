"""The facts of an injected job beyond its members: the index of each pod. And its Jobs' backoffLimit.

A Job fails when more pods have failed than its backoffLimit, which is 0 in JobSet's PyTorch examples. Here the job
recovers from a pod that is lost or evicted, and `recovery` limits how many there may be. So the operator removes the
limit of the Jobs while the training goes on. Once it has failed for good their limit is 0, and they fail at the next
pod that ends. A PyTorchJob counts differently, and is not changed.
"""

from collections.abc import Iterator
from dataclasses import replace

from understudy_operator.plan.facts.cluster_objects import Pod
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.pods import Pods
from understudy_operator.plan.intents import PatchJob
from understudy_protocol import pod as names
from understudy_protocol.enums import CloseReason
from understudy_protocol.pod import group_rank, read_place

NO_LIMIT = 2**31 - 1


def resolve_injected_job(observed: Observed) -> Observed:
    """Add the facts that an injected job's own objects do not have: each pod's index, which did not exist when the pod
    was created; and whether its Jobs are suspended, in which case their controller deletes the pods.
    """
    job = observed.job
    if job.injected is None:
        return observed
    pods = Pods(_placed(pod, observed) for pod in observed.pods)
    return replace(observed, pods=pods, job=replace(job, spec=replace(job.spec, suspend=_is_suspended(observed))))


def _is_suspended(observed: Observed) -> bool:
    going = [child for child in observed.children if not child.ended]
    return bool(going) and all(child.suspended for child in going)


def _placed(pod: Pod, observed: Observed) -> Pod:
    assert observed.job.injected is not None
    text = pod.annotations.get(names.ANNOTATION_POD_INDEX, "")
    if not text:
        return pod
    try:
        place = read_place(text)
    except ValueError:
        return pod  # somebody has changed the annotation; the pod itself uses its variable
    index = group_rank(place, observed.job.injected.groups, observed.job.world.actives)
    return replace(pod, index=index, spare=index is None)


def plan_target(observed: Observed) -> Iterator[PatchJob]:
    """The changes of the Jobs that control the pods."""
    job = observed.job
    if job.injected is None or job.deleting:
        return
    failed = observed.close is not None and observed.close.reason is CloseReason.FAILED
    children = {child.name: child for child in observed.children}
    # Not from the pods' labels: these could name any Job of the namespace.
    controllers = {(x.controller.name, x.controller.uid) for x in observed.pods if x.controller.kind == "Job"}
    limit = 0 if failed else NO_LIMIT
    reason = "the training has failed for good" if failed else "recovery decides which faults end the training"
    for name, uid in sorted(controllers):
        child = children.get(name)
        if child is not None and (child.ended or child.deleting or child.backoff_limit == limit):
            continue
        if child is not None and not failed:
            continue  # somebody has set another limit since: keep it
        # The uid is a precondition: a Job of the same name that was created since is not part of this training.
        metadata = {"uid": uid, "labels": {names.LABEL_JOB: job.name, names.LABEL_JOB_UID: job.uid}}
        yield PatchJob(name, {"metadata": metadata, "spec": {"backoffLimit": limit}}, reason)

"""What an injected job needs beyond its members: where each pod stands, and that its Jobs leave faults to the ladder.

A Job ends when more pods have failed than its backoffLimit says, which in JobSet's PyTorch examples is none. Here a pod
that is lost or given up is a fault that is recovered from, and how many there may be is the ladder's to say. So while
the training goes on its Jobs have no limit; once it has failed for good they have none left, and fail at the next pod
that ends. A PyTorchJob counts otherwise, and is left alone.
"""

from collections.abc import Iterator
from dataclasses import replace

from understudy_operator.plan.intents import PatchJob
from understudy_operator.plan.observed import Observed, Pod
from understudy_protocol import pod as names
from understudy_protocol.enums import CloseReason
from understudy_protocol.pod import group_rank, read_place

NO_LIMIT = 2**31 - 1


def resolve_injected_job(observed: Observed) -> Observed:
    """With what an injected job's own objects do not say: each pod's index, which the pod itself was not told at its
    birth; and whether its Jobs are suspended, whose controller then takes the pods away.
    """
    job = observed.job
    if job.injected is None:
        return observed
    pods = tuple(_placed(pod, observed) for pod in observed.pods)
    return replace(observed, pods=pods, job=replace(job, spec=replace(job.spec, suspend=_is_suspended(observed))))


def _is_suspended(observed: Observed) -> bool:
    going = [child for child in observed.children if not child.ended]
    return bool(going) and all(child.suspended for child in going)


def _placed(pod: Pod, observed: Observed) -> Pod:
    assert observed.job.injected is not None
    text = pod.annotations.get(names.ANNOTATION_PLACE, "")
    if not text:
        return pod
    try:
        place = read_place(text)
    except ValueError:
        return pod  # somebody has changed it: the pod itself goes by what it was told at its birth
    index = group_rank(place, observed.job.injected.groups, observed.job.world.actives)
    return replace(pod, index=index, spare=index is None)


def plan_target(observed: Observed) -> Iterator[PatchJob]:
    """The changes of the Jobs whose pods these are."""
    job = observed.job
    if job.injected is None or job.deleting:
        return
    failed = observed.close is not None and observed.close.reason is CloseReason.FAILED
    children = {child.name: child for child in observed.children}
    # Not by the pods' labels: these could name any Job of the namespace.
    controllers = {(x.controller.name, x.controller.uid) for x in observed.pods if x.controller.kind == "Job"}
    limit = 0 if failed else NO_LIMIT
    reason = "the training has failed for good" if failed else "recovery decides which faults end the training"
    for name, uid in sorted(controllers):
        child = children.get(name)
        if child is not None and (child.ended or child.deleting or child.backoff_limit == limit):
            continue
        if child is not None and not failed:
            continue  # somebody has set it again since: theirs to say
        # The uid is a precondition: a Job of the same name that was applied since is none of this training.
        metadata = {"uid": uid, "labels": {names.LABEL_JOB: job.name, names.LABEL_JOB_UID: job.uid}}
        yield PatchJob(name, {"metadata": metadata, "spec": {"backoffLimit": limit}}, reason)

"""Reports on a job that waits in Kueue's queue: the condition QuotaReserved, and messages for the other conditions.

Rules: a job without a queue has no such condition if nothing of it waits for Kueue. The condition is False while the
whole gang or a Job waits. A single pod that joins a running group is admitted in a moment, and the job does not wait
for a spare. It is also False if nothing manages the queue: the cluster has no Kueue, or Kueue has not seen the pods. If
a pod waits at another gate, the message names the gate; this wait does not count as trouble of the pod.
"""

from collections.abc import Iterator

from understudy_operator.plan.capacity.gang import Gang, gang, gated, in_gang
from understudy_operator.plan.facts.cluster_objects import ChildJob, Pod
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.queue import API_GROUP, GATE, MANAGED, QUEUE
from understudy_operator.plan.facts.reported_conditions import DesiredCondition, condition, unchanged
from understudy_operator.plan.facts.status import Condition
from understudy_operator.plan.intents import Event

QUOTA_RESERVED = "QuotaReserved"
WAITS, ADMITTED, NOT_MANAGED = "WaitingForQuota", "Admitted", "NotManaged"
MAX_REPORTED = 3  # pods and Jobs by name
NO_KUEUE = f", and the cluster has no Kueue (API group {API_GROUP}): install it, or remove the label {QUEUE}"


def waits_in_queue(observed: Observed) -> Iterator[str]:
    """Messages about the job's waits."""
    if observed.job.spec.world is not None:
        job_gang = gang(observed)
        if job_gang.gated:
            yield _of_gang(job_gang, observed.job.world.actives) + (NO_KUEUE if observed.has_kueue is False else "")
        for pod in _at_other_gates(observed)[:MAX_REPORTED]:
            gates = ", ".join(gate for gate in pod.gates if gate != GATE)
            yield f"pod {pod.name} waits until its scheduling gate {gates} is removed"
    for child in _waiting_jobs(observed)[:MAX_REPORTED]:
        no_kueue = NO_KUEUE if observed.has_kueue is False else ""
        yield f"Job {child.name} waits for quota in queue {child.queue} (Kueue){no_kueue}"


def quota_reserved(observed: Observed) -> Iterator[DesiredCondition]:
    """The condition, if there is a queue."""
    job = observed.job
    if job.terminal or job.spec.suspend or observed.close is not None:
        return
    job_gang = None if job.spec.world is None else gang(observed)
    if (job_gang is not None and gang_waits_for_quota(observed)) or _waiting_jobs(observed):
        yield QUOTA_RESERVED, False, WAITS, "; ".join(waits_in_queue(observed))
    elif job_gang is not None and (unmanaged := _unmanaged(job_gang)):
        yield QUOTA_RESERVED, False, NOT_MANAGED, unmanaged
    elif job_gang is not None and job_gang.queue is not None and job_gang.pods:
        yield QUOTA_RESERVED, True, ADMITTED, _spares(observed)
    elif queue := next((child.queue for child in observed.children if child.queue), ""):
        yield from _of_running_jobs(observed, queue)


def _of_running_jobs(observed: Observed, queue: str) -> Iterator[DesiredCondition]:
    """The queue of a running Job does not show whether Kueue has admitted it."""
    if observed.has_kueue:
        yield QUOTA_RESERVED, True, ADMITTED, ""
    elif observed.has_kueue is False:
        message = (
            f"queue {queue} has no effect: the cluster has no Kueue (API group {API_GROUP}), so the job runs without "
            f"quota; install Kueue, or remove the label {QUEUE}"
        )
        yield QUOTA_RESERVED, False, NOT_MANAGED, message
    elif before := condition(observed.job.status, QUOTA_RESERVED):  # has_kueue is unknown after a start of the operator
        yield unchanged(before)


def gang_waits_for_quota(observed: Observed) -> bool:
    """Whether Kueue has admitted no pod of the gang, and no spare trains instead."""
    job_gang = gang(observed)
    if not job_gang.pods or not all(gated(pod) for pod in job_gang.pods):
        return False
    return not any(pod.uid in observed.ranks for pod in observed.live)


def queue_events(before: Condition | None, after: Condition | None) -> Iterator[Event]:
    """The events between two states of the condition, each None if there is none."""
    if after is None or (before is not None and before.reason == after.reason):
        return
    if after.reason == WAITS:
        yield Event("Normal", WAITS, after.message)
    elif after.reason == ADMITTED:
        yield Event("Normal", ADMITTED, "Kueue has admitted the job")
    elif after.reason == NOT_MANAGED:
        yield Event("Warning", NOT_MANAGED, after.message)


def _of_gang(job_gang: Gang, actives: int) -> str:
    count = f"{len(job_gang.gated)} of {actives} pods"
    if job_gang.queue is None:
        fix = f"set the label {QUEUE} on the TrainingJob to a queue of its namespace, and recreate the TrainingJob"
        return f"{count} wait at Kueue's scheduling gate, but the job names no queue: {fix}"
    return f"waits for quota in queue {job_gang.queue.name} (Kueue): {count}, as pod group {job_gang.group}"


def _unmanaged(job_gang: Gang) -> str:
    """A message if Kueue's webhook has not seen the pods."""
    if job_gang.queue is None or all(pod.labels.get(MANAGED) == "true" for pod in job_gang.pods):
        return ""
    return (
        f"the job names queue {job_gang.queue.name}, but Kueue does not manage its pods, so they run without quota: "
        "install Kueue, enable its pod integration for this namespace, or remove the label"
    )


def _spares(observed: Observed) -> str:
    waiting = sum(gated(pod) and not in_gang(pod) for pod in observed.live.without_node)
    return f"{waiting} of {observed.job.world.spares} spares wait for quota" if waiting else ""


def _at_other_gates(observed: Observed) -> list[Pod]:
    return [pod for pod in observed.live.without_node if any(gate != GATE for gate in pod.gates)]


def _waiting_jobs(observed: Observed) -> list[ChildJob]:
    """Kueue suspends a Job while it waits."""
    return [x for x in observed.children if x.queue and x.suspended and not x.ended and not x.deleting]

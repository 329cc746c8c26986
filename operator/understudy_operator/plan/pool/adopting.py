"""Spares that a job has claimed Warm: from the claim on they are its pods, and have to be told so.

    such a pod                                   what is done
    -------------------------------------------  ---------------------------------------------------------------------
    has the annotation `adopted`                 nothing: it is a pod like any other
    was heard of as the job's, by whomever       the annotation is written
    not, and this operator has told it for 10 s  it is deleted: its rank is vacant again
    not                                          it is told, again and again: whose it is, and what it is to run

Rules: who has been told says so to whoever asks, so an operator that takes over needs no memory. One that could not be
told may be out of the operator's reach alone; but it was nobody's, and no member knows of it. After that the job's next
claims are Replace for a while: what has failed for one spare may fail for all of them.
"""

from collections.abc import Iterator

from understudy_operator.plan.intents import AdoptSpare, DeletePod, PatchPod
from understudy_operator.plan.observed import Observed, Pod
from understudy_operator.plan.pool.comparing import take_over
from understudy_operator.plan.reconcile_clock import is_due
from understudy_operator.plan.rfc3339 import micro_time
from understudy_operator.plan.shape import job_shape
from understudy_protocol import pod as names

ADOPT_WITHIN_S = 10.0
REPLACE_FOR_S = 60.0
GRACE_S = 1

Intent = AdoptSpare | DeletePod | PatchPod


def plan_adoptions(observed: Observed, now: float) -> tuple[Intent, ...]:
    """Of a job that goes on."""
    if observed.job.spec.world is None or observed.job.spec.suspend or observed.close is not None:
        return ()
    return tuple(_adoptions(observed, now))


def unadopted(observed: Observed) -> list[Pod]:
    """The job's pods that were a pool's spares, and may not know yet that they are the job's."""
    return [pod for pod in observed.pods if pod.alive and _waits_for_its_job(pod)]


def recent_adoption_failure(observed: Observed, now: float) -> str:
    """Why a claimed spare could not be told whose it is, a moment ago; "" if none has failed."""
    for adoption in observed.adoptions.values():
        late = adoption.since + ADOPT_WITHIN_S
        if not adoption.adopted and is_due(late, now) and not is_due(late + REPLACE_FOR_S, now):
            return adoption.failure or "it did not answer"
    return ""


def _adoptions(observed: Observed, now: float) -> Iterator[Intent]:
    for pod in unadopted(observed):
        adoption = observed.adoptions.get(pod.uid)
        if _knows_its_job(observed, pod):
            yield PatchPod(pod.name, annotations={names.ANNOTATION_ADOPTED: micro_time(now)})
        elif adoption is not None and is_due(adoption.since + ADOPT_WITHIN_S, now):
            reason = (
                f"it was claimed, but the operator could not send it the job for {ADOPT_WITHIN_S:g} s: "
                f"{adoption.failure}"
            )
            yield DeletePod(pod.name, pod.uid, GRACE_S, reason, pod.version)
        elif observed.coordinator_address and pod.ip:
            shape = job_shape(observed.job, int(pod.grace_s))
            pool_uid = pod.annotations[names.ANNOTATION_WARM]
            yield AdoptSpare(pod.uid, pod.ip, pool_uid, shape, observed.coordinator_address, take_over(observed.job))


def _waits_for_its_job(pod: Pod) -> bool:
    return names.ANNOTATION_WARM in pod.annotations and names.ANNOTATION_ADOPTED not in pod.annotations


def _knows_its_job(observed: Observed, pod: Pod) -> bool:
    """Whether it has said to be the job's: to this operator, or by proving the job's key to anybody."""
    adoption = observed.adoptions.get(pod.uid)
    members = () if observed.snapshot is None else observed.snapshot.members
    known_uids = {
        observed.coordination.coordinator_uid,
        *observed.coordination.answers.pods,
        *(x.pod_uid for x in members),
    }
    return pod.uid in known_uids or (adoption is not None and adoption.adopted)

"""Spares that a job has claimed Warm: from the claim on they are its pods, and have to be told so.

    such a pod                                       what is done
    -----------------------------------------------  -----------------------------------------------------------------
    has the annotation `adopted`                     nothing: it is a pod like any other
    was heard of as the job's, by whomever           the annotation is written
    not, and this operator has told it for 10 s      it is deleted: its rank is vacant again
    not                                              it is told, again and again: whose it is, and what it is to run

Rules: who has been told says so to whoever asks, so an operator that takes over needs no memory. One that could not be
told may be out of the operator's reach alone; but it was nobody's, and no member knows of it. After that the job's next
claims are Replace for a while: what has failed for one spare may fail for all of them.
"""

from collections.abc import Iterator

from understudy_operator.plan.intents import AdoptSpare, DeletePod, PatchPod
from understudy_operator.plan.moment import reached
from understudy_operator.plan.observed import Observed, Pod
from understudy_operator.plan.pool.comparing import take_over
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


def failed_lately(observed: Observed, now: float) -> str:
    """Why a claimed spare could not be told whose it is, a moment ago; "" if none has failed."""
    for adoption in observed.adoptions.values():
        late = adoption.since + ADOPT_WITHIN_S
        if not adoption.adopted and reached(late, now) and not reached(late + REPLACE_FOR_S, now):
            return adoption.why_not or "it did not answer"
    return ""


def _adoptions(observed: Observed, now: float) -> Iterator[Intent]:
    for pod in unadopted(observed):
        known = observed.adoptions.get(pod.uid)
        if _is_known(observed, pod):
            yield PatchPod(pod.name, annotations={names.ANNOTATION_ADOPTED: micro_time(now)})
        elif known is not None and reached(known.since + ADOPT_WITHIN_S, now):
            why = (
                f"it was claimed, but the operator could not send it the job for {ADOPT_WITHIN_S:g} s: {known.why_not}"
            )
            yield DeletePod(pod.name, pod.uid, GRACE_S, why, pod.version)
        elif observed.coordinator_address and pod.ip:
            shape = job_shape(observed.job, int(pod.grace_s))
            pool_uid = pod.annotations[names.ANNOTATION_WARM]
            yield AdoptSpare(pod.uid, pod.ip, pool_uid, shape, observed.coordinator_address, take_over(observed.job))


def _waits_for_its_job(pod: Pod) -> bool:
    return names.ANNOTATION_WARM in pod.annotations and names.ANNOTATION_ADOPTED not in pod.annotations


def _is_known(observed: Observed, pod: Pod) -> bool:
    """Whether it has said to be the job's: to this operator, or by proving the job's key to anybody."""
    told = observed.adoptions.get(pod.uid)
    members = () if observed.snapshot is None else observed.snapshot.members
    spoke = {observed.coordination.in_office, *observed.coordination.answers.pods, *(x.pod_uid for x in members)}
    return pod.uid in spoke or (told is not None and told.adopted)

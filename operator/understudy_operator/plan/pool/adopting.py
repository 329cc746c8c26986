"""Spares that a job has claimed Warm: from the claim on they are its pods, and the operator sends them the job.

    pod                                                      action
    -------------------------------------------------------  ---------------------------------------------------------
    has the annotation `adopted`                             none: it is a pod like any other
    some process has seen it as a member of the job          write the annotation
    not seen, and this operator has sent the job for 10 s    delete it: its rank is vacant again
    not seen                                                 send it the job and the program to run, again and again

Rules: an adopted pod answers every request with its job, so an operator that takes over needs no memory. A pod that
does not answer may be unreachable only for the operator; but it was unused, and no member knows it. After a failure the
job's next claims are Replace for a while: the cause may affect all spares.
"""

from collections.abc import Iterator

from understudy_operator.plan.facts.cluster_objects import Pod
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.intents import AdoptSpare, DeletePod, PatchPod
from understudy_operator.plan.manifests.shape import job_shape
from understudy_operator.plan.pool.comparing import take_over
from understudy_operator.plan.times.reconcile_clock import is_due
from understudy_operator.plan.times.rfc3339 import micro_time
from understudy_protocol import pod as names

ADOPT_WITHIN_S = 10.0
REPLACE_FOR_S = 60.0
GRACE_S = 1

Intent = AdoptSpare | DeletePod | PatchPod


def plan_adoptions(observed: Observed, now: float) -> tuple[Intent, ...]:
    """For a job that has neither ended nor been suspended."""
    if observed.job.spec.world is None or observed.job.spec.suspend or observed.close is not None:
        return ()
    return tuple(_adoptions(observed, now))


def unadopted(observed: Observed) -> list[Pod]:
    """The job's pods that were a pool's spares, and may not yet know their job."""
    claimed = observed.pods.with_annotation(names.ANNOTATION_WARM_POOL_UID)
    return [pod for pod in claimed if pod.alive and names.ANNOTATION_ADOPTED_AT not in pod.annotations]


def recent_adoption_failure(observed: Observed, now: float) -> str:
    """Why a claimed spare did not get its job a moment ago; "" if none has failed."""
    for adoption in observed.adoptions.values():
        late = adoption.since + ADOPT_WITHIN_S
        if not adoption.adopted and is_due(late, now) and not is_due(late + REPLACE_FOR_S, now):
            return adoption.failure or "it did not answer"
    return ""


def _adoptions(observed: Observed, now: float) -> Iterator[Intent]:
    for pod in unadopted(observed):
        adoption = observed.adoptions.get(pod.uid)
        if _knows_its_job(observed, pod):
            yield PatchPod(pod.name, annotations={names.ANNOTATION_ADOPTED_AT: micro_time(now)})
        elif adoption is not None and is_due(adoption.since + ADOPT_WITHIN_S, now):
            reason = (
                f"it was claimed, but the operator could not send it the job for {ADOPT_WITHIN_S:g} s: "
                f"{adoption.failure}"
            )
            yield DeletePod(pod.name, pod.uid, GRACE_S, reason, pod.version)
        elif observed.coordinator_address and pod.address:
            shape = job_shape(observed.job, int(pod.grace_s))
            pool_uid = pod.annotations[names.ANNOTATION_WARM_POOL_UID]
            yield AdoptSpare(
                pod.uid, pod.address, pool_uid, shape, observed.coordinator_address, take_over(observed.job)
            )


def _knows_its_job(observed: Observed, pod: Pod) -> bool:
    """Whether it has identified itself as the job's: to this operator, or to a member with the job's key."""
    adoption = observed.adoptions.get(pod.uid)
    known_uids = {observed.coordination.coordinator_uid, *observed.coordination.answers.pods, *observed.member_uids}
    return pod.uid in known_uids or (adoption is not None and adoption.adopted)

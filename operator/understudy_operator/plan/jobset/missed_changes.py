"""Suspensions that no reconcile has seen: the user suspended, changed and resumed the job within a moment, or while no
operator ran.

A user may change replicatedJobs, launcher and other fields only while the job is suspended, which ends its pods. If the
operator misses that, Jobs and pods of old templates keep running: it ends and recreates them. A template here is the
set of all fields from which a Job or a pod is created.

Rules:
- Each Job and pod has a hash of its template at its creation, as the user wrote it, without additions of an operator.
  Another hash alone proves nothing, because a newer CRD may have other defaults, and an upgrade ends no job. But a
  suspension and a resumption raise the generation by at least two since the one that status has.
- The world ends as by a suspension; Jobs are deleted one by one. Until all of that is under way status keeps the old
  generation, so that the next reconcile, also of another operator, continues. Status also keeps it until all Jobs of a
  suspended job are suspended, because the user may resume the job before that.

The coordinator closes the rendezvous of a suspended job before the operator writes the suspension to status. If the
user resumes the job between the two, the workers have stopped and their pods can never train again: the attempt ends.
"""

from collections.abc import Iterator

from understudy_operator.plan.facts.cluster_objects import ChildJob
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.jobset.views import is_current
from understudy_protocol import pod as names
from understudy_protocol.enums import CloseReason

MISSED_CHANGE = (
    "the operator missed that the job was suspended, changed and resumed: it recreates the Jobs and pods that have "
    "an old template"
)


RESUMED_AFTER_CLOSE = (
    "the job was resumed right after its suspension had stopped the workers: the operator recreates its pods"
)


def unrecorded_suspension(observed: Observed) -> str:
    """Why the attempt of the world ends by a suspension that status does not record; "" if it does not."""
    if is_missed_by_world(observed):
        return MISSED_CHANGE
    return RESUMED_AFTER_CLOSE if _was_closed_by_suspension(observed) else ""


def _was_closed_by_suspension(observed: Observed) -> bool:
    job = observed.job
    if job.spec.suspend or job.spec.world is None or observed.close is not None:
        return False
    if job.injected is not None:  # its pods do not record their attempt: a close may be from an earlier one
        closed = None if observed.snapshot is None else observed.snapshot.closed
        return closed is not None and closed.reason is CloseReason.SUSPENDED
    return any(close.reason is CloseReason.SUSPENDED for close in observed.reported_closes)


def is_missed_by_world(observed: Observed) -> bool:
    """Whether pods of the world have old templates."""
    if not _missed(observed) or observed.job.spec.world is None or observed.close is not None:
        return False
    wanted = observed.job.world.template_hash
    return any(pod.annotations.get(names.ANNOTATION_SPEC_HASH) != wanted for pod in observed.pods if pod.alive)


def outdated_jobs(observed: Observed) -> Iterator[ChildJob]:
    """Jobs with an old template that run or wait in a queue."""
    if not _missed(observed):
        return
    wanted = {group.name: group.template_hash for group in observed.job.spec.children}
    for child in observed.children:
        runs_or_queues = not (_is_suspended(child) or child.ended or child.deleting) and is_current(observed, child)
        if runs_or_queues and child.template_hash != wanted[child.group]:
            yield child


def handled_generation(observed: Observed) -> int:
    """The observedGeneration for status."""
    missed = is_missed_by_world(observed) or any(True for _ in outdated_jobs(observed))
    return _last_generation(observed) if missed or _has_jobs_to_suspend(observed) else observed.job.generation


def _has_jobs_to_suspend(observed: Observed) -> bool:
    """Whether a Job of a suspended job runs or queues: if the user changes and resumes the job now, it is outdated."""
    return observed.job.spec.suspend and any(
        not (_is_suspended(child) or child.ended or child.deleting) and is_current(observed, child)
        for child in observed.children
    )


def _is_suspended(child: ChildJob) -> bool:
    """It gets the newest template when it is resumed."""
    return child.suspended and not child.queue


def _missed(observed: Observed) -> bool:
    job = observed.job
    if job.injected is not None or job.terminal or job.spec.suspend:
        return False
    return job.generation >= _last_generation(observed) + 2


def _last_generation(observed: Observed) -> int:
    """Of the newest status; if the operator has never written one, of the job's creation."""
    recorded = observed.job.status.observed_generation
    return 1 if recorded is None else recorded

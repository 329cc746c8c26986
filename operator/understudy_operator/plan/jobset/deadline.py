"""activeDeadlineSeconds of the world's Jobs, which exist only by name: when they started, and which are overdue.

Rules, as the Job controller has them for a Job's startTime:
- Time counts from the moment when the Job may have pods, whether or not they exist or run.
- No time counts while the job is suspended, or while the whole gang waits in Kueue's queue, which suspends Jobs for
  that. Afterwards it starts from 0.
- A restart creates new Jobs with their own time; recoveries do not.
- Status keeps the start of the attempt.

And ttlSecondsAfterFinished: when a job that has ended is deleted.
"""

from understudy_operator.plan.capacity.queueing import gang_waits_for_quota
from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.spec import ReplicatedJob
from understudy_operator.plan.times.reconcile_clock import is_due
from understudy_operator.plan.times.rfc3339 import Time, micro_time, parse_time


def attempt_start(observed: Observed, *, may_start: bool, now: float) -> Time | None:
    """The start for status; None while no time counts. may_start: whether the world may have pods."""
    job, recorded = observed.job, observed.job.status.attempt_start_time
    if job.terminal:
        return recorded
    if not any(_limit_s(group) is not None for group in job.world.groups) or not _counts(observed):
        return None
    was_tried = observed.templates_checked or bool(observed.pods)
    return recorded or (micro_time(now) if may_start and was_tried else None)


def overdue(observed: Observed, now: float) -> frozenset[str]:
    """ReplicatedJobs of the world whose Jobs are past the deadline; for a job that has ended, at its end."""
    job, start = observed.job, observed.job.status.attempt_start_time
    if job.spec.world is None or start is None or not _counts(observed):
        return frozenset()
    if not job.terminal and observed.world_close is not None:
        return frozenset()
    began, at = parse_time(start), now if job.completed_at is None else job.completed_at
    limits = ((group.name, _limit_s(group)) for group in job.world.groups)
    return frozenset(name for name, limit_s in limits if limit_s is not None and is_due(began + limit_s, at))


def _counts(observed: Observed) -> bool:
    job = observed.job
    return job.terminal or not (job.injected is not None or job.spec.suspend or gang_waits_for_quota(observed))


def _limit_s(group: ReplicatedJob) -> float | None:
    limit = group.job_spec.get("activeDeadlineSeconds")
    return None if limit is None else float(limit)


def remaining_s(job: Job, now: float) -> float | None:
    """Seconds until the deletion; None if the job has no limit, or has not ended."""
    if job.spec.ttl_s is None or job.completed_at is None or not job.terminal:
        return None
    return job.completed_at + job.spec.ttl_s - now

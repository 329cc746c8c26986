"""activeDeadlineSeconds of the world's Jobs, which exist in name alone: when they began, and which have had their time.

Rules, as the Job controller has them for a Job's startTime: time counts from when the Job may have its pods, whether or
not these are there or run. While the job is suspended it does not, nor while all that trains waits in Kueue's queue,
which suspends Jobs for that: then it begins anew. A restart makes other Jobs, with a time of their own; recoveries do
not. Status keeps when the attempt began. One of which it does not, because it trained before there was this rule, has
no deadline: an upgrade of the operator ends no job.
"""

from understudy_operator.plan.observed import Observed
from understudy_operator.plan.queueing import gang_waits_for_quota
from understudy_operator.plan.reconcile_clock import is_due
from understudy_operator.plan.rfc3339 import micro_time, parse_time
from understudy_operator.plan.spec import ReplicatedJob

ATTEMPT_START = "attemptStartTime"


def attempt_start(observed: Observed, *, may_start: bool, now: float) -> str | None:
    """For status; None while no time counts. may_start: whether the world may have pods."""
    job, recorded = observed.job, observed.job.status.get(ATTEMPT_START)
    if job.terminal:
        return recorded
    if not any(_limit_s(group) is not None for group in job.world.groups) or not _counts(observed):
        return None
    # One that Kueue has evicted and let in again has had a round, and begins anew all the same.
    is_starting = observed.before_first_round or job.status.get("phase") == "Pending"
    was_tried = observed.templates_checked or bool(observed.pods)
    return recorded or (micro_time(now) if is_starting and may_start and was_tried else None)


def overdue(observed: Observed, now: float) -> frozenset[str]:
    """ReplicatedJobs of the world whose Jobs have had their time; of a job that has ended, when it did."""
    job = observed.job
    if job.spec.world is None or ATTEMPT_START not in job.status or not _counts(observed):
        return frozenset()
    if not job.terminal and observed.world_close is not None:
        return frozenset()
    began, at = parse_time(job.status[ATTEMPT_START]), now if job.completed_at is None else job.completed_at
    limits = ((group.name, _limit_s(group)) for group in job.world.groups)
    return frozenset(name for name, limit_s in limits if limit_s is not None and is_due(began + limit_s, at))


def _counts(observed: Observed) -> bool:
    job = observed.job
    return job.terminal or not (job.injected is not None or job.spec.suspend or gang_waits_for_quota(observed))


def _limit_s(group: ReplicatedJob) -> float | None:
    limit = group.job_spec.get("activeDeadlineSeconds")
    return None if limit is None else float(limit)

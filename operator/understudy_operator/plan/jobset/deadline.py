"""activeDeadlineSeconds of the world's Jobs, which exist in name alone: when they began, and which have had their time.

Rules, as the Job controller has them for a Job's startTime: time counts from when the Job may have its pods, whether or
not these are there or run. While the job is suspended it does not, nor while all that trains waits in Kueue's queue,
which suspends Jobs for that: then it begins anew. A restart makes other Jobs, with a time of their own; recoveries do
not. Status keeps when the attempt began. One of which it does not, because it trained before there was this rule, has
no deadline: an upgrade of the operator ends no job.
"""

from understudy_operator.plan.moment import reached
from understudy_operator.plan.observed import Observed
from understudy_operator.plan.queueing import waits_whole
from understudy_operator.plan.rfc3339 import micro_time, unix
from understudy_operator.plan.spec import ReplicatedJob

BEGAN = "attemptStartTime"


def began_at(observed: Observed, *, may_start: bool, now: float) -> str | None:
    """For status; None while no time counts. may_start: whether the world may have pods."""
    job, known = observed.job, observed.job.status.get(BEGAN)
    if job.terminal:
        return known
    if not any(_limit_s(group) is not None for group in job.world.groups) or not _counts(observed):
        return None
    # One that Kueue has evicted and let in again has had a round, and begins anew all the same.
    begins = observed.before_first_round or job.status.get("phase") == "Pending"
    tried = observed.checked or bool(observed.pods)
    return known or (micro_time(now) if begins and may_start and tried else None)


def overdue(observed: Observed, now: float) -> frozenset[str]:
    """ReplicatedJobs of the world whose Jobs have had their time; of a job that has ended, when it did."""
    job = observed.job
    if job.spec.world is None or BEGAN not in job.status or not _counts(observed):
        return frozenset()
    if not job.terminal and observed.close_by_itself is not None:
        return frozenset()
    began, at = unix(job.status[BEGAN]), now if job.completed_at is None else job.completed_at
    limits = ((group.name, _limit_s(group)) for group in job.world.groups)
    return frozenset(name for name, limit_s in limits if limit_s is not None and reached(began + limit_s, at))


def _counts(observed: Observed) -> bool:
    job = observed.job
    return job.terminal or not (job.injected is not None or job.spec.suspend or waits_whole(observed))


def _limit_s(group: ReplicatedJob) -> float | None:
    limit = group.job_spec.get("activeDeadlineSeconds")
    return None if limit is None else float(limit)

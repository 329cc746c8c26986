"""How long a job that has ended is kept: ttlSecondsAfterFinished."""

from understudy_operator.plan.observed import Job


def remaining_s(job: Job, now: float) -> float | None:
    """Until it is to be deleted; None if it is not, or has not ended."""
    if job.spec.ttl_s is None or job.completed_at is None or not job.terminal:
        return None
    return job.completed_at + job.spec.ttl_s - now

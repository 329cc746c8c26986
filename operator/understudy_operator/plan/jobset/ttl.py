"""When a job that has ended is deleted: ttlSecondsAfterFinished."""

from understudy_operator.plan.facts.job import Job


def remaining_s(job: Job, now: float) -> float | None:
    """Seconds until the deletion; None if the job has no limit, or has not ended."""
    if job.spec.ttl_s is None or job.completed_at is None or not job.terminal:
        return None
    return job.completed_at + job.spec.ttl_s - now

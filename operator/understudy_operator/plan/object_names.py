"""The names of a job's objects.

The name of a Secret contains the uid of its job, because the Secret of a deleted job of the same name may still exist:
the operator reads no Secret, and pods would mount that one.
"""

from understudy_operator.plan.injection.owner import is_injected, service_name
from understudy_operator.plan.observed import Job


def membership_secret_name(job: Job) -> str:
    """The Secret with the membership key of the job's attempt. Injected pods are created with this name."""
    return secret_of_attempt(job, job.attempt)


def secret_of_attempt(job: Job, attempt: int) -> str:
    """attempt: that of Job.attempt."""
    return f"{job.name}-{job.uid}-membership" + (f"-{attempt}" if attempt else "")


def rollout_secret_name(job: Job) -> str:
    """The Secret with the token of gateways. It is the same in all attempts: rollouts outlive those of the world."""
    return f"{job.name}-{job.uid}-rollouts"


def coordinator_service_name(job_name: str) -> str:
    if is_injected(job_name):
        return service_name(job_name)
    return f"{job_name}-coordinator"

"""What the objects of a job are called."""

from understudy_operator.plan.injection.owner import is_injected, service_name
from understudy_operator.plan.observed import Job


def secret_name(job: Job) -> str:
    """Pods of an injected job name it at their birth, which the Secret of a deleted job of the same name may outlive:
    so it has the uid in its name, and whoever comes next waits for a Secret of its own.
    """
    return f"{job.name}-{job.uid}-membership" if is_injected(job.name) else former_secret_name(job.name)


def former_secret_name(job_name: str) -> str:
    """What version 0.1 has called it, of an injected job too."""
    return f"{job_name}-membership"


def coordinator_service_name(job_name: str) -> str:
    if is_injected(job_name):
        return service_name(job_name)
    return f"{job_name}-coordinator"

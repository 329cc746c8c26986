"""What the objects of a job are called."""

from understudy_operator.plan.injection.owner import is_injected, service_name


def secret_name(job_name: str) -> str:
    return f"{job_name}-membership"


def coordinator_service_name(job_name: str) -> str:
    if is_injected(job_name):
        return service_name(job_name)
    return f"{job_name}-coordinator"

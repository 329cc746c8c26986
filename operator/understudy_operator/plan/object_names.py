"""What the objects of a job are called."""


def secret_name(job_name: str) -> str:
    return f"{job_name}-membership"


def coordinator_service_name(job_name: str) -> str:
    return f"{job_name}-coordinator"

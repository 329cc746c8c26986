"""The names of a job's objects.

The name of a Secret contains the uid of its job, because the Secret of a deleted job of the same name may still exist:
the operator reads no Secret, and pods would mount that one.
"""

import hashlib
import re

from understudy_operator.plan.facts.job import Job

LONGEST = 63  # of a label's value, and of a Service's name
_HASH = 8


def is_injected(name: str) -> bool:
    """Whether the name is that of an InjectedJob."""
    return "." in name


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


def shortened(name: str, longest: int) -> str:
    """The name itself if it is short enough; else its beginning and a digest."""
    if len(name) <= longest:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_HASH]
    return f"{name[: longest - _HASH - 1].rstrip('.-')}-{digest}"


def name_suffix(text: str) -> str:
    """Five characters, as in the names that Kubernetes generates."""
    return hashlib.sha256(text.encode()).hexdigest()[:5]


def service_name(group: str) -> str:
    """A Service's name has no dots."""
    suffix = "-understudy"
    return shortened(re.sub(r"[^a-z0-9-]", "-", group), LONGEST - len(suffix)) + suffix

"""The labels and annotations that JobSet writes on a Job and on its pods, for manifests that read them.

A spare belongs to a replicatedJob, but to none of its Jobs: it has no index.
"""

import hashlib

from understudy_operator.plan.facts import keys
from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.spec import CoordinatorPod, JobSpec, ReplicatedJob


def job_name(job: Job, group: ReplicatedJob, index: int) -> str:
    return f"{job.name}-{group.name}-{index}"


def subdomain(job: Job) -> str:
    """The subdomain of all pods' hostnames: the name of the headless Service."""
    return job.spec.network.subdomain or job.name


def jobset_labels(job: Job, group: ReplicatedJob, index: int | None) -> dict[str, str]:
    """index: of the Job; None for a spare."""
    mates = [other for other in job.spec.replicated_jobs if other.group == group.group]
    values = {
        keys.NAME: job.name,
        keys.UID: job.uid,
        keys.REPLICATED_JOB: group.name,
        keys.REPLICAS: str(group.replicas),
        keys.GLOBAL_REPLICAS: str(sum(other.replicas for other in job.spec.replicated_jobs)),
        keys.GROUP_NAME: group.group,
        keys.GROUP_REPLICAS: str(sum(other.replicas for other in mates)),
        keys.RESTART_ATTEMPT: str(job.restarts),
    }
    if index is not None:
        values |= {
            keys.JOB_INDEX: str(index),
            keys.JOB_GLOBAL_INDEX: str(_before(group, job.spec.replicated_jobs) + index),
            keys.JOB_GROUP_INDEX: str(_before(group, mates) + index),
            keys.JOB_KEY: _hashed(f"{job.namespace}/{job_name(job, group, index)}"),
            keys.JOB_RESTART_ATTEMPT: str(job.restarts_of(group.name, index)),
        }
    if job.spec.coordinator is not None:
        values[keys.COORDINATOR] = coordinator_endpoint(job.name, job.spec, job.spec.coordinator)
    return values


def jobset_annotations(job: Job, group: ReplicatedJob, index: int | None) -> dict[str, str]:
    """The labels, and the placement of Jobs. A spare may run anywhere."""
    values = jobset_labels(job, group, index)
    if group.exclusive is not None and index is not None:
        values[keys.EXCLUSIVE] = group.exclusive.topology_key
        if group.exclusive.node_selector:
            values[keys.NODE_SELECTOR] = "true"
    return values


def _before(group: ReplicatedJob, groups: tuple[ReplicatedJob, ...] | list[ReplicatedJob]) -> int:
    """The number of Jobs of the groups before this one."""
    names = [other.name for other in groups]
    return sum(other.replicas for other in groups[: names.index(group.name)])


def _hashed(name: str) -> str:
    return hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()


def coordinator_endpoint(name: str, spec: JobSpec, pod: CoordinatorPod) -> str:
    """The endpoint of the pod. name: of the job."""
    return f"{name}-{pod.replicated_job}-{pod.job_index}-{pod.pod_index}.{spec.network.subdomain or name}"

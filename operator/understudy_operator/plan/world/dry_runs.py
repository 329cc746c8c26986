"""Dry runs before the first object of a job is created: would the API server accept a Job and a pod of each kind?

A typo in a template is a field that the CRD does not know, and keeps, because the field may be newer than the CRD. The
API server would reject it when the operator creates an object; the dry runs find it before any object is created. If
the job has only one Job or pod, its creation is the check.
"""

from collections.abc import Iterator

from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.intents import Manifest
from understudy_operator.plan.manifests.child_jobs import job_manifest
from understudy_operator.plan.manifests.pods import pod_manifest
from understudy_operator.plan.manifests.shape import facts_secret_name


def plan_dry_runs(observed: Observed, sidecar_image: str) -> tuple[Manifest, ...]:
    """Empty if an object of the job exists, and for an injected job: another controller creates its objects."""
    exists = observed.pods or observed.previous_pods or observed.children
    if exists or observed.templates_checked or observed.spec_error or observed.job.injected is not None:
        return ()
    return () if _has_one_object(observed.job) else tuple(_examples(observed, sidecar_image))


def _has_one_object(job: Job) -> bool:
    """False also if a pod of the world has a deadline: its time does not count while the API server rejects the pod."""
    jobs, world = sum(group.replicas for group in job.spec.children), job.spec.world
    if world is None:
        return jobs == 1
    has_deadline = any("activeDeadlineSeconds" in group.job_spec for group in world.groups)
    return jobs + sum(group.pods for group in world.groups) + world.spares == 1 and not has_deadline


def _examples(observed: Observed, sidecar_image: str) -> Iterator[Manifest]:
    job = observed.job
    yield from (job_manifest(job, group, 0, sidecar_image) for group in job.spec.children if group.replicas)
    first = 0
    for group in () if job.spec.world is None else job.world.groups:
        yield pod_manifest(
            job,
            index=first,
            serial=observed.entropy,
            facts=facts_secret_name(job, observed.coordinator_address),
            sidecar_image=sidecar_image,
        )
        first += group.pods

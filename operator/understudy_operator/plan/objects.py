"""What a job's pods need before they start: the Secret, the Services, the volume claims."""

from typing import Any

from understudy_operator.plan.intents import Create
from understudy_operator.plan.jobset import keys
from understudy_operator.plan.jobset.manifests import claim_manifest
from understudy_operator.plan.jobset.metadata import subdomain
from understudy_operator.plan.jobset.podspec import claim_name
from understudy_operator.plan.observed import Job, Observed
from understudy_operator.plan.ownership import owner_reference
from understudy_protocol import pod as names


def secret_name(job_name: str) -> str:
    return f"{job_name}-membership"


def coordinator_service_name(job_name: str) -> str:
    return f"{job_name}-coordinator"


def plan_objects(observed: Observed) -> tuple[Create, ...]:
    """What is missing of the job's Secret (with a fresh key), its two Services and its volume claims."""
    job = observed.job
    missing = []
    if job.spec.world is not None and not observed.has_secret:
        missing.append(_secret(job, observed.entropy))
    if job.spec.world is not None and not observed.coordinator_address:
        missing.append(_coordinator_service(job))
    if job.spec.network.hostnames and not observed.has_hostnames_service:
        missing.append(_hostnames_service(job))
    claims = (claim for claim in job.spec.claims if claim_name(job, claim.name) not in observed.claims)
    missing += [claim_manifest(job, claim) for claim in claims]
    return tuple(Create(manifest) for manifest in missing)


def _metadata(job: Job, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": job.namespace,
        "labels": {names.LABEL_JOB: job.name, names.LABEL_JOB_UID: job.uid},
        "ownerReferences": [owner_reference(job)],
    }


def _secret(job: Job, entropy: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(job, secret_name(job.name)),
        "immutable": True,
        "stringData": {names.KEY_FILE: entropy},
    }


def _coordinator_service(job: Job) -> dict[str, Any]:
    """A ClusterIP that follows the label: pods get the address, so nothing on the recovery path looks up a name."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(job, coordinator_service_name(job.name)),
        "spec": {
            "selector": {names.LABEL_JOB_UID: job.uid, names.LABEL_COORDINATOR: "true"},
            "publishNotReadyAddresses": True,
            "ports": [{"name": "membership", "port": names.COORDINATOR_PORT, "protocol": "TCP"}],
        },
    }


def _hostnames_service(job: Job) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(job, subdomain(job)),
        "spec": {
            "clusterIP": "None",
            "selector": {keys.UID: job.uid},
            "publishNotReadyAddresses": job.spec.network.publish_not_ready,
        },
    }

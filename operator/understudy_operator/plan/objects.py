"""The Secret and the Services that a job's pods need before they start."""

from typing import Any

from understudy_operator.plan.intents import Create
from understudy_operator.plan.observed import Job, Observed
from understudy_protocol import pod as names

API_VERSION = f"{names.GROUP}/v1alpha1"
KIND = "TrainingJob"


def secret_name(job_name: str) -> str:
    return f"{job_name}-membership"


def coordinator_service_name(job_name: str) -> str:
    return f"{job_name}-coordinator"


def owner_reference(job: Job) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def plan_objects(observed: Observed) -> tuple[Create, ...]:
    """What is missing of the job's Secret (with a fresh key) and its two Services."""
    job = observed.job
    missing = []
    if not observed.has_secret:
        missing.append(_secret(job, observed.entropy))
    if not observed.coordinator_address:
        missing.append(_coordinator_service(job))
    if not observed.has_hostnames_service:
        missing.append(_hostnames_service(job))
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
        "metadata": _metadata(job, job.name),
        "spec": {"clusterIP": "None", "selector": {names.LABEL_JOB_UID: job.uid}, "publishNotReadyAddresses": True},
    }

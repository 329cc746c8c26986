"""What a job's pods need before they start: the Secret, the Services, the volume claims.

Rules, where somebody has deleted one of them under pods that run:
- the Secret comes back with the same key, as long as this operator has seen it. A key that nobody knows any more cannot
  be had back from the pods, and with another one new pods could not join them: so there is none until the last of them
  has ended. Training goes on meanwhile, and spares take lost ranks; the condition Blocked says what is to be done.
- the coordinator's Service comes back at the address that pods have been told, unless somebody has taken that: then at
  another one, which new pods are told. Who is a member knows its coordinator's heirs, and needs no Service.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from understudy_operator.plan.gateways import rollout_token
from understudy_operator.plan.intents import Create
from understudy_operator.plan.jobset import keys
from understudy_operator.plan.jobset.manifests import claim_manifest
from understudy_operator.plan.jobset.metadata import subdomain
from understudy_operator.plan.jobset.podspec import claim_name
from understudy_operator.plan.object_names import coordinator_service_name, former_secret_name, secret_name
from understudy_operator.plan.observed import Job, Observed
from understudy_operator.plan.ownership import owner_reference
from understudy_operator.plan.refusals import ADDRESS_TAKEN
from understudy_operator.plan.shape import job_shape
from understudy_protocol import pod as names


def plan_objects(observed: Observed) -> tuple[Create, ...]:
    """What is missing of the Secret (with a fresh key, if it is the first), the two Services and the volume claims."""
    job = observed.job
    if job.injected is not None:
        return tuple(map(Create, _of_injected(observed)))
    missing = []
    if job.spec.world is not None and not observed.has_secret and not key_is_lost(observed):
        missing.append(_secret(job, observed.known_key or observed.entropy))
    if job.spec.world is not None and not observed.coordinator_address:
        missing.append(_coordinator_service(job, _free_address(observed)))
    if job.spec.network.hostnames and not observed.has_hostnames_service:
        missing.append(_hostnames_service(job))
    wanted = () if observed.complaint else job.spec.claims  # two of a name may say different things of its retention
    claims = (claim for claim in wanted if claim_name(job, claim.name) not in observed.claims)
    missing += [claim_manifest(job, claim) for claim in claims]
    return tuple(Create(manifest) for manifest in missing)


def _of_injected(observed: Observed) -> Iterator[dict[str, Any]]:
    """First the Service, whose address is in the Secret beside the key: no pod starts before that."""
    job = observed.job
    assert job.injected is not None
    if not observed.coordinator_address:
        yield _coordinator_service(job, _free_address(observed))
    elif not key_is_lost(observed):
        shape = job_shape(job, job.injected.grace_s)
        told = names.Injected(shape, observed.coordinator_address, job.injected.groups)
        secret = _secret(job, observed.known_key or observed.entropy)
        secret["stringData"][names.INJECTED_FILE] = json.dumps(asdict(told), separators=(",", ":"))
        if not observed.has_secret:
            yield secret
        if _waits_for_former(observed):
            yield {**secret, "metadata": _metadata(job, former_secret_name(job.name))}


def _waits_for_former(observed: Observed) -> bool:
    """Whether a pod that version 0.1 of the webhook has injected waits for the Secret as it was called then."""
    former = former_secret_name(observed.job.name)
    waits = any(pod.key_secret == former and not pod.over and not pod.sidecar_ran for pod in observed.pods)
    return waits and not observed.has_former_secret


def key_is_lost(observed: Observed) -> bool:
    """Whether pods run with a key that nobody else has any more."""
    return not observed.has_secret and not observed.known_key and any(pod.sidecar_started for pod in observed.pods)


def lost_key(job: Job) -> str:
    """What is to be told of that, and done about it."""
    return (
        f"Secret {secret_name(job)} was deleted, and only the running pods know its key: they train on and "
        "recover among themselves, but no pod can be added, and status stays as it was; restore the Secret from a "
        "copy, or delete the job's pods: then it begins anew from its last checkpoint"
    )


def _free_address(observed: Observed) -> str:
    """The ClusterIP that pods have been told; "" if there is none, or the API server has given it to somebody else."""
    taken = any(ADDRESS_TAKEN in refusal.message for refusal in observed.refusals or ())
    return "" if taken else observed.told_address.rpartition(":")[0]


def _metadata(job: Job, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": job.namespace,
        "labels": {names.LABEL_JOB: job.name, names.LABEL_JOB_UID: job.uid},
        "ownerReferences": [owner_reference(job)],
    }


def _secret(job: Job, key: str) -> dict[str, Any]:
    token = {} if job.spec.rollouts is None else {names.ROLLOUT_TOKEN_KEY: rollout_token(job, key)}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(job, secret_name(job)),
        "immutable": True,
        "stringData": {names.KEY_FILE: key} | token,
    }


def _coordinator_service(job: Job, cluster_ip: str) -> dict[str, Any]:
    """A ClusterIP that follows the label: pods get the address, so nothing on the recovery path looks up a name."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(job, coordinator_service_name(job.name)),
        "spec": {
            "selector": {names.LABEL_JOB_UID: job.uid, names.LABEL_COORDINATOR: "true"},
            "publishNotReadyAddresses": True,
            "ports": [{"name": "membership", "port": names.COORDINATOR_PORT, "protocol": "TCP"}],
            **({"clusterIP": cluster_ip} if cluster_ip else {}),
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

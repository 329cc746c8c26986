"""The objects that a job's pods need before they start: Secrets, Services, volume claims.

Rules:
- Each attempt of the world has its own membership key and Secret. The operator deletes the Secret of the previous
  attempt, and all Secrets with keys of a suspended job once its attempt has ended: so a resumed job never uses a key
  from a master secret that was replaced meanwhile.
- The Secret with the job's facts (manifests/shape.py) is created after the Service, whose address it contains.
- The operator reads no Secret. secret_writes.py decides when it creates one.
- A job with one member has no Service for its coordinator, because that member is the coordinator. Its pod also has no
  coordinator's address. It gets the Service with its first spare. An injected job always has it, because other
  controllers can add pods to it, and its Secret cannot change.
- If somebody deletes the coordinator's Service, the operator recreates it with the address that pods know, or with
  another address if another Service has this one. New pods get the new address. Members need no Service: they know
  their standby coordinators.
"""

from collections.abc import Iterator
from typing import Any

from understudy_operator.plan.facts import keys
from understudy_operator.plan.facts.host_ports import MEMBERSHIP_PORT_NAME
from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.ownership import owner_reference
from understudy_operator.plan.facts.pods import Pods
from understudy_operator.plan.facts.refusals import ADDRESS_TAKEN
from understudy_operator.plan.facts.secret_writes import can_be_mounted, is_to_be_created
from understudy_operator.plan.intents import Create, DeleteSecret
from understudy_operator.plan.jobset.restart import has_begun
from understudy_operator.plan.manifests.child_jobs import claim_manifest
from understudy_operator.plan.manifests.gateways import has_gateways
from understudy_operator.plan.manifests.metadata import subdomain
from understudy_operator.plan.manifests.object_names import (
    coordinator_service_name,
    membership_secret_name,
    rollout_secret_name,
    secret_of_attempt,
)
from understudy_operator.plan.manifests.podspec import claim_name
from understudy_operator.plan.manifests.shape import facts_secret_name, job_facts_json
from understudy_protocol import pod as names


def plan_objects(observed: Observed, now: float) -> tuple[Create | DeleteSecret, ...]:
    """The Secrets to delete, and then the objects to create."""
    job = observed.job
    created = _of_injected(observed, now) if job.injected is not None else _missing(observed, now)
    return (*map(DeleteSecret, _unneeded_secrets(observed)), *map(Create, created))


def lacks_service(observed: Observed) -> bool:
    """Whether the coordinator's Service has to be created."""
    return observed.job.needs_service and not observed.coordinator_address


def has_secrets(observed: Observed) -> bool:
    """Whether the Secrets that pods of the world mount exist, as far as this process can know."""
    pods, injected = _may_mount(observed), observed.job.injected is not None
    writes = observed.secret_writes
    return all(can_be_mounted(name, writes, *pods, injected=injected) for name in _secret_names(observed))


def _missing(observed: Observed, now: float) -> Iterator[dict[str, Any]]:
    job = observed.job
    yield from _missing_secrets(observed, now)
    if lacks_service(observed):
        yield _coordinator_service(job, _free_address(observed))
    if job.spec.network.hostnames and not observed.has_hostnames_service:
        yield _hostnames_service(job)
    wanted = () if observed.spec_error else job.spec.claims  # with an error, two of a name may differ in retention
    for claim in wanted:
        if claim_name(job, claim.name) not in observed.claims:
            yield claim_manifest(job, claim)


def _of_injected(observed: Observed, now: float) -> Iterator[dict[str, Any]]:
    """First the Service, because the Secret also has its address. Pods cannot start before the Secret exists."""
    if lacks_service(observed):
        yield _coordinator_service(observed.job, _free_address(observed))
    else:
        yield from _missing_secrets(observed, now)


def _missing_secrets(observed: Observed, now: float) -> Iterator[dict[str, Any]]:
    if observed.job.spec.suspend:
        return
    pods, injected = _may_mount(observed), observed.job.injected is not None
    for name in _secret_names(observed):
        if is_to_be_created(name, observed.secret_writes, now, *pods, injected=injected):
            yield _secret(observed, name)


def _unneeded_secrets(observed: Observed) -> Iterator[str]:
    job = observed.job
    unneeded = [] if job.previous_attempt is None else [secret_of_attempt(job, job.previous_attempt)]
    if job.spec.suspend and not has_begun(observed):
        unneeded += [name for name in _secret_names(observed) if name != _facts_secret(observed)]  # it has no key
    return (name for name in unneeded if name not in observed.secret_writes.deleted)


def _secret_names(observed: Observed) -> tuple[str, ...]:
    """The Secrets that the job needs while it is not suspended."""
    job = observed.job
    if job.spec.world is None:
        return ()
    rollouts = (rollout_secret_name(job),) if has_gateways(job) else ()
    has_facts = job.injected is None and not lacks_service(observed)  # the facts contain the Service's address
    return (membership_secret_name(job), *rollouts, *((_facts_secret(observed),) if has_facts else ()))


def _facts_secret(observed: Observed) -> str:
    return facts_secret_name(observed.job, observed.coordinator_address)


def _may_mount(observed: Observed) -> tuple[Pods, ...]:
    return observed.pods, observed.previous_pods, Pods(observed.job_pods)


def _free_address(observed: Observed) -> str:
    """The ClusterIP that the newest pods have as the coordinator's address; "" if another Service has it."""
    taken = any(ADDRESS_TAKEN in refusal.message for refusal in observed.refusals or ())
    return "" if taken else observed.job.status.coordinator.address.rpartition(":")[0]


def _metadata(job: Job, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": job.namespace,
        "labels": {names.LABEL_JOB: job.name, names.LABEL_JOB_UID: job.uid},
        "ownerReferences": [owner_reference(job)],
    }


def _secret(observed: Observed, name: str) -> dict[str, Any]:
    job, keyring = observed.job, observed.keyring
    facts = {names.JOB_FILE: job_facts_json(job, observed.coordinator_address)}
    if name == rollout_secret_name(job):
        data = {names.ROLLOUT_TOKEN_KEY: keyring.of_rollouts(job.namespace, job.uid)}
    elif name == membership_secret_name(job):
        data = {names.KEY_FILE: keyring.of_job(job.namespace, job.uid, job.attempt)}
        data |= {names.OPERATOR_KEY_FILE: keyring.operator_public()}
        if job.injected is not None:  # the webhook creates the volume of these pods, and knows no other Secret
            data |= facts
    else:
        data = facts
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(job, name),
        "immutable": True,
        "stringData": data,
    }


def _coordinator_service(job: Job, cluster_ip: str) -> dict[str, Any]:
    """A ClusterIP that follows the label: pods get the address, so the recovery path has no DNS lookup."""
    target = {"targetPort": MEMBERSHIP_PORT_NAME} if job.world.host_network else {}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(job, coordinator_service_name(job.name)),
        "spec": {
            "selector": {names.LABEL_JOB_UID: job.uid, names.LABEL_COORDINATOR: "true"},
            "publishNotReadyAddresses": True,
            "ports": [{"name": "membership", "port": names.COORDINATOR_PORT, "protocol": "TCP"} | target],
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

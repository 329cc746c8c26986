"""The parts of a pod's spec that come from the job as a whole: network, volumes, placement.

Exclusive placement: JobSet's webhook sends all pods of a Job to the domain of the first one, once that is scheduled.
Here no webhook is needed: every pod of a Job has affinity to the pods of its Job, and anti-affinity to those of all
other Jobs, in its topology domain. The placement is the same; the scheduler has more to compare.
"""

from typing import Any

from understudy_operator.plan.facts import keys
from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.spec import ReplicatedJob
from understudy_operator.plan.manifests import metadata
from understudy_operator.plan.manifests.node_affinity import REQUIRED


def claim_name(job: Job, claim: str) -> str:
    return f"{claim}-{job.name}"


def complete_spec(spec: dict[str, Any], job: Job, group: ReplicatedJob, index: int | None) -> None:
    """index: of the Job; None for a spare, which may run anywhere."""
    if job.spec.network.hostnames:
        spec["subdomain"] = metadata.subdomain(job)
    _add_volumes(spec, job)
    if index is not None and group.exclusive is not None:
        if group.exclusive.node_selector:
            _select_nodes(spec, job, group, index)
        else:
            key = metadata.jobset_labels(job, group, index)[keys.JOB_KEY]
            _keep_together(spec, key, group.exclusive.topology_key)


def _add_volumes(spec: dict[str, Any], job: Job) -> None:
    """Add the claims that one of the containers mounts."""
    containers = (*spec.get("initContainers", ()), *spec.get("containers", ()))
    mounted = {mount["name"] for container in containers for mount in container.get("volumeMounts", ())}
    for claim in job.spec.claims:
        if claim.name in mounted:
            source = {"claimName": claim_name(job, claim.name)}
            spec["volumes"] = [*spec.get("volumes", ()), {"name": claim.name, "persistentVolumeClaim": source}]


def _select_nodes(spec: dict[str, Any], job: Job, group: ReplicatedJob, index: int) -> None:
    """Nodes that an administrator has labeled for this Job, and tainted against all others."""
    name = f"{job.namespace}_{metadata.job_name(job, group, index)}"
    spec["nodeSelector"] = {**spec.get("nodeSelector", {}), keys.NAMESPACED_JOB: name}
    toleration = {"key": keys.NO_SCHEDULE, "operator": "Exists", "effect": "NoSchedule"}
    spec["tolerations"] = [*spec.get("tolerations", ()), toleration]


def _keep_together(spec: dict[str, Any], job_key: str, topology_key: str) -> None:
    def term(*expressions: dict[str, Any]) -> dict[str, Any]:
        selector = {"matchExpressions": list(expressions)}
        return {"labelSelector": selector, "topologyKey": topology_key, "namespaceSelector": {}}

    affinity = spec.setdefault("affinity", {})
    affinity_terms = affinity.setdefault("podAffinity", {}).setdefault(REQUIRED, [])
    affinity_terms.append(term({"key": keys.JOB_KEY, "operator": "In", "values": [job_key]}))
    anti_affinity_terms = affinity.setdefault("podAntiAffinity", {}).setdefault(REQUIRED, [])
    others = {"key": keys.JOB_KEY, "operator": "NotIn", "values": [job_key]}
    anti_affinity_terms.append(term({"key": keys.JOB_KEY, "operator": "Exists"}, others))


def restricted_security_context(job: Job) -> dict[str, Any]:
    """The securityContext of a container of ours, by the Restricted profile of Kubernetes' Pod Security Standards."""
    user, group = job.sidecar_settings.user, job.sidecar_settings.group
    return {
        "runAsNonRoot": True,
        **({} if user is None else {"runAsUser": user}),
        **({} if group is None else {"runAsGroup": group}),
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def startup_probe(path: str, port: int) -> dict[str, Any]:
    """The probe of a container of ours. A slow start is not a failure: on a busy machine a process may need minutes to
    start and seconds to answer, and a kill makes it slower. A container that hangs is restarted after half an hour.
    """
    ask = {"path": path, "port": port}
    return {"httpGet": ask, "periodSeconds": 1, "timeoutSeconds": 10, "failureThreshold": 1800}

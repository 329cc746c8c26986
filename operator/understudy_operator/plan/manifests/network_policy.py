"""The NetworkPolicy of a job's members: only the job's own pods and the sources in the chart's values can reach them.

Rules: each job owns one policy, which is deleted with it. It selects the pods that train and their spares (the
coordinator is one of them), and does not limit other policies: Kubernetes adds them up. Pods of a job's other
replicatedJobs, and pods of a JobSet that are not injected, count as the job's own. The operator corrects a policy that
differs, because somebody or the chart has changed it. If another owner's object has its name, an event reports it.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from understudy_operator.plan.facts import keys
from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.ownership import controller_uid, kind_of, object_uid, owner_reference
from understudy_operator.plan.intents import Event
from understudy_protocol import pod as names

Raw = Mapping[str, Any]
#: Ingress rules in addition to the one for the job's own pods.
Rules = tuple[Raw, ...]
Key = tuple[str, str]  # namespace, name


def network_policy(job: Job, rules: Rules) -> dict[str, Any]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": f"{job.name}-members",
            "namespace": job.namespace,
            "labels": {names.LABEL_JOB: job.name, names.LABEL_JOB_UID: job.uid},
            "ownerReferences": [owner_reference(job)],
        },
        "spec": {
            "podSelector": {"matchLabels": {names.LABEL_JOB_UID: job.uid}},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [_pods_with(*label) for label in _labels(job)]}, *map(dict, rules)],
        },
    }


def _labels(job: Job) -> Iterator[tuple[str, str]]:
    """The labels of the job's pods; each pod has one of these."""
    yield names.LABEL_JOB_UID, job.uid
    if job.injected is None:
        yield keys.UID, job.uid
    elif job.injected.target_kind == "JobSet":
        yield keys.NAME, job.injected.target_name


def _pods_with(label: str, value: str) -> dict[str, Any]:
    return {"podSelector": {"matchLabels": {label: value}}}


def has_members(job: Job) -> bool:
    return job.spec.world is not None and not job.deleting and not job.terminal


def missing_policies(jobs: Iterable[Job], existing: Mapping[Key, Raw], rules: Rules) -> Iterator[dict[str, Any]]:
    """The policies to create. If a deleted job's policy still has the name, the new job's waits."""
    for job in jobs:
        manifest = network_policy(job, rules)
        if has_members(job) and (job.namespace, manifest["metadata"]["name"]) not in existing:
            yield manifest


def outdated_policies(jobs: Iterable[Job], existing: Mapping[Key, Raw], rules: Rules) -> Iterator[dict[str, Any]]:
    """The policies to replace completely."""
    for job in jobs:
        wanted = network_policy(job, rules)
        found = existing.get((job.namespace, wanted["metadata"]["name"]))
        if found is None or controller_uid(found) != object_uid(job):
            continue
        if has_members(job) and found.get("spec") != wanted["spec"]:
            yield {**found, "spec": wanted["spec"]}


def jobs_without_policy(jobs: Iterable[Job], existing: Mapping[Key, Raw], rules: Rules) -> Iterator[Job]:
    """The jobs for whose policy another owner's object has the name."""
    for job in jobs:
        found = existing.get((job.namespace, network_policy(job, rules)["metadata"]["name"]))
        if has_members(job) and found is not None and controller_uid(found) != object_uid(job):
            yield job


def name_taken_event(job: Job) -> Event:
    name = f"{job.name}-members"
    message = (
        f"NetworkPolicy {name} does not belong to this {kind_of(job)}, so the operator created none: pods of other "
        f"jobs can reach the job's pods, unless another NetworkPolicy forbids it. Delete NetworkPolicy {name}"
    )
    return Event("Warning", "NetworkPolicyConflict", message, "NetworkPolicyConflict")

"""Errors in a spec that the API server has accepted: its CRD may be older, and CEL cannot check everything.

Rules: an error names the field, the problem and the fix. The webhook rejects a new TrainingJob that has one. The
operator does not start a job that has one, and its condition Invalid describes the fix for an existing job.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from understudy_operator.plan.facts import keys
from understudy_operator.plan.facts.launcher_choice import MOST_MEMBERS
from understudy_operator.plan.facts.spec import JobSpec
from understudy_operator.plan.facts.trainer import describe_own_ranks, kubelet_restarts, memory_limit
from understudy_operator.plan.jobset.patterns import invalid_pattern
from understudy_operator.plan.jobset.startup import dependency_cycle
from understudy_operator.plan.manifests.metadata import coordinator_endpoint
from understudy_operator.plan.manifests.object_names import coordinator_service_name
from understudy_operator.plan.manifests.pods import own_name, private_mount

LONGEST_LABEL = 63
MOST_PODS = 2**31 - 1
#: A limit of the operator's memory, as MOST_MEMBERS is.
MOST_JOBS = 20_000
#: Snapshots of each rank in memory, as in understudy_launcher.snapshot_memory.
SLOTS = 2
#: That a launcher can pass to its sidecar: understudy_sidecar.copy_process.MAX_FILES.
MOST_FILES = 250
#: The launcher passes at most understudy_protocol.snapshot_files.LONGEST_STORAGE_PATH to the workers.
MOST_PATH_BYTES = 1000
#: Volumes that no two pods share.
UNSHARED_VOLUMES = ("emptyDir", "ephemeral", "configMap", "secret", "downwardAPI", "projected", "image")


@dataclass(frozen=True)
class SpecError:
    message: str
    changeable: bool = False  # whether the field may be changed while the job is suspended


def find_spec_errors(name: str, spec: JobSpec) -> Iterator[SpecError]:
    """All errors of a job of that name."""
    if invalid := invalid_pattern(spec):
        yield SpecError(invalid)
    if waiting := dependency_cycle(spec):
        yield SpecError(waiting, changeable=True)
    yield from _claims(spec)
    yield from _coordinator(name, spec)
    yield from _subdomain(name, spec)
    yield from _counts(spec)
    yield from _rule_names(spec)
    yield from _restarts(spec)
    yield from _own_ranks(spec)
    yield from _host_network(spec)
    yield from _private_mounts(spec)
    yield from _own_names(spec)
    yield from _without_launcher(spec)
    yield from _snapshots(spec)
    yield from _snapshot_storage(spec)


def describe_spec_error(name: str, spec: JobSpec) -> str:
    """The first error, for the status of an existing job; "" if there is none."""
    first = next(find_spec_errors(name, spec), None)
    if first is None:
        return ""
    how = "suspend the job, and resume it afterwards" if first.changeable else "delete the job and create it again"
    return f"{first.message}. The job does not start; to change this field, {how}"


def _claims(spec: JobSpec) -> Iterator[SpecError]:
    seen = set[str]()
    for claim in spec.claims:
        if claim.name in seen:
            yield SpecError(
                f"volumeClaimPolicies[].templates[].metadata.name: two claims have the name {claim.name}: rename or "
                "remove one of them"
            )
        seen.add(claim.name)


def _coordinator(name: str, spec: JobSpec) -> Iterator[SpecError]:
    if spec.coordinator is None:
        return
    label = coordinator_endpoint(name, spec, spec.coordinator)
    if len(label) > LONGEST_LABEL:
        yield SpecError(
            f"coordinator: the label {keys.COORDINATOR} would be {label}, of {len(label)} characters; at most "
            f"{LONGEST_LABEL} are allowed: shorten metadata.name, replicatedJobs[].name or network.subdomain"
        )


def _subdomain(name: str, spec: JobSpec) -> Iterator[SpecError]:
    """Hostnames need a headless Service. The coordinator's Service has an address, and without an error nothing would
    report that no hostname resolves.
    """
    taken = coordinator_service_name(name)
    if spec.world is not None and spec.network.hostnames and spec.network.subdomain == taken:
        yield SpecError(
            f"network.subdomain: {taken} is the name of the Service of the job's coordinator: choose another name"
        )


def _counts(spec: JobSpec) -> Iterator[SpecError]:
    for number, group in enumerate(spec.replicated_jobs):
        if group.pods > MOST_PODS:
            yield SpecError(
                f"replicatedJobs[{number}]: replicas times parallelism is {group.pods}; at most {MOST_PODS} pods are "
                "allowed: lower one of them",
                changeable=True,
            )
        elif group in spec.children and group.replicas > MOST_JOBS:
            yield SpecError(
                f"replicatedJobs[{number}].replicas is {group.replicas}; at most {MOST_JOBS} are allowed: lower it",
                changeable=True,
            )
    members = 0 if spec.world is None else spec.world.actives + spec.world.spares
    if members > MOST_MEMBERS:
        yield SpecError(
            f"replicatedJobs: the pods with a launcher and their spares are {members}; at most {MOST_MEMBERS} are "
            "allowed: lower replicas or parallelism of the replicatedJobs with a launcher, or spares.replicas",
            changeable=True,
        )


def _rule_names(spec: JobSpec) -> Iterator[SpecError]:
    seen = set[str]()
    for number, rule in enumerate(() if spec.failure is None else spec.failure.rules):
        if rule.name in seen:
            yield SpecError(
                f"failurePolicy.rules[{number}].name: two rules have the name {rule.name} (a rule without a name is "
                "called failurePolicyRule and its number, from 0): rename one of them"
            )
        seen.add(rule.name)


def _restarts(spec: JobSpec) -> Iterator[SpecError]:
    """A member is lost when the kubelet restarts its launcher: by then its ranks are on other pods."""
    if spec.world is None:
        return
    for number, group in enumerate(spec.replicated_jobs):
        field = kubelet_restarts(group.pod_template["spec"], spec.world.container)
        if field and group in spec.world.groups:
            yield SpecError(
                f"replicatedJobs[{number}].template.spec.template.spec: {field} would make the kubelet restart the "
                "launcher, but the launcher restarts workers itself (recovery.inPlace): remove it",
                changeable=True,
            )


def _own_ranks(spec: JobSpec) -> Iterator[SpecError]:
    if spec.world is None:
        return
    ranks = spec.world.actives * spec.world.nproc_per_node
    for number, group in enumerate(spec.replicated_jobs):
        containers = group.pod_template["spec"].get("containers") or ()
        trainer: Mapping[str, Any] = next((x for x in containers if spec.world.container in ("", x["name"])), {})
        if group in spec.world.groups and (problem := describe_own_ranks(trainer, spec.world.mode, ranks)):
            yield SpecError(
                f"replicatedJobs[{number}].template.spec.template.spec.containers: {problem}", changeable=True
            )


def _host_network(spec: JobSpec) -> Iterator[SpecError]:
    """The coordinator's Service finds the port of each pod in one way, and any pod may become the coordinator."""
    groups = () if spec.world is None else spec.world.groups
    with_it = [group.name for group in groups if group.pod_template["spec"].get("hostNetwork")]
    if with_it and len(with_it) < len(groups):
        yield SpecError(
            f"replicatedJobs: {', '.join(with_it)} has hostNetwork, and the others with a launcher do not: set it in "
            "all or in none of them",
            changeable=True,
        )


def _snapshots(spec: JobSpec) -> Iterator[SpecError]:
    """Their memory counts as the trainer container's."""
    if spec.world is None or not spec.world.snapshot_bytes:
        return
    copies, workers = spec.world.snapshot_copies, spec.world.nproc_per_node
    if copies and copies >= spec.world.actives:
        yield SpecError(
            f"snapshots.copies: {copies} other pods cannot keep a copy, because {spec.world.actives} pods of the job "
            f"train: lower it to {spec.world.actives - 1}",
            changeable=True,
        )
    if workers * (1 + copies) > MOST_FILES:
        yield SpecError(
            f"snapshots.copies: {workers} workers of a pod with {copies} copies need more than {MOST_FILES} files in "
            "memory: lower copies or launcher.nprocPerNode",
            changeable=True,
        )
    needed = SLOTS * spec.world.snapshot_bytes * workers * (1 + copies)
    for number, group in enumerate(spec.replicated_jobs):
        containers = group.pod_template["spec"].get("containers") or ()
        limit = memory_limit(next((x for x in containers if spec.world.container in ("", x["name"])), {}))
        if group in spec.world.groups and limit is not None and needed >= limit:
            yield SpecError(
                f"snapshots.size: {SLOTS} snapshots for each of {workers} workers{_of_others(copies)} need "
                f"{_gib(needed)} of the trainer container's memory, and its limit in replicatedJobs[{number}] is "
                f"{_gib(limit)}: raise resources.limits.memory, or lower snapshots.size{_or_copies(copies)}",
                changeable=True,
            )


def _snapshot_storage(spec: JobSpec) -> Iterator[SpecError]:
    """A folder that is not on a volume would be lost with its container."""
    if spec.world is None or not spec.world.snapshot_path:
        return
    path = spec.world.snapshot_path
    if problem := describe_storage_path(path):
        yield SpecError(f"snapshots.storage.path: {problem}: choose another folder", changeable=True)
        return
    for number, group in enumerate(spec.replicated_jobs):
        pod = group.pod_template["spec"]
        trainer: Mapping[str, Any] = next(
            (x for x in pod.get("containers") or () if spec.world.container in ("", x["name"])), {}
        )
        if group in spec.world.groups and (problem := _storage_mount_problem(path, trainer, pod, number)):
            yield SpecError(f"snapshots.storage.path: {path} {problem}", changeable=True)


def describe_storage_path(path: str) -> str:
    """Why a launcher cannot use this folder for snapshots on storage; "" if it can."""
    if not path.isprintable():
        return "contains a character that cannot be printed"
    return f"is longer than {MOST_PATH_BYTES} bytes" if len(path.encode()) > MOST_PATH_BYTES else ""


def _storage_mount_problem(path: str, trainer: Mapping[str, Any], pod: Mapping[str, Any], number: int) -> str:
    """Why the folder is on no volume that all pods share and can write; "" if it may be on one."""
    mounts = [(str(mount.get("mountPath", "")).rstrip("/"), mount) for mount in trainer.get("volumeMounts") or ()]
    above = [(at, mount) for at, mount in mounts if path == at or path.startswith(f"{at}/")]
    if not above:
        return (
            f"is on no volume of the trainer container in replicatedJobs[{number}]: add a volume that all pods share, "
            "and mount it with volumeMounts at this path or at a folder above it"
        )
    _, mount = max(above, key=lambda found: len(found[0]))
    name = mount.get("name", "")
    place = f"is on the volume {name} of replicatedJobs[{number}]"
    if mount.get("readOnly"):
        return (
            f"{place}, which the trainer container mounts with readOnly: remove readOnly, because the workers write "
            "there"
        )
    volume: Mapping[str, Any] = next((x for x in pod.get("volumes") or () if x.get("name") == name), {})
    kind = next((kind for kind in UNSHARED_VOLUMES if kind in volume), "")
    return (
        f"{place}, and each pod has its own ({kind}): use a volume that all pods share, such as a "
        "PersistentVolumeClaim with the access mode ReadWriteMany"
        if kind
        else ""
    )


def _of_others(copies: int) -> str:
    return f", and as many for the workers of each of {copies} other pods," if copies else ""


def _or_copies(copies: int) -> str:
    return " or snapshots.copies" if copies else ""


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f}Gi"


def _private_mounts(spec: JobSpec) -> Iterator[SpecError]:
    """The trainer could read the job's key, or write to a folder of the node."""
    for number, group in enumerate(spec.replicated_jobs):
        if field := private_mount(group.pod_template["spec"]):
            yield SpecError(
                f"replicatedJobs[{number}].template.spec.template.spec: {field}: remove the mount", changeable=True
            )


def _own_names(spec: JobSpec) -> Iterator[SpecError]:
    """The API server would reject the pod with a message about a field that the user has not written."""
    for number, group in enumerate(spec.replicated_jobs):
        if spec.world is not None and (field := own_name(group.pod_template["spec"])):
            yield SpecError(
                f"replicatedJobs[{number}].template.spec.template.spec.{field}: rename yours", changeable=True
            )


def _without_launcher(spec: JobSpec) -> Iterator[SpecError]:
    """The CRD's rules cannot read the annotation, nor find out whether the job can have the default launcher."""
    if spec.launcher.has_launcher or not spec.launcher.needing_fields:
        return
    fields = ", ".join(spec.launcher.needing_fields)
    yield SpecError(
        f"{fields}: no effect without a launcher: remove the field or the reason that the job has no launcher "
        f"({spec.launcher.message})",
        changeable=True,
    )

"""The manifest of a pod: the user's template, plus the sidecar, and the launcher in front of the trainer's command.

The user's fields stay, except those that decide how the pod runs: restartPolicy is always Never (the launcher restarts
workers; a restartPolicy of the trainer container itself is rejected), and the launcher starts the trainer's command. If
that is torchrun, it is its own launcher, and an entry script connects it to the job.
"""

import copy
import json
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

from understudy_operator.plan.facts import keys
from understudy_operator.plan.facts.host_ports import declare_host_ports
from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.malformed import number_in
from understudy_operator.plan.facts.ownership import owner_reference
from understudy_operator.plan.facts.spec import PodPosition, ReplicatedJob, World
from understudy_operator.plan.facts.trainer import AUTO, TORCHRUN
from understudy_operator.plan.manifests import metadata, podspec
from understudy_operator.plan.manifests.gateways import add_to_worker
from understudy_operator.plan.manifests.job_pods import INDEX_VARIABLE
from understudy_operator.plan.manifests.node_affinity import exclude_nodes, prefer_other_nodes
from understudy_operator.plan.manifests.object_names import membership_secret_name, name_suffix
from understudy_protocol import pod as names
from understudy_protocol.logs import ENV_FORMAT, TEXT

DEFAULT_GRACE_S = 30
#: Words of a wrapped command before the user's: /bin/sh and an entry script; or Python, options, the launcher and `--`.
_ENTRY_SCRIPT_WORDS, _PYTHON_WORDS = 2, 6
#: The values that the launcher and the sidecar assume for variables that are not set.
_DEFAULTS = {
    names.ENV_SHARED_FOLDER: names.SHARED_FOLDER,
    names.ENV_GRACE: str(DEFAULT_GRACE_S),
    names.ENV_ON_SIGTERM: "Auto",
    names.ENV_LOG_PREFIX: "true",
    names.ENV_SLOW_RANK_PERCENT: "150",
    names.ENV_ZYGOTE: "true",
}
#: Volumes that only the operator's own containers may mount: keys, their state, a folder of the node.
PRIVATE_VOLUMES = (names.POD_VOLUME, names.STATE_VOLUME, names.NODE_VOLUME, names.GATEWAY_VOLUME)
#: All that the operator or the injection may add to a pod: a template can have none of these names.
OWN_VOLUMES = (names.SHARED_VOLUME, names.SHM_VOLUME, names.ROLLOUT_VOLUME, *PRIVATE_VOLUMES)
OWN_CONTAINERS = (names.SIDECAR_CONTAINER, names.GATEWAY_CONTAINER)


def pod_manifest(
    job: Job,
    *,
    index: int | None,
    serial: str,
    facts: str,
    sidecar_image: str,
    avoid_nodes: Sequence[str] = (),
    template_of: ReplicatedJob | None = None,
    avoid_if_possible: Sequence[str] = (),
) -> dict[str, Any]:
    """A pod for the completion index (over all of the job's Jobs), or a spare (None). serial makes its name unique.

    facts: the name of the Secret with the job's facts (shape.py); "": the pod is a pool's spare, without a job.
    template_of: the replicatedJob whose template a spare gets; None: the spares' own.
    """
    place = None if index is None else job.world.position(index)
    group = (template_of or job.world.spare_group) if place is None else place.group
    template = copy.deepcopy(dict(group.pod_template))
    spec: dict[str, Any] = template.get("spec", {})
    grace_s = spec.get("terminationGracePeriodSeconds", DEFAULT_GRACE_S)
    spec["restartPolicy"] = "Never"
    podspec.complete_spec(spec, job, group, None if place is None else place.job_index)
    spec["hostname"] = _hostname(job, group, place, serial)
    spec.setdefault("volumes", []).extend(volumes(job, [name for name in (membership_secret_name(job), facts) if name]))
    trainer = trainer_of(spec, job.world.container)
    wrap(trainer, job, place, grace_s, variables_in_facts(job) if facts else {})
    if place is None:
        trainer["env"] = [*(v for v in trainer["env"] if v["name"] != INDEX_VARIABLE), _spare_index(group)]
    _add_shared_memory(spec, trainer, job)
    add_to_worker(spec, trainer, job)
    port = job.sidecar_settings.host_ports.draw(f"{job.uid}/{serial}") if spec.get("hostNetwork") else None
    if port is not None:
        declare_host_ports(trainer, port)
    sidecar = sidecar_container(job, index, sidecar_image, grace_s, port)
    spec["initContainers"] = [sidecar, *spec.get("initContainers", [])]
    pod_metadata = _metadata(job, group, template.get("metadata", {}), index, serial)
    if avoid_nodes:
        exclude_nodes(spec, avoid_nodes, pod_metadata["annotations"])
    if avoid_if_possible:
        prefer_other_nodes(spec, avoid_if_possible)
        pod_metadata["annotations"][names.ANNOTATION_LEAST_PREFERRED_NODES] = ",".join(sorted(avoid_if_possible))
    return {"apiVersion": "v1", "kind": "Pod", "metadata": pod_metadata, "spec": spec}


def trainer_of(spec: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The container of that name; the first one if the name is empty."""
    found: dict[str, Any] = next(c for c in spec["containers"] if name in ("", c["name"]))
    return found


def private_mount(spec: Mapping[str, Any], sidecar: Mapping[str, Any] | None = None) -> str:
    """The mount of a private volume in a container of the user, described; "" if there is none.

    sidecar: the container of the spec that injection added. Every other container is the user's, whatever its name.
    """
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        for mount in container.get("volumeMounts") or ():
            if mount.get("name") in PRIVATE_VOLUMES and container is not sidecar:
                return (
                    f"volumeMounts {mount['name']} of container {container['name']}: only Understudy may mount "
                    "this volume"
                )
    return ""


def own_name(spec: Mapping[str, Any]) -> str:
    """A volume or container of the user that has a name of ours, described; "" if there is none."""
    for field, reserved in (
        ("volumes", OWN_VOLUMES),
        ("initContainers", OWN_CONTAINERS),
        ("containers", OWN_CONTAINERS),
    ):
        for item in spec.get(field) or ():
            if item.get("name") in reserved:
                return f"{field}: Understudy adds one with the name {item['name']}"
    return ""


def remove_private_mounts(spec: dict[str, Any]) -> None:
    """Remove them from the user's containers of a pod_manifest, whose first init container is the sidecar."""
    for container in (*spec["initContainers"][1:], *spec["containers"]):
        if "volumeMounts" in container:
            mounts = container["volumeMounts"]
            container["volumeMounts"] = [mount for mount in mounts if mount["name"] not in PRIVATE_VOLUMES]


def _hostname(job: Job, group: ReplicatedJob, place: PodPosition | None, serial: str) -> str:
    if place is None:
        return f"{job.name}-{group.name}-spare-{name_suffix(f'{job.uid}/{serial}')}"
    return f"{job.name}-{place.group.name}-{place.job_index}-{place.pod_index}"


def _metadata(
    job: Job, group: ReplicatedJob, given: Mapping[str, Any], index: int | None, serial: str
) -> dict[str, Any]:
    place = None if index is None else job.world.position(index)
    hostname = _hostname(job, group, place, serial)
    from_job = group.job_metadata
    job_index = None if place is None else place.job_index
    labels = {**from_job.get("labels", {}), **given.get("labels", {}), **metadata.jobset_labels(job, group, job_index)}
    annotations = {**from_job.get("annotations", {}), **given.get("annotations", {})}
    annotations.pop(names.ANNOTATION_DRAIN, None)  # for one pod: in a template it would drain each pod of the job
    for placement in keys.PLACEMENT if place is None else ():
        annotations.pop(placement, None)
    annotations |= metadata.jobset_annotations(job, group, job_index) | {
        names.ANNOTATION_SPEC_HASH: job.world.template_hash
    }
    labels |= {
        names.LABEL_JOB: job.name,
        names.LABEL_JOB_UID: job.uid,
        names.LABEL_REPLICATED_JOB: group.name,
        names.LABEL_ROLE: names.ROLE_SPARE if place is None else names.ROLE_ACTIVE,
    }
    if not job.needs_service:
        labels[names.LABEL_COORDINATOR] = "true"
    if job.previous_epoch:
        labels[names.LABEL_ATTEMPT] = str(job.previous_epoch)
    if place is not None:
        labels |= _as_job_controller(job, place)
        annotations[keys.COMPLETION_INDEX] = str(place.pod_index)
        annotations[names.ANNOTATION_GROUP_RANK] = str(index)
    else:
        annotations[keys.COMPLETION_INDEX] = _spare_index(group)["value"]
    return {
        "name": hostname if index is None else f"{hostname}-{name_suffix(f'{job.uid}/{serial}')}",
        "namespace": job.namespace,
        "labels": labels,
        "annotations": annotations,
        "ownerReferences": [owner_reference(job)],
    }


def _spare_index(group: ReplicatedJob) -> dict[str, Any]:
    """An index that no pod of a Job has: commands such as `torchrun --node-rank=$JOB_COMPLETION_INDEX` need a number,
    and a script that tests for index 0 must not find it twice.
    """
    return _env(INDEX_VARIABLE, str(group.parallelism))


def _as_job_controller(job: Job, place: PodPosition) -> dict[str, str]:
    """The labels that the Job controller would set."""
    name = metadata.job_name(job, place.group, place.job_index)
    values = {keys.JOB_NAME: name, keys.LEGACY_JOB_NAME: name, keys.COMPLETION_INDEX: str(place.pod_index)}
    return values | {keys.CONTROLLER_UID: job.uid, keys.LEGACY_CONTROLLER_UID: job.uid}


def volumes(job: Job, secrets: Sequence[str]) -> list[dict[str, Any]]:
    """secrets: the names of those whose files the sidecar reads."""
    return [
        {"name": names.SHARED_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}},
        {"name": names.STATE_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": "32Mi"}},
        _pod_volume(secrets),
        *_node_volume(job),
    ]


def _pod_volume(secrets: Sequence[str]) -> dict[str, Any]:
    """One volume takes less of a pod than several, and files take less than variables."""
    verdict = f"metadata.annotations['{names.ANNOTATION_NODE_VERDICT}']"  # the kubelet updates its file
    fields = {
        names.POD_NAME_FILE: "metadata.name",
        names.POD_UID_FILE: "metadata.uid",
        names.VERDICT_ANNOTATION_FILE: verdict,
    }
    items = [{"path": path, "fieldRef": {"fieldPath": field}} for path, field in fields.items()]
    sources = [*({"secret": {"name": name}} for name in secrets), {"downwardAPI": {"items": items}}]
    return {"name": names.POD_VOLUME, "projected": {"sources": sources}}


def _node_volume(job: Job) -> list[dict[str, Any]]:
    """The folder of the file, which need not exist yet. The kubelet creates a missing folder."""
    if not job.world.nologin_path:
        return []
    folder = posixpath.dirname(job.world.nologin_path)
    return [{"name": names.NODE_VOLUME, "hostPath": {"path": folder, "type": "DirectoryOrCreate"}}]


def wrap(
    trainer: dict[str, Any], job: Job, place: PodPosition | None, grace_s: int, in_facts: Mapping[str, str]
) -> None:
    """in_facts: the launcher's variables that are in the job's facts, and so not in the pod."""
    trainer["command"] = [*_entry(job), *trainer["command"]]
    shared = _shared_variables(job)
    variables = {names.ENV_NPROC: str(job.world.nproc_per_node), names.ENV_GRACE: str(grace_s)}
    variables |= {name: value for name, value in shared.items() if name not in in_facts}
    if place is None and job.world.warmup:
        variables[names.ENV_WARMUP] = json.dumps(job.world.warmup)
    if (devices := _count_devices(trainer)) and job.world.mode != TORCHRUN:
        variables[names.ENV_DEVICES] = str(devices)
    if place is not None:
        variables[INDEX_VARIABLE] = str(place.pod_index)
    reserved = variables.keys() | shared.keys() | _DEFAULTS.keys()
    users = [variable for variable in trainer.get("env", []) if variable["name"] not in reserved]
    trainer["env"] = [*users, *_env_unless_default(variables)]
    trainer.setdefault("volumeMounts", []).append({"name": names.SHARED_VOLUME, "mountPath": names.SHARED_FOLDER})


def variables_in_facts(job: Job) -> dict[str, str]:
    """The launcher's variables for the job's facts. None with mode Torchrun: no launcher of ours would read them."""
    if job.world.mode == TORCHRUN:
        return {}
    variables = _shared_variables(job)
    return {name: value for name, value in variables.items() if _DEFAULTS.get(name) != value}


def _shared_variables(job: Job) -> dict[str, str]:
    """The launcher's variables that are the same in all pods of the job."""
    world = job.world
    variables = {
        names.ENV_ON_SIGTERM: world.on_sigterm,
        names.ENV_LOG_PREFIX: "true" if world.log_prefix else "false",
        names.ENV_SLOW_RANK_PERCENT: str(world.slow_rank_percent),
        **(_for_torchrun(job) if world.mode == TORCHRUN else _for_launcher(job)),
    }
    if world.step_timeout_s:
        variables[names.ENV_STEP_TIMEOUT] = f"{world.step_timeout_s:.0f}"
    if world.start_timeout_s:
        variables[names.ENV_START_TIMEOUT] = f"{world.start_timeout_s:.0f}"
    return variables


def _count_devices(trainer: Mapping[str, Any]) -> int:
    """The number of devices that the container requests; 1 if the quantity is not a plain number."""
    resources = trainer.get("resources") or {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    devices = number_in(str(limits.get(names.DEVICES, requests.get(names.DEVICES, 0))))
    return 1 if devices is None else devices


def _add_shared_memory(spec: dict[str, Any], trainer: dict[str, Any], job: Job) -> None:
    memory, mounts = job.world.shared_memory, trainer.setdefault("volumeMounts", [])
    if memory is None or any(posixpath.normpath(mount["mountPath"]) == names.SHM_FOLDER for mount in mounts):
        return
    source = {"sizeLimit": memory.size} if memory.on_disk else {"medium": "Memory", "sizeLimit": memory.size}
    spec["volumes"].append({"name": names.SHM_VOLUME, "emptyDir": source})
    mounts.append({"name": names.SHM_VOLUME, "mountPath": names.SHM_FOLDER})


def command_of(trainer: Mapping[str, Any]) -> list[str]:
    """The user's command of a container that `wrap` has changed."""
    words = list(trainer.get("command") or ())
    runs_launcher = f"{names.SHARED_FOLDER}/{names.LAUNCHER_ZIPAPP}" in words[:_PYTHON_WORDS]
    return words[_PYTHON_WORDS if runs_launcher else _ENTRY_SCRIPT_WORDS :]


def _entry(job: Job) -> list[str]:
    """The words before the user's command. The options of Python are those that the entry script uses."""
    if job.world.mode == TORCHRUN:
        return ["/bin/sh", f"{names.SHARED_FOLDER}/{names.TORCHRUN_SCRIPT}"]
    if job.world.python:
        return [job.world.python, "-I", "-S", "-u", f"{names.SHARED_FOLDER}/{names.LAUNCHER_ZIPAPP}", "--"]
    return ["/bin/sh", f"{names.SHARED_FOLDER}/{names.LAUNCHER_SCRIPT}"]


def _for_launcher(job: Job) -> dict[str, str]:
    world = job.world
    variables = {names.ENV_MODE: world.mode, names.ENV_ZYGOTE: "true" if world.zygote else "false"}
    if world.mode == AUTO:
        variables |= _for_torchrun(job)
    if world.preload is not None:
        variables[names.ENV_PRELOAD] = ",".join(world.preload)
    if world.worker_grace_period_s is not None:
        variables[names.ENV_WORKER_GRACE_PERIOD] = f"{world.worker_grace_period_s:.0f}"
    if world.snapshot_bytes:
        variables[names.ENV_SNAPSHOT_BYTES] = str(world.snapshot_bytes)
        variables[names.ENV_SNAPSHOT_EVERY] = str(world.snapshot_every)
        variables[names.ENV_SNAPSHOT_COPIES] = str(world.snapshot_copies)
        variables |= _for_snapshot_storage(world)
    return variables


def _for_snapshot_storage(world: World) -> dict[str, str]:
    if not world.snapshot_path:
        return {}
    return {
        names.ENV_SNAPSHOT_STORAGE_PATH: world.snapshot_path,
        names.ENV_SNAPSHOT_STORAGE_EVERY: str(world.snapshot_path_every),
        names.ENV_SNAPSHOT_STORAGE_KEEP: str(world.snapshot_path_keep),
    }


def _for_torchrun(job: Job) -> dict[str, str]:
    least = f"{job.world.min_actives}:" if job.world.min_actives else ""
    return {names.ENV_NNODES: f"{least}{job.world.actives}", names.ENV_RUN_ID: job.name}


def sidecar_container(
    job: Job, index: int | None, image: str, grace_s: int, host_port: int | None = None
) -> dict[str, Any]:
    """host_port: that the sidecar listens on, in a pod with hostNetwork (facts/host_ports.py)."""
    node_file = [_env(names.ENV_NOLOGIN, job.world.nologin_path)] if job.world.nologin_path else []
    node_mount = {"name": names.NODE_VOLUME, "mountPath": names.NODE_FOLDER, "readOnly": True}
    return {
        "name": names.SIDECAR_CONTAINER,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "restartPolicy": "Always",
        "env": [
            *([] if index is None else [_env(names.ENV_INDEX, str(index))]),
            *_env_unless_default({names.ENV_GRACE: str(grace_s)}),
            _env_from(names.ENV_POD_IP, "status.podIP"),
            _env_from(names.ENV_NODE, "spec.nodeName"),
            *([] if host_port is None else [_env(names.ENV_PORT, str(host_port))]),
            *node_file,
            *([] if job.sidecar_settings.log_format == TEXT else [_env(ENV_FORMAT, job.sidecar_settings.log_format)]),
        ],
        "volumeMounts": [
            {"name": names.SHARED_VOLUME, "mountPath": names.SHARED_FOLDER},
            {"name": names.STATE_VOLUME, "mountPath": names.STATE_FOLDER},
            # Hides the service account's token from a container that listens on the network.
            {"name": names.POD_VOLUME, "mountPath": names.POD_FOLDER, "readOnly": True},
            *([node_mount] if node_file else []),
        ],
        "startupProbe": podspec.startup_probe("/started", names.health_port(host_port or names.COORDINATOR_PORT)),
        "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": podspec.restricted_security_context(job),
    }


def _env_unless_default(variables: Mapping[str, str]) -> list[dict[str, Any]]:
    """Each variable takes 120 bytes of a pod, and a job may have thousands of pods."""
    return [_env(name, value) for name, value in variables.items() if _DEFAULTS.get(name) != value]


def _env(name: str, value: str) -> dict[str, Any]:
    return {"name": name, "value": value}


def _env_from(name: str, field_path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": field_path}}}

"""The manifest of a pod: the user's template, plus the sidecar, and the launcher in front of the trainer's command.

The user's fields stay, except those that decide how the pod runs: restartPolicy is always Never (the launcher restarts
workers; a restartPolicy of the trainer container itself is rejected), and the launcher starts the trainer's command. If
that is torchrun, it is its own launcher, and an entry script connects it to the job.
"""

import copy
import json
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import msgspec

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
from understudy_operator.plan.manifests.shape import job_shape
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
PRIVATE_VOLUMES = (names.KEY_VOLUME, names.STATE_VOLUME, names.VERDICT_VOLUME, names.NODE_VOLUME, names.GATEWAY_VOLUME)
#: All that the operator or the injection may add to a pod: a template can have none of these names.
OWN_VOLUMES = (names.SHARED_VOLUME, names.SHM_VOLUME, names.ROLLOUT_VOLUME, *PRIVATE_VOLUMES)
OWN_CONTAINERS = (names.SIDECAR_CONTAINER, names.GATEWAY_CONTAINER)


def pod_manifest(
    job: Job,
    *,
    index: int | None,
    serial: str,
    coordinator_address: str,
    sidecar_image: str,
    avoid_nodes: Sequence[str] = (),
    template_of: ReplicatedJob | None = None,
    avoid_if_possible: Sequence[str] = (),
) -> dict[str, Any]:
    """A pod for the completion index (over all of the job's Jobs), or a spare (None). serial makes its name unique.

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
    spec.setdefault("volumes", []).extend(volumes(job))
    trainer = trainer_of(spec, job.world.container)
    wrap(trainer, job, place, grace_s)
    if place is None:
        trainer["env"] = [*(v for v in trainer["env"] if v["name"] != INDEX_VARIABLE), _spare_index(group)]
    _add_shared_memory(spec, trainer, job)
    add_to_worker(spec, trainer, job)
    port = job.sidecar_settings.host_ports.draw(f"{job.uid}/{serial}") if spec.get("hostNetwork") else None
    if port is not None:
        declare_host_ports(trainer, port)
    sidecar = sidecar_container(job, index, coordinator_address, sidecar_image, grace_s, port)
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


def volumes(job: Job) -> list[dict[str, Any]]:
    return [
        {"name": names.SHARED_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}},
        {"name": names.STATE_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": "32Mi"}},
        {"name": names.KEY_VOLUME, "secret": {"secretName": membership_secret_name(job), "defaultMode": 0o444}},
        *_node_volume(job),
        _verdict_volume(),
    ]


def _verdict_volume() -> dict[str, Any]:
    """The verdict in the pod's annotation, as a file that the kubelet updates."""
    item = {
        "path": names.ANNOTATED_VERDICT_FILE,
        "fieldRef": {"fieldPath": f"metadata.annotations['{names.ANNOTATION_NODE_VERDICT}']"},
    }
    return {"name": names.VERDICT_VOLUME, "downwardAPI": {"items": [item]}}


def _node_volume(job: Job) -> list[dict[str, Any]]:
    """The folder of the file, which need not exist yet. The kubelet creates a missing folder."""
    if not job.world.nologin_path:
        return []
    folder = posixpath.dirname(job.world.nologin_path)
    return [{"name": names.NODE_VOLUME, "hostPath": {"path": folder, "type": "DirectoryOrCreate"}}]


def wrap(trainer: dict[str, Any], job: Job, place: PodPosition | None, grace_s: int) -> None:
    torchrun = job.world.mode == TORCHRUN
    trainer["command"] = [*_entry(job), *trainer["command"]]
    variables = [
        _env(names.ENV_NPROC, str(job.world.nproc_per_node)),
        *_unless_default(names.ENV_GRACE, str(grace_s)),
        *_unless_default(names.ENV_ON_SIGTERM, job.world.on_sigterm),
        *_unless_default(names.ENV_LOG_PREFIX, "true" if job.world.log_prefix else "false"),
        *_unless_default(names.ENV_SLOW_RANK_PERCENT, str(job.world.slow_rank_percent)),
        *(_for_torchrun(job) if torchrun else _for_launcher(job)),
    ]
    if job.world.step_timeout_s:
        variables.append(_env(names.ENV_STEP_TIMEOUT, f"{job.world.step_timeout_s:.0f}"))
    if job.world.start_timeout_s:
        variables.append(_env(names.ENV_START_TIMEOUT, f"{job.world.start_timeout_s:.0f}"))
    if place is None and job.world.warmup:
        variables.append(_env(names.ENV_WARMUP, json.dumps(job.world.warmup)))
    if (devices := _count_devices(trainer)) and not torchrun:
        variables.append(_env(names.ENV_DEVICES, str(devices)))
    if place is not None:
        variables.append(_env(INDEX_VARIABLE, str(place.pod_index)))
    variable_names = {variable["name"] for variable in variables} | _DEFAULTS.keys()
    trainer["env"] = [*(v for v in trainer.get("env", []) if v["name"] not in variable_names), *variables]
    trainer.setdefault("volumeMounts", []).append({"name": names.SHARED_VOLUME, "mountPath": names.SHARED_FOLDER})


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


def _for_launcher(job: Job) -> list[dict[str, Any]]:
    variables = [
        _env(names.ENV_MODE, job.world.mode),
        *_unless_default(names.ENV_ZYGOTE, "true" if job.world.zygote else "false"),
        *(_for_torchrun(job) if job.world.mode == AUTO else ()),
    ]
    if job.world.preload is not None:
        variables.append(_env(names.ENV_PRELOAD, ",".join(job.world.preload)))
    if job.world.worker_grace_period_s is not None:
        variables.append(_env(names.ENV_WORKER_GRACE_PERIOD, f"{job.world.worker_grace_period_s:.0f}"))
    if job.world.snapshot_bytes:
        variables.append(_env(names.ENV_SNAPSHOT_BYTES, str(job.world.snapshot_bytes)))
        variables.append(_env(names.ENV_SNAPSHOT_EVERY, str(job.world.snapshot_every)))
        variables.append(_env(names.ENV_SNAPSHOT_COPIES, str(job.world.snapshot_copies)))
        variables += _for_snapshot_storage(job.world)
    return variables


def _for_snapshot_storage(world: World) -> list[dict[str, Any]]:
    if not world.snapshot_path:
        return []
    return [
        _env(names.ENV_SNAPSHOT_STORAGE_PATH, world.snapshot_path),
        _env(names.ENV_SNAPSHOT_STORAGE_EVERY, str(world.snapshot_path_every)),
        _env(names.ENV_SNAPSHOT_STORAGE_KEEP, str(world.snapshot_path_keep)),
    ]


def _for_torchrun(job: Job) -> list[dict[str, Any]]:
    least = f"{job.world.min_actives}:" if job.world.min_actives else ""
    return [_env(names.ENV_NNODES, f"{least}{job.world.actives}"), _env(names.ENV_RUN_ID, job.name)]


def sidecar_container(
    job: Job, index: int | None, address: str, image: str, grace_s: int, host_port: int | None = None
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
            _env(names.ENV_JOB, _settings_that_differ(job_shape(job, grace_s))),
            _env(names.ENV_COORDINATOR, address),
            _env(names.ENV_INDEX, "" if index is None else str(index)),
            *_unless_default(names.ENV_GRACE, str(grace_s)),
            _env_from(names.ENV_POD_NAME, "metadata.name"),
            _env_from(names.ENV_POD_UID, "metadata.uid"),
            _env_from(names.ENV_POD_IP, "status.podIP"),
            _env_from(names.ENV_NODE, "spec.nodeName"),
            *([] if host_port is None else [_env(names.ENV_PORT, str(host_port))]),
            *node_file,
            *([] if job.sidecar_settings.log_format == TEXT else [_env(ENV_FORMAT, job.sidecar_settings.log_format)]),
        ],
        "volumeMounts": [
            {"name": names.SHARED_VOLUME, "mountPath": names.SHARED_FOLDER},
            {"name": names.STATE_VOLUME, "mountPath": names.STATE_FOLDER},
            {"name": names.KEY_VOLUME, "mountPath": names.KEY_FOLDER, "readOnly": True},
            {"name": names.VERDICT_VOLUME, "mountPath": names.VERDICT_FOLDER, "readOnly": True},
            # Hides the service account's token from a container that listens on the network.
            {"name": names.VERDICT_VOLUME, "mountPath": names.SERVICE_ACCOUNT_FOLDER, "readOnly": True},
            *([node_mount] if node_file else []),
        ],
        "startupProbe": podspec.startup_probe("/started", names.health_port(host_port or names.COORDINATOR_PORT)),
        "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": podspec.restricted_security_context(job),
    }


def _settings_that_differ(shape: names.JobShape) -> str:
    """As JSON, without the settings that have their default."""
    given = {each.name: getattr(shape, each.name) for each in fields(shape)}
    differing = {each.name for each in fields(shape) if given[each.name] != each.default}
    return msgspec.json.encode({name: value for name, value in given.items() if name in differing}).decode()


def _unless_default(name: str, value: str) -> list[dict[str, Any]]:
    """Each variable takes 120 bytes of a pod, and a job may have thousands of pods."""
    return [] if value == _DEFAULTS[name] else [_env(name, value)]


def _env(name: str, value: str) -> dict[str, Any]:
    return {"name": name, "value": value}


def _env_from(name: str, field_path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": field_path}}}

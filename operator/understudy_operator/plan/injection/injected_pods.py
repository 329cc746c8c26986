"""A pod as a Job controller creates it -> the pod with our sidecar, and the launcher in front of its trainer's command.

The containers are those of a TrainingJob's pods (plan/manifests/pods.py), with these differences:
- The operator does not know the job yet when its first pod is created. So the pod has its place in the job as a
  variable. The operator's facts about the job are beside the membership key in the same Secret, without which no
  kubelet starts the pod.
- A Job counts restarts of init containers, such as the sidecar: so a supervisor inside it restarts its process.
- Without a launcher the sidecar is alone: it is no member, and only stores the node's findings.

Rules: injection keeps all that is there already, even if another webhook has changed it: a second call adds nothing,
or only the parts that another webhook has removed. The trainer of the first call stays the trainer.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from understudy_operator.plan.facts.host_ports import HostPorts, declare_host_ports, declared_port
from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.sidecar_settings import DEFAULT_SIDECAR_SETTINGS, SidecarSettings
from understudy_operator.plan.facts.spec import JobSpec
from understudy_operator.plan.facts.status import JobStatus
from understudy_operator.plan.facts.trainer import TORCHRUN, describe_own_ranks, kubelet_restarts
from understudy_operator.plan.injection import launcher_mode
from understudy_operator.plan.injection.owner import Owner, read_owner
from understudy_operator.plan.injection.settings import (
    NONE,
    PREFIX,
    InjectionSettings,
    Objection,
    read_injection_settings,
)
from understudy_operator.plan.manifests import pods
from understudy_operator.plan.manifests.object_names import membership_secret_name
from understudy_protocol import pod as names

#: Arguments of the sidecar's image (its ENTRYPOINT takes them).
SUPERVISED, ALONE = "--supervised", "--alone"

Raw = Mapping[str, Any]


@dataclass(frozen=True)
class InjectedPod:
    pod: dict[str, Any]
    warnings: tuple[str, ...] = ()


def inject(
    pod: Raw, sidecar_image: str, sidecar_settings: SidecarSettings = DEFAULT_SIDECAR_SETTINGS, entropy: str = ""
) -> InjectedPod:
    """The injected pod. entropy: its ports depend on it, if it has hostNetwork. Raises Objection."""
    injected = copy.deepcopy(dict(pod))
    spec, metadata = injected["spec"], injected["metadata"]
    annotations = metadata.setdefault("annotations", {})
    for request in (names.ANNOTATION_DRAIN, names.ANNOTATION_DRILL):  # for one pod, and not for each of a template
        annotations.pop(request, None)
    owner = read_owner(injected)
    settings = read_injection_settings(annotations)
    trainer = _trainer(spec, annotations.get(names.ANNOTATION_TRAINER_CONTAINER, settings.container))
    _refuse_taken_names(injected, settings, sidecar_image)
    host_port = _host_port(spec, trainer, sidecar_settings.host_ports, f"{owner.membership}/{owner.place}/{entropy}")
    warnings = _change(spec, trainer, owner, settings, sidecar_image, sidecar_settings, host_port)
    metadata.setdefault("labels", {}).update({names.LABEL_JOB: owner.group, names.LABEL_JOB_UID: owner.membership})
    annotations |= {names.ANNOTATION_TRAINER_CONTAINER: trainer["name"], names.ANNOTATION_POD_INDEX: str(owner.place)}
    return InjectedPod(injected, warnings)


def _host_port(spec: Raw, trainer: Raw, host_ports: HostPorts, seed: str) -> int | None:
    """The port for the sidecar of a pod with hostNetwork: of the first call, or a new one."""
    return (declared_port(trainer) or host_ports.draw(seed)) if spec.get("hostNetwork") else None


def _trainer(spec: Raw, name: str) -> dict[str, Any]:
    containers = spec.get("containers", [])
    if not any(name in ("", container["name"]) for container in containers):
        known = ", ".join(container["name"] for container in containers)
        raise Objection(f"annotation {PREFIX}container is {name!r}: set it to one of {known}")
    return pods.trainer_of(spec, name)


def _refuse_taken_names(pod: Raw, settings: InjectionSettings, image: str) -> None:
    """Reject containers and volumes of the user that have the names of ours."""
    spec = pod["spec"]
    injected = names.ANNOTATION_TRAINER_CONTAINER in pod["metadata"]["annotations"]
    added = (x for x in spec.get("initContainers", ()) if injected and _is_sidecar(x, settings, image))
    sidecar = next(added, None)
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        if container["name"] == names.SIDECAR_CONTAINER and container is not sidecar:
            raise Objection(f"injection adds a container {names.SIDECAR_CONTAINER}: rename yours")
    if field := pods.private_mount(spec, sidecar):
        raise Objection(f"{field}: remove the mount")
    if injected:
        return
    if clash := next((x["name"] for x in spec.get("volumes", ()) if x["name"] in pods.OWN_VOLUMES), ""):
        raise Objection(f"injection adds a volume {clash}: rename yours")


def _is_sidecar(container: Raw, settings: InjectionSettings, image: str) -> bool:
    """Whether injection added the container. Another webhook may have changed its registry, or added fields to it."""
    if container["name"] != names.SIDECAR_CONTAINER or container.get("command") or container.get("lifecycle"):
        return False
    args = [ALONE] if settings.launcher == NONE else [SUPERVISED]
    return container.get("args") == args and _image_name(container.get("image", "")) == _image_name(image)


def _image_name(image: str) -> str:
    """The image without registry, tag and digest."""
    return image.rpartition("/")[2].partition("@")[0].partition(":")[0]


def _change(
    spec: dict[str, Any],
    trainer: dict[str, Any],
    owner: Owner,
    settings: InjectionSettings,
    image: str,
    sidecar_settings: SidecarSettings,
    host_port: int | None,
) -> tuple[str, ...]:
    entries = (names.LAUNCHER_SCRIPT, names.TORCHRUN_SCRIPT, names.LAUNCHER_ZIPAPP)
    launched = any(f"{names.SHARED_FOLDER}/{entry}" in trainer.get("command", ()) for entry in entries)
    alone = settings.launcher == NONE
    mode = settings.launcher if launched or alone else launcher_mode.choose_launcher_mode(trainer, settings)
    nproc = settings.nproc_per_node or 1 if launched or alone else launcher_mode.nproc_of(trainer, settings, mode)
    if not (launched or alone) and (problem := describe_own_ranks(trainer, mode, nproc)):
        raise Objection(f"container {trainer['name']}: {problem}")
    job = replace(_job(owner, settings, nproc, mode), sidecar_settings=sidecar_settings)
    grace_s = int(spec.get("terminationGracePeriodSeconds") or pods.DEFAULT_GRACE_S)
    warnings: tuple[str, ...] = ()
    if alone:
        warnings = _beside(trainer)
    elif field := kubelet_restarts(spec, trainer["name"]):
        raise Objection(
            f"{field} would make the kubelet restart the launcher, but the launcher restarts workers itself: remove it"
        )
    elif not launched:
        warnings = _behind_launcher(trainer, job, grace_s)
    if spec.get("restartPolicy", "Never") != "Never":
        spec["restartPolicy"] = "Never"
        warnings += (
            "restartPolicy was changed to Never: the launcher restarts workers, and a pod that ends is replaced",
        )
    _add(spec, "volumes", pods.volumes(job, () if alone else (membership_secret_name(job),)))
    if host_port is not None:
        declare_host_ports(trainer, host_port)
    sidecar = _sidecar(job, owner, image, grace_s, host_port, alone=alone)
    if all(container["name"] != names.SIDECAR_CONTAINER for container in spec.get("initContainers", ())):
        spec["initContainers"] = [sidecar, *spec.get("initContainers", ())]
    return warnings


def _job(owner: Owner, settings: InjectionSettings, nproc: int, mode: str) -> Job:
    """The job, as far as a pod's containers depend on it."""
    world = replace(settings.of_world(nproc, actives=1, spares=0), mode=mode, min_actives=0)
    spec = JobSpec((), world)
    return Job("", owner.group, owner.membership, 1, "", False, 0.0, None, spec, JobStatus())


def _behind_launcher(trainer: dict[str, Any], job: Job, grace_s: int) -> tuple[str, ...]:
    warnings: tuple[str, ...] = ()
    if job.world.mode == TORCHRUN:
        others = [x["name"] for x in trainer.get("env", ()) if x["name"] in launcher_mode.RENDEZVOUS_VARIABLES]
        if others:
            warnings = (
                f"{', '.join(others)} of container {trainer['name']} were removed, because Understudy configures the "
                "rendezvous",
            )
            trainer["env"] = [x for x in trainer["env"] if x["name"] not in others]
    pods.wrap(trainer, job, None, grace_s, in_facts={})
    return warnings


def _beside(trainer: dict[str, Any]) -> tuple[str, ...]:
    """The script stays pid 1, and can import understudy_torch."""
    mount = {"name": names.SHARED_VOLUME, "mountPath": names.SHARED_FOLDER}
    _add(trainer, "volumeMounts", [mount])
    stub = f"{names.SHARED_FOLDER}/{names.PLAIN_SCRIPT}"
    if not trainer.get("command"):
        folder = f"{names.SHARED_FOLDER}/{names.PYTHON_FOLDER}"
        return (
            f"container {trainer['name']} has no command, so its PYTHONPATH was not changed: add {folder} to it to "
            "import understudy_torch",
        )
    if stub not in trainer["command"]:
        trainer["command"] = ["/bin/sh", stub, *trainer["command"]]
    return ()


def _sidecar(job: Job, owner: Owner, image: str, grace_s: int, host_port: int | None, *, alone: bool) -> dict[str, Any]:
    sidecar = pods.sidecar_container(job, None, image, grace_s, host_port)
    sidecar["args"] = [ALONE] if alone else [SUPERVISED]
    if not alone:
        sidecar["env"].append({"name": names.ENV_PLACE, "value": str(owner.place)})
    return sidecar


def _add(holder: dict[str, Any], field: str, wanted: list[dict[str, Any]]) -> None:
    """Add those that are missing by name."""
    present = {entry["name"] for entry in holder.get(field, ())}
    missing = [entry for entry in wanted if entry["name"] not in present]
    if missing:
        holder[field] = [*holder.get(field, ()), *missing]

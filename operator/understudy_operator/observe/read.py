"""Raw objects -> the plan's frozen facts. Only this module knows where Kubernetes keeps each fact of a job and a pod.

A namespace's users write a pod's labels, annotations, variables and messages. The operator creates pods from their
templates. So no text there makes a pod malformed: otherwise the operator would not see the pods that it creates.

A kubelet may reject a pod that the scheduler has assigned to it (its devices are broken, its topology does not fit). A
container whose command is not in its image cannot start. In both cases none of the job's code has run.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar, cast

from understudy_operator.observe.read_spec import read_spec
from understudy_operator.observe.store import Raw, owner_uid
from understudy_operator.plan.facts.cluster_objects import Controller, Pod
from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.malformed import PartlyMalformed, number_in
from understudy_operator.plan.facts.ownership import controller_of
from understudy_operator.plan.facts.queue import read_queue
from understudy_operator.plan.facts.status import JobStatus, read_job_status
from understudy_operator.plan.facts.trainer import device_limit
from understudy_operator.plan.times.rfc3339 import parse_time
from understudy_operator.runtime import kept_fields
from understudy_operator.runtime.kept_fields import SECRET_VOLUMES, PodStatus, Terminated, secrets_of
from understudy_protocol import pod as names
from understudy_protocol import wire
from understudy_protocol.membership import Close

T = TypeVar("T", kept_fields.Container, kept_fields.ContainerStatus)
#: Condition of a pod whose kubelet has mounted its volumes, and then set up its network.
_HAS_NETWORK = "PodReadyToStartContainers"
#: The scheduler's reason for nodes on which another pod has one of the pod's host ports.
_NO_FREE_PORTS = "didn't have free ports for the requested pod ports"
#: No sidecar listens on a port below: its user is not root.
_LEAST_PORT, _MOST_PORT = 1024, 65535
#: Conditions of a pod that is being evicted: Kubernetes' own, and Kueue's.
_DISRUPTIONS = ("DisruptionTarget", "TerminationTarget")
#: The same, with the reasons for a pod of higher priority.
_PREEMPTIONS = (("DisruptionTarget", "PreemptionByScheduler"), ("TerminationTarget", "Preempted"))


def read_job(raw: Raw) -> Job:
    metadata = raw["metadata"]
    status, wrong = read_job_status(raw)
    created_at, completed_at = read_times(raw, status)
    job = Job(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=int(metadata.get("generation", 1)),
        resource_version=metadata["resourceVersion"],
        deleting="deletionTimestamp" in metadata,
        orphans="orphan" in metadata.get("finalizers", ()),
        created_at=created_at,
        completed_at=completed_at,
        status=status,
        spec=read_spec(raw),
        queue=read_queue(metadata.get("labels", {})),
        drill_request=(metadata.get("annotations") or {}).get(names.ANNOTATION_DRILL, ""),
    )
    if wrong:
        raise PartlyMalformed(wrong, job)
    return job


def read_times(raw: Raw, status: JobStatus) -> tuple[float, float | None]:
    """The times at which a job was created and ended."""
    ended = status.completion_time
    return parse_time(raw["metadata"]["creationTimestamp"]), parse_time(ended) if ended else None


def read_number_label(labels: Mapping[str, str], name: str) -> int:
    """A number in a label; 0 if the label is missing or is not a number."""
    return number_in(labels.get(name)) or 0


def read_pod(kept: Raw) -> Pod:
    """kept: a pod's fields from kept_fields.select_pod_fields."""
    raw = cast(kept_fields.RawPod, kept)
    metadata, status = raw["metadata"], raw.get("status", {})
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    sidecar = _container(status.get("initContainerStatuses"), names.SIDECAR_CONTAINER) or {}
    spec = raw["spec"]
    deleted = metadata.get("deletionTimestamp")
    index = number_in(_environment(spec, names.ENV_INDEX))
    sidecar_ran = bool(sidecar.get("started")) or any("terminated" in state for state in _states(sidecar))
    return Pod(
        uid=metadata["uid"],
        name=metadata["name"],
        node=spec.get("nodeName", ""),
        ip=status.get("podIP", ""),
        phase=status.get("phase", "Pending"),
        spare=index is None,
        index=index,
        labels=labels,
        annotations=annotations,
        created_at=parse_time(metadata["creationTimestamp"] or ""),
        deleting_since=parse_time(deleted) - (metadata.get("deletionGracePeriodSeconds") or 0) if deleted else None,
        grace_s=_grace_s(spec),
        sidecar_started=bool(sidecar.get("started")) and "running" in sidecar.get("state", {}),
        sidecar_ran=sidecar_ran,
        close=_close(sidecar),
        trouble=_trouble(status),
        out_of_memory=_out_of_memory(spec, status),
        attempt=read_number_label(labels, names.LABEL_ATTEMPT),
        version=metadata.get("resourceVersion", ""),
        gates=tuple(gate["name"] for gate in spec.get("schedulingGates") or ()),
        finalizers=tuple(metadata.get("finalizers") or ()),
        disruption=_disruption(status),
        is_preempted=_is_preempted(status),
        blocking_finalizers=_blocking_finalizers(metadata),
        waiting_since=_waiting_since(status),
        failure=failure(status),
        could_start=could_start(status, sidecar_ran),
        ready=_is_true(status, "Ready"),
        unready_since=_since(status, "Ready", "False"),
        nominated_node=status.get("nominatedNodeName", ""),
        owner=owner_uid(kept),
        controller=Controller(*(str(controller_of(kept).get(field, "")) for field in ("kind", "name", "uid"))),
        secrets=_secrets(spec),
        port=_port(spec),
        lacks_port_since=_lacks_port_since(status),
        volumes_mounted=_is_true(status, _HAS_NETWORK),
        devices=device_limit(_trainer(spec) or {}),
        trainer_started_at=_trainer_started_at(spec, status),
    )


def _grace_s(spec: kept_fields.PodSpec) -> float:
    value = spec.get("terminationGracePeriodSeconds")
    return 30.0 if value is None else float(value)


def _port(spec: kept_fields.PodSpec) -> int:
    """The port of the sidecar. Users may write anything: if it is no valid port, the operator calls the default
    port.
    """
    port = number_in(_environment(spec, names.ENV_PORT))
    return port if port is not None and _LEAST_PORT <= port <= _MOST_PORT else names.COORDINATOR_PORT


def _lacks_port_since(status: kept_fields.PodStatus) -> float:
    """The scheduler names its reasons in the text alone."""
    unscheduled = (x for x in status.get("conditions") or () if x["type"] == "PodScheduled" and x["status"] == "False")
    for condition in unscheduled:
        if _NO_FREE_PORTS in condition.get("message", "") and (since := condition.get("lastTransitionTime")):
            return parse_time(since)
    return 0.0


def _secrets(spec: kept_fields.PodSpec) -> frozenset[str]:
    volumes = (volume for volume in spec.get("volumes") or () if volume.get("name") in SECRET_VOLUMES)
    return frozenset(secret for volume in volumes for secret in secrets_of(volume))


def _is_true(status: kept_fields.PodStatus, condition: str) -> bool:
    return any(x["type"] == condition and x["status"] == "True" for x in status.get("conditions") or ())


def _since(status: kept_fields.PodStatus, condition: str, value: str) -> float:
    """When the condition got that value; 0 if it has another value."""
    matching = (x for x in status.get("conditions") or () if x["type"] == condition and x["status"] == value)
    since = next((x.get("lastTransitionTime") for x in matching), None)
    return parse_time(since) if since else 0.0


def _container(entries: Iterable[T] | None, name: str) -> T | None:
    return next((entry for entry in entries or () if entry.get("name") == name), None)


def _environment(spec: kept_fields.PodSpec, variable: str) -> str:
    """The value of the sidecar's variable. All other init containers belong to the template."""
    sidecar = _container(spec.get("initContainers"), names.SIDECAR_CONTAINER) or {}
    values = (entry.get("value", "") for entry in sidecar.get("env") or () if entry.get("name") == variable)
    return str(next(values, ""))


def _states(
    container: kept_fields.ContainerStatus,
) -> tuple[kept_fields.ContainerState, kept_fields.ContainerState]:
    return container.get("state", {}), container.get("lastState", {})


def _close(sidecar: kept_fields.ContainerStatus) -> Close | None:
    for state in _states(sidecar):
        try:
            close = wire.decode(state.get("terminated", {}).get("message", ""), {"Close": Close})
        except wire.WireError:
            continue  # the kubelet's text, or the end of a log
        if isinstance(close, Close):
            return close
    return None


def _trainer(spec: kept_fields.PodSpec) -> kept_fields.Container | None:
    return next((c for c in spec.get("containers") or () if names.ENV_NPROC in _variables(c)), None)


def _trainer_started_at(spec: kept_fields.PodSpec, status: kept_fields.PodStatus) -> float:
    trainer = _trainer(spec)
    trainer_status = None if trainer is None else _container(status.get("containerStatuses"), trainer["name"])
    started_at = (trainer_status or {}).get("state", {}).get("running", {}).get("startedAt")
    return parse_time(started_at) if started_at else 0.0


def _out_of_memory(spec: kept_fields.PodSpec, status: kept_fields.PodStatus) -> str:
    trainer = _trainer(spec)
    if trainer is None:
        return ""
    trainer_status = _container(status.get("containerStatuses"), trainer["name"]) or {}
    if not any(state.get("terminated", {}).get("reason") == "OOMKilled" for state in _states(trainer_status)):
        return ""
    limit = ((trainer.get("resources") or {}).get("limits") or {}).get("memory", "")
    return f"container {trainer['name']} ran out of memory" + (f" (limit {limit})" if limit else "")


def _disruption(status: kept_fields.PodStatus) -> str:
    for condition in status.get("conditions") or ():
        if condition["type"] in _DISRUPTIONS and condition["status"] == "True":
            return f"it was disrupted: {condition.get('reason', '')}: {condition.get('message', '')}"
    return ""


def _is_preempted(status: kept_fields.PodStatus) -> bool:
    return any(
        condition["status"] == "True" and (condition["type"], condition.get("reason")) in _PREEMPTIONS
        for condition in status.get("conditions") or ()
    )


def _blocking_finalizers(metadata: kept_fields.ObjectMeta) -> tuple[str, ...]:
    """The finalizers of a pod that has ended: its grace is 0, because its kubelet has finished or a user forced it."""
    has_ended = "deletionTimestamp" in metadata and metadata.get("deletionGracePeriodSeconds") == 0
    return tuple(metadata.get("finalizers") or ()) if has_ended else ()


def _waiting_since(status: kept_fields.PodStatus) -> float:
    """When the pod got its node, if none of its containers has started."""
    for entry in _containers(status):
        if {"running", "terminated"} & entry.get("state", {}).keys() or entry.get("lastState"):
            return 0.0
    return _since(status, "PodScheduled", "True")


def _containers(status: kept_fields.PodStatus) -> tuple[kept_fields.ContainerStatus, ...]:
    return (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))


def _variables(container: kept_fields.Container) -> set[str]:
    return {entry.get("name", "") for entry in container.get("env") or ()}


def _trouble(status: kept_fields.PodStatus) -> str:
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            if condition.get("reason") == "SchedulingGated":
                return ""  # a controller or user holds it back on purpose
            return f"{condition.get('reason', '')}: {condition.get('message', '')}"
    for container in _containers(status):
        waiting = container.get("state", {}).get("waiting", {})
        if waiting.get("reason") not in (None, "PodInitializing", "ContainerCreating"):
            return f"container {container['name']}: {waiting['reason']}: {waiting.get('message', '')}"
    return ""


_NOT_STARTED = ("StartError", "ContainerCannotRun")
_SHELL = '"/bin/sh"'
_NO_SHELL = "the image has no /bin/sh, which starts the launcher: set launcher.python to the path of the image's Python"


def failure(status: PodStatus) -> str:
    """The reason as text; "" if the pod has not failed."""
    if status.get("phase") != "Failed":
        return ""
    if status.get("reason"):
        return _joined(status["reason"], status.get("message", ""))
    for name, end in _ends(status):
        if end.get("exitCode") and name != names.SIDECAR_CONTAINER:  # the sidecar's message is the close
            detail = _joined(end.get("reason", ""), end.get("message", ""))
            if end.get("reason") in _NOT_STARTED and _SHELL in end.get("message", ""):
                detail = f"{detail}; {_NO_SHELL}"
            return _joined(f"container {name} ended with exit code {end['exitCode']}", detail)
    return _joined("", status.get("message", ""))


def could_start(status: PodStatus, sidecar_ran: bool) -> bool:
    """Whether a failed pod could start. True for other pods."""
    if status.get("phase") != "Failed":
        return True
    return sidecar_ran and not any(end.get("reason") in _NOT_STARTED for _, end in _ends(status))


def _ends(status: PodStatus) -> Iterator[tuple[str, Terminated]]:
    for container in (*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())):
        yield container["name"], container.get("state", {}).get("terminated", {})


def _joined(*parts: str) -> str:
    return ": ".join(part for part in parts if part)

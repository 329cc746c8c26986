"""Raw objects -> the plan's frozen facts. The only place that knows where Kubernetes keeps what.

A pod's labels, annotations, variables and messages are anything that its namespace's users write. The operator makes
pods from their templates: so no text there makes a pod malformed, or the operator would not see the pods that it makes.
"""

from collections.abc import Iterable, Mapping
from typing import TypeVar, cast

from understudy_operator.observe import shapes
from understudy_operator.observe.read_failure import could_start, failure
from understudy_operator.observe.read_spec import read_spec
from understudy_operator.observe.read_status import read_job_status
from understudy_operator.observe.store import Raw, owner_uid
from understudy_operator.observe.trim import SECRET_VOLUMES, secret_of
from understudy_operator.plan.malformed import PartlyMalformed, number_in
from understudy_operator.plan.observed import Controller, Job, Pod
from understudy_operator.plan.ownership import controller_of
from understudy_operator.plan.queue import read_queue
from understudy_operator.plan.rfc3339 import unix
from understudy_protocol import pod as names
from understudy_protocol import wire
from understudy_protocol.membership import Close

T = TypeVar("T", shapes.Container, shapes.ContainerStatus)
#: Condition of a pod whose kubelet has mounted its volumes, and then given it a network.
_HAS_NETWORK = "PodReadyToStartContainers"
#: Conditions of a pod that somebody takes away: Kubernetes' own, and Kueue's.
_DISRUPTIONS = ("DisruptionTarget", "TerminationTarget")


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
    )
    if wrong:
        raise PartlyMalformed(wrong, job)
    return job


def read_times(raw: Raw, status: Raw) -> tuple[float, float | None]:
    """When a job was created, and when it ended."""
    ended = status.get("completionTime")
    return unix(raw["metadata"]["creationTimestamp"]), unix(ended) if ended else None


def counted(labels: Mapping[str, str], name: str) -> int:
    """A number in a label; 0 where there is none, or somebody has written something else."""
    return number_in(labels.get(name)) or 0


def read_pod(kept: Raw) -> Pod:
    """kept: the fields of a pod that trim.trimmed_pod has kept."""
    raw = cast(shapes.Pod, kept)
    metadata, status = raw["metadata"], raw.get("status", {})
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    sidecar = _container(status.get("initContainerStatuses"), names.SIDECAR_CONTAINER) or {}
    spec = raw["spec"]
    deleted = metadata.get("deletionTimestamp")
    index = number_in(_environment(spec, names.ENV_INDEX))
    sidecar_ran = bool(sidecar.get("started")) or _ended_once(sidecar)
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
        created_at=unix(metadata["creationTimestamp"] or ""),
        deleting_since=unix(deleted) - (metadata.get("deletionGracePeriodSeconds") or 0) if deleted else None,
        grace_s=_grace_s(spec),
        sidecar_started=bool(sidecar.get("started")) and "running" in sidecar.get("state", {}),
        sidecar_ran=sidecar_ran,
        close=_close(sidecar),
        trouble=_trouble(status),
        out_of_memory=_out_of_memory(spec, status),
        attempt=counted(labels, names.LABEL_ATTEMPT),
        version=metadata.get("resourceVersion", ""),
        gates=tuple(gate["name"] for gate in spec.get("schedulingGates") or ()),
        finalizers=tuple(metadata.get("finalizers") or ()),
        disruption=_disruption(status),
        held_by=_held_by(metadata),
        waits_since=_waits_since(status),
        failure=failure(status),
        could_start=could_start(status, sidecar_ran),
        ready=_is_true(status, "Ready"),
        unready_since=_unready_since(status),
        nominated=status.get("nominatedNodeName", ""),
        owner=owner_uid(kept),
        controller=Controller(*(str(controller_of(kept).get(field, "")) for field in ("kind", "name", "uid"))),
        secrets=_secrets(spec),
        volumes_mounted=_is_true(status, _HAS_NETWORK),
    )


def _grace_s(spec: shapes.PodSpec) -> float:
    told = spec.get("terminationGracePeriodSeconds")
    return 30.0 if told is None else float(told)


def _secrets(spec: shapes.PodSpec) -> frozenset[str]:
    return frozenset(secret_of(volume) for volume in spec.get("volumes") or () if volume.get("name") in SECRET_VOLUMES)


def _is_true(status: shapes.PodStatus, condition: str) -> bool:
    return any(x["type"] == condition and x["status"] == "True" for x in status.get("conditions") or ())


def _unready_since(status: shapes.PodStatus) -> float:
    return _since(status, "Ready", "False")


def _since(status: shapes.PodStatus, condition: str, value: str) -> float:
    """When the condition got that value; 0 if it has another one."""
    told = (x for x in status.get("conditions") or () if x["type"] == condition and x["status"] == value)
    since = next((x.get("lastTransitionTime") for x in told), None)
    return unix(since) if since else 0.0


def told_address(kept: Raw) -> str:
    """The address of the coordinator's Service that a pod was made with."""
    return _environment(cast(shapes.Pod, kept)["spec"], names.ENV_COORDINATOR)


def _container(entries: Iterable[T] | None, name: str) -> T | None:
    return next((entry for entry in entries or () if entry.get("name") == name), None)


def _environment(spec: shapes.PodSpec, variable: str) -> str:
    """Of the sidecar: every other init container is the template's own."""
    sidecar = _container(spec.get("initContainers"), names.SIDECAR_CONTAINER) or {}
    told = (entry.get("value", "") for entry in sidecar.get("env") or () if entry.get("name") == variable)
    return str(next(told, ""))


def _ended_once(container: shapes.ContainerStatus) -> bool:
    return any("terminated" in state for state in _states(container))


def _states(container: shapes.ContainerStatus) -> tuple[shapes.State, shapes.State]:
    return container.get("state", {}), container.get("lastState", {})


def _close(sidecar: shapes.ContainerStatus) -> Close | None:
    for state in _states(sidecar):
        try:
            close = wire.decode(state.get("terminated", {}).get("message", ""), {"Close": Close})
        except wire.WireError:
            continue  # the kubelet's words, or a log's end
        if isinstance(close, Close):
            return close
    return None


def _out_of_memory(spec: shapes.PodSpec, status: shapes.PodStatus) -> str:
    trainer = next((c for c in spec.get("containers") or () if names.ENV_NPROC in _variables(c)), None)
    if trainer is None:
        return ""
    told = _container(status.get("containerStatuses"), trainer["name"]) or {}
    if not any(state.get("terminated", {}).get("reason") == "OOMKilled" for state in _states(told)):
        return ""
    limit = ((trainer.get("resources") or {}).get("limits") or {}).get("memory", "")
    return f"container {trainer['name']} ran out of memory" + (f" (limit {limit})" if limit else "")


def _disruption(status: shapes.PodStatus) -> str:
    for condition in status.get("conditions") or ():
        if condition["type"] in _DISRUPTIONS and condition["status"] == "True":
            return f"it was disrupted: {condition.get('reason', '')}: {condition.get('message', '')}"
    return ""


def _held_by(metadata: shapes.Metadata) -> tuple[str, ...]:
    """A pod whose grace is 0 is gone, in its kubelet's word or by somebody's order, but for its finalizers."""
    over = "deletionTimestamp" in metadata and metadata.get("deletionGracePeriodSeconds") == 0
    return tuple(metadata.get("finalizers") or ()) if over else ()


def _waits_since(status: shapes.PodStatus) -> float:
    """When it got its node, if no container of it has begun yet."""
    for entry in _containers(status):
        if {"running", "terminated"} & entry.get("state", {}).keys() or entry.get("lastState"):
            return 0.0
    return _since(status, "PodScheduled", "True")


def _containers(status: shapes.PodStatus) -> tuple[shapes.ContainerStatus, ...]:
    return (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))


def _variables(container: shapes.Container) -> set[str]:
    return {entry.get("name", "") for entry in container.get("env") or ()}


def _trouble(status: shapes.PodStatus) -> str:
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            if condition.get("reason") == "SchedulingGated":
                return ""  # somebody keeps it from being scheduled, on purpose
            return f"{condition.get('reason', '')}: {condition.get('message', '')}"
    for container in _containers(status):
        waiting = container.get("state", {}).get("waiting", {})
        if waiting.get("reason") not in (None, "PodInitializing", "ContainerCreating"):
            return f"container {container['name']}: {waiting['reason']}: {waiting.get('message', '')}"
    return ""

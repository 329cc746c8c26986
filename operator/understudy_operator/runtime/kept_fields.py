"""The only list of the fields that the operator decodes, keeps and reads of pods and nodes, with their types; and the
selection of an object's fields. The whole objects of a job of 5,000 pods take 400 MB.

The readers (observe/) read the types below: the type checker rejects a read of a field that this list lacks.

Rules: metadata loses managedFields and long annotations (the longest is kubectl's copy of the manifest). A node's long
annotations and messages are cut. A pod keeps the variables that describe its purpose, and the volumes of the operator's
Secrets. A job keeps its spec, because its pods are created from it. A pod's list of avoided nodes may be long: it is
kept, once for all pods with the same list. The result has a name, and the types below. Any other object raises
Malformed.
"""

import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, TypedDict

import msgspec

from understudy_operator.plan.facts.malformed import Malformed
from understudy_operator.plan.facts.trainer import is_device
from understudy_protocol import pod as names

Raw = Mapping[str, Any]
LONGEST_ANNOTATION = 1024
#: For a message in a condition of a node. A source may list several codes in one message.
LONGEST_MESSAGE = 4096
#: Volumes of a pod with a Secret of the operator.
SECRET_VOLUMES = (names.POD_VOLUME, names.ROLLOUT_VOLUME)
#: Fields that are objects, in objects of any kind.
_OBJECTS = ("spec", "status")
_CONTAINERS = ("initContainers", "containers")
_NODES = (names.ANNOTATION_AVOIDED_NODES, names.ANNOTATION_LEAST_PREFERRED_NODES)
#: Annotations that are kept at any length.
_WHOLE = (names.ANNOTATION_WRITTEN_FIELDS,)
#: Variables that describe the pod's purpose. The operator ignores all others.
_VARIABLES = (names.ENV_INDEX, names.ENV_NPROC, names.ENV_PORT)


class OwnerReference(TypedDict, total=False):
    apiVersion: str
    kind: str
    name: str
    uid: str
    controller: bool | None
    blockOwnerDeletion: bool | None


class ObjectMeta(TypedDict, total=False):
    """All fields but managedFields, which is the longest part of most objects."""

    name: str
    generateName: str
    namespace: str
    uid: str
    resourceVersion: str
    generation: int
    creationTimestamp: str | None
    deletionTimestamp: str
    deletionGracePeriodSeconds: int | None
    labels: dict[str, str] | None
    annotations: dict[str, str] | None
    ownerReferences: list[OwnerReference] | None
    finalizers: list[str] | None


class _Variable(TypedDict, total=False):
    name: str
    value: str | None


class _Resources(TypedDict, total=False):
    limits: dict[str, str | int | float] | None


class Container(TypedDict, total=False):
    name: str
    env: list[_Variable] | None
    resources: _Resources | None


class _SecretSource(TypedDict, total=False):
    secretName: str


class _SecretProjection(TypedDict, total=False):
    name: str


class _Projection(TypedDict, total=False):
    secret: _SecretProjection | None


class _ProjectedSource(TypedDict, total=False):
    sources: list[_Projection] | None


class Volume(TypedDict, total=False):
    name: str
    secret: _SecretSource | None
    projected: _ProjectedSource | None


class _Gate(TypedDict, total=False):
    name: str


class PodSpec(TypedDict, total=False):
    nodeName: str
    terminationGracePeriodSeconds: int | None
    schedulingGates: list[_Gate] | None
    initContainers: list[Container] | None
    containers: list[Container] | None
    volumes: list[Volume] | None


class _Waiting(TypedDict, total=False):
    reason: str
    message: str


class Terminated(TypedDict, total=False):
    exitCode: int
    reason: str
    message: str


class Running(TypedDict, total=False):
    startedAt: str | None


class ContainerState(TypedDict, total=False):
    running: Running
    waiting: _Waiting
    terminated: Terminated


class ContainerStatus(TypedDict, total=False):
    name: str
    state: ContainerState
    lastState: ContainerState
    started: bool | None
    ready: bool
    restartCount: int


class Condition(TypedDict, total=False):
    type: str
    status: str
    reason: str
    message: str
    lastTransitionTime: str | None


class PodStatus(TypedDict, total=False):
    phase: str
    podIP: str
    nominatedNodeName: str
    reason: str
    message: str
    initContainerStatuses: list[ContainerStatus] | None
    containerStatuses: list[ContainerStatus] | None
    conditions: list[Condition] | None


class RawPod(TypedDict, total=False):
    metadata: ObjectMeta
    spec: PodSpec
    status: PodStatus


class Taint(TypedDict, total=False):
    key: str
    value: str
    effect: str
    timeAdded: str | None


class _NodeSpec(TypedDict, total=False):
    taints: list[Taint] | None
    unschedulable: bool | None


class _NodeStatus(TypedDict, total=False):
    conditions: list[Condition] | None


class RawNode(TypedDict, total=False):
    metadata: ObjectMeta
    spec: _NodeSpec
    status: _NodeStatus


class _JobSpec(TypedDict, total=False):
    """The numbers of a Job that the operator reads. All other fields stay as they are."""

    parallelism: int | None
    completions: int | None
    backoffLimit: int | None
    suspend: bool | None
    template: dict[str, Any]


class _Uncounted(TypedDict, total=False):
    succeeded: list[str] | None
    failed: list[str] | None


class _JobStatus(TypedDict, total=False):
    startTime: str | None
    failed: int
    active: int
    terminating: int | None
    ready: int | None
    succeeded: int
    conditions: list[Condition] | None
    uncountedTerminatedPods: _Uncounted | None


class _Job(TypedDict, total=False):
    spec: _JobSpec
    status: _JobStatus


def select_fields(raw: Raw) -> Raw:
    """For objects of all kinds except pods, nodes and Jobs."""
    if not isinstance(raw, Mapping):
        raise Malformed(f"expected an object, got {type(raw).__name__}")
    for field in _OBJECTS:
        if not isinstance(raw.get(field, {}), Mapping):
            raise Malformed(f"{field}: expected an object, got {type(raw[field]).__name__}")
    return {**raw, "metadata": _metadata(_fields(raw.get("metadata"), ObjectMeta, "metadata"))}


def select_job_fields(raw: Raw) -> Raw:
    """A Job of batch/v1."""
    _fields(raw, _Job)
    return select_fields(raw)


def select_pod_fields(raw: Raw) -> Raw:
    kept = _fields(raw, RawPod)
    kept["metadata"] = _metadata(kept.get("metadata", {}))
    spec = kept.setdefault("spec", {})
    kept.setdefault("status", {})
    for field in _CONTAINERS:
        if field in spec:
            spec[field] = [_container(container) for container in spec[field] or ()]
    volumes = spec.pop("volumes", None) or ()
    mounted = ((volume["name"], secrets_of(volume)) for volume in volumes if volume.get("name") in SECRET_VOLUMES)
    if kept_volumes := _volumes(tuple(mounted)):
        spec["volumes"] = kept_volumes
    if nodes := {name: sys.intern(text) for name, text in _annotations(raw) if name in _NODES}:
        kept["metadata"]["annotations"] |= nodes
    return kept


def select_node_fields(raw: Raw) -> Raw:
    """With all conditions and annotations: the table of fault sources decides which of them are findings."""
    kept = _fields(raw, RawNode)
    metadata = _metadata(kept.get("metadata", {}))
    annotations = {name: text[:LONGEST_ANNOTATION] for name, text in _annotations(raw)}
    kept["metadata"] = {**metadata, "annotations": annotations} if annotations else metadata
    for condition in kept.get("status", {}).get("conditions") or ():
        if "message" in condition:
            condition["message"] = condition["message"][:LONGEST_MESSAGE]
    return kept


def secrets_of(volume: Raw) -> tuple[str, ...]:
    """The names of the Secrets that the volume mounts."""
    sources: Raw = volume.get("projected") or {}
    mounted = [str((source.get("secret") or {}).get("name", "")) for source in sources.get("sources") or ()]
    return tuple(name for name in (str((volume.get("secret") or {}).get("secretName", "")), *mounted) if name)


@lru_cache(4096)
def _volumes(named: tuple[tuple[str, tuple[str, ...]], ...]) -> list[dict[str, Any]]:
    """One list for all pods of a job's attempt. named: pairs of volume name and names of Secrets."""
    return [
        {"name": name, "projected": {"sources": [{"secret": {"name": secret}} for secret in secrets]}}
        for name, secrets in named
    ]


def _annotations(raw: Raw) -> Iterable[tuple[str, str]]:
    annotations: Raw = raw["metadata"].get("annotations") or {}
    return annotations.items()


def _metadata(metadata: Raw) -> dict[str, Any]:
    """metadata: checked fields."""
    kept = {name: value for name, value in metadata.items() if value is not None}
    if not kept.get("name"):
        raise Malformed("metadata.name: missing")
    if "annotations" in kept:
        annotations = kept["annotations"].items()
        kept["annotations"] = {
            name: text for name, text in annotations if len(text) <= LONGEST_ANNOTATION or name in _WHOLE
        }
    return kept


def _container(container: Raw) -> dict[str, Any]:
    kept: dict[str, Any] = {"name": container.get("name", "")}
    if variables := [entry for entry in container.get("env") or () if entry.get("name") in _VARIABLES]:
        kept["env"] = variables
    limits = (container.get("resources") or {}).get("limits") or {}
    if kept_limits := {name: limit for name, limit in limits.items() if name == "memory" or is_device(name)}:
        kept["resources"] = {"limits": kept_limits}
    return kept


def _fields(raw: Any, shape: Any, where: str = "") -> dict[str, Any]:
    """A new object with the listed fields. Raises Malformed."""
    try:
        fields: dict[str, Any] = msgspec.convert(raw, shape)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        field = f"{where}{path.rstrip('`')}".lstrip(".") or "the object"
        raise Malformed(f"{field}: {text}") from None
    return fields

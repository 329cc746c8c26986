"""The only list of the fields of pods and nodes that the operator decodes, keeps and reads, with their types.

There are thousands of pods and nodes. The operator decodes only 2 KB of a pod of 10 KB. kept_fields.py selects the same
fields of objects that were decoded whole. read.py, read_failure.py and read_node.py read the types below: the type
checker rejects a read of a field that this list lacks, and the readers' tests use selected fields. An object whose
fields have other types is decoded whole, and the store rejects it. So items of a list and lines of a watch are decoded
one by one, and one malformed object does not affect the others. Of an object that has too many values, or is nested
too deeply, only the name is kept, with UNREADABLE.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypedDict

import msgspec

from understudy_operator.plan.facts.malformed import Malformed
from understudy_operator.runtime.json_size import values_in

Raw = dict[str, Any]
#: The API server's limit for nesting.
DEEPEST = 10_000
#: Limit for commas, brackets and braces of an object. The largest objects are TrainingJobs of thousands of Jobs, whose
#: status counts the restarts of each.
MOST_VALUES = 100_000
#: Key of an object of which only the name was decoded; its value is the reason. No object of the API server has it.
UNREADABLE = "cannot be read"
_TOO_DEEP = "spec: it is nested too deeply: remove the fields that no Kubernetes version knows"


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


class _Source(TypedDict, total=False):
    secretName: str


class Volume(TypedDict, total=False):
    name: str
    secret: _Source | None


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


class ContainerState(TypedDict, total=False):
    running: dict[str, Any]
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


class _Page(TypedDict):
    metadata: Raw
    items: list[msgspec.Raw] | None


class _Identity(TypedDict, total=False):
    namespace: str
    name: str
    uid: str
    resourceVersion: str


class _Named(msgspec.Struct):
    """The fields that are read of an object that is not decoded."""

    metadata: _Identity = {}


class WatchEvent(msgspec.Struct):
    """A line of a watch."""

    type: str
    object: msgspec.Raw


Decode = Callable[[bytes | msgspec.Raw], Any]
_ANY: Decode = msgspec.json.Decoder().decode
_OBJECTS: dict[str, Decode] = {
    "pods": msgspec.json.Decoder(RawPod).decode,
    "nodes": msgspec.json.Decoder(RawNode).decode,
}
_PAGE = msgspec.json.Decoder(_Page).decode
_WATCH_EVENT = msgspec.json.Decoder(WatchEvent).decode
_NAMED = msgspec.json.Decoder(_Named).decode
#: Their strings may have any number of commas, and no tenant writes them.
_UNLIMITED = ("configmaps",)


def decode_watch_event(line: bytes) -> WatchEvent:
    """Raises msgspec.DecodeError if the line is not a watch event."""
    try:
        return _WATCH_EVENT(line)
    except RecursionError:
        with _deep_stack():
            return _WATCH_EVENT(line)


def decode_pod_fields(raw: Any) -> Raw:
    """A new object with the listed fields of a pod. Raises Malformed."""
    return _fields(raw, RawPod)


def decode_node_fields(raw: Any) -> Raw:
    """A new object with the listed fields of a node. Raises Malformed."""
    return _fields(raw, RawNode)


def check_job_fields(raw: Any) -> None:
    """Raises Malformed."""
    _fields(raw, _Job)


def decode_metadata_fields(raw: Any) -> Raw:
    """A new object with the listed fields of an object's metadata. Raises Malformed."""
    return _fields(raw, ObjectMeta, "metadata")


def object_of(resource: str, event: WatchEvent) -> Raw:
    """The object in the line. Raises msgspec.DecodeError if there is none."""
    raw: Raw = _one(resource)(event.object)
    return raw


def decoder(method: str, path: str) -> Decode:
    """The decoder of the answer to that request. A deletion's answer may have another kind: a Status."""
    _, prefix, *parts = path.split("/")
    parts = parts[1 if prefix == "api" else 2 :]
    if method == "DELETE" or not parts:
        return _one("")
    if parts[0] == "namespaces" and len(parts) > 2:
        parts = parts[2:]
    resource = parts[0] if prefix == "api" else ""
    return _page_of(_one(resource)) if len(parts) == 1 and method == "GET" else _one(resource)


def _one(resource: str) -> Decode:
    decode = _OBJECTS.get(resource, _ANY)

    def read(data: bytes | msgspec.Raw) -> Any:
        if resource not in _UNLIMITED and (values := values_in(data)) > MOST_VALUES:
            return _decode_identity(
                data, f"the object has {values} values; at most {MOST_VALUES} are allowed: make it smaller"
            )
        try:
            return decode(data)
        except msgspec.ValidationError:
            return _ANY(data)
        except RecursionError:
            return _decode_identity(data, _TOO_DEEP)

    return read


def _decode_identity(data: bytes | msgspec.Raw, reason: str) -> Raw:
    with _deep_stack():
        return unreadable(_NAMED(data).metadata, reason)


def unreadable(metadata: Mapping[str, Any], reason: str) -> Raw:
    """A replacement for an object, with its name, uid and version."""
    kept = {field: metadata[field] for field in _Identity.__annotations__ if isinstance(metadata.get(field), str)}
    return {"metadata": kept, UNREADABLE: reason}


def _page_of(one: Decode) -> Decode:
    def read(data: bytes | msgspec.Raw) -> Any:
        try:
            page = _PAGE(data)
        except RecursionError:
            with _deep_stack():
                page = _PAGE(data)
        # One by one, as the caller takes them: the objects of a page may take many times the memory of its bytes.
        return {"metadata": page["metadata"], "items": map(one, page["items"] or ())}

    return read


@contextmanager
def _deep_stack() -> Iterator[None]:
    """Allow to skip a value that is nested as deeply as the API server allows; it is not decoded."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + 2 * DEEPEST)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def _fields(raw: Any, shape: Any, where: str = "") -> Raw:
    try:
        fields: Raw = msgspec.convert(raw, shape)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        field = f"{where}{path.rstrip('`')}".lstrip(".") or "the object"
        raise Malformed(f"{field}: {text}") from None
    return fields

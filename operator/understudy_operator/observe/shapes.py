"""The fields of pods and nodes that the operator decodes, keeps and reads: the one list of them.

There are thousands of both: a pod of 10 KB becomes the objects of 2 KB, and no more are ever made. trim.py keeps these
fields also of an object that was decoded whole, so that a field that read.py needs and this list lacks is missing in
every test. No value is checked here: the API server's objects are taken as they are.
"""

from collections.abc import Callable
from typing import Any, TypedDict

import msgspec

Raw = dict[str, Any]


class Metadata(TypedDict, total=False):
    """All but managedFields, which is the longest part of most objects."""

    name: Any
    generateName: Any
    namespace: Any
    uid: Any
    resourceVersion: Any
    generation: Any
    creationTimestamp: Any
    deletionTimestamp: Any
    deletionGracePeriodSeconds: Any
    labels: Any
    annotations: Any
    ownerReferences: Any
    finalizers: Any


class _Variable(TypedDict, total=False):
    name: Any
    value: Any


class _Resources(TypedDict, total=False):
    limits: Any


class _Container(TypedDict, total=False):
    name: Any
    env: list[_Variable] | None
    resources: _Resources | None


class _Source(TypedDict, total=False):
    secretName: Any


class _Volume(TypedDict, total=False):
    name: Any
    secret: _Source | None


class _PodSpec(TypedDict, total=False):
    nodeName: Any
    terminationGracePeriodSeconds: Any
    schedulingGates: Any
    initContainers: list[_Container] | None
    containers: list[_Container] | None
    volumes: list[_Volume] | None


class _ContainerStatus(TypedDict, total=False):
    name: Any
    state: Any
    lastState: Any
    started: Any
    ready: Any
    restartCount: Any


class _Condition(TypedDict, total=False):
    type: Any
    status: Any
    reason: Any
    message: Any
    lastTransitionTime: Any


class _PodStatus(TypedDict, total=False):
    phase: Any
    podIP: Any
    nominatedNodeName: Any
    reason: Any
    message: Any
    initContainerStatuses: list[_ContainerStatus] | None
    containerStatuses: list[_ContainerStatus] | None
    conditions: list[_Condition] | None


class _Pod(TypedDict, total=False):
    metadata: Metadata
    spec: _PodSpec
    status: _PodStatus


class _NodeSpec(TypedDict, total=False):
    taints: Any
    unschedulable: Any


class _NodeStatus(TypedDict, total=False):
    conditions: list[_Condition] | None


class _Node(TypedDict, total=False):
    metadata: Metadata
    spec: _NodeSpec
    status: _NodeStatus


class _Pods(TypedDict):
    metadata: Raw
    items: list[_Pod]


class _Nodes(TypedDict):
    metadata: Raw
    items: list[_Node]


class Told(msgspec.Struct):
    """A line of a watch."""

    type: str
    object: msgspec.Raw


Decode = Callable[[bytes | msgspec.Raw], Any]
_ANY: Decode = msgspec.json.Decoder().decode
_OBJECTS: dict[str, Decode] = {
    "pods": msgspec.json.Decoder(_Pod).decode,
    "nodes": msgspec.json.Decoder(_Node).decode,
}
_LISTS: dict[str, Decode] = {
    "pods": msgspec.json.Decoder(_Pods).decode,
    "nodes": msgspec.json.Decoder(_Nodes).decode,
}
told: Callable[[bytes], Told] = msgspec.json.Decoder(Told).decode


def pod_fields(raw: Any) -> Raw:
    """A new object with the listed fields of a pod."""
    fields: Raw = msgspec.convert(raw, _Pod)
    return fields


def node_fields(raw: Any) -> Raw:
    """A new object with the listed fields of a node."""
    fields: Raw = msgspec.convert(raw, _Node)
    return fields


def object_of(resource: str, event: Told) -> Raw:
    """The object that the line tells of."""
    raw: Raw = _OBJECTS.get(resource, _ANY)(event.object)
    return raw


def decoder(method: str, path: str) -> Decode:
    """Of the answer to that request. What a deletion answers with may be of another kind: a Status."""
    if method == "DELETE" or not path.startswith("/api/v1/"):
        return _ANY
    parts = path.split("/")[3:]
    if parts[0] == "namespaces" and len(parts) > 2:
        parts = parts[2:]
    lists = len(parts) == 1 and method == "GET"
    return (_LISTS if lists else _OBJECTS).get(parts[0], _ANY)

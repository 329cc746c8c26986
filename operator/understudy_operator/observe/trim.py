"""What is kept of an object: what is read of it, and no more. A job of 5,000 pods has 400 MB of raw objects otherwise.

Rules: of a pod and of a node the fields of shapes.py. Metadata without managedFields and without long annotations
(kubectl's copy of the manifest is the longest); of a node's long ones the beginning. Of a pod's containers the
variables that tell what it was made for, and of its volumes the one with the job's key. A job keeps its spec: its pods
are made from it. The nodes that a pod was kept off may be many: they are kept, and for all pods that have the same ones
once.
"""

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from understudy_operator.observe.shapes import node_fields, pod_fields
from understudy_protocol import pod as names

Raw = Mapping[str, Any]
LONGEST_ANNOTATION = 1024
_CONTAINERS = ("initContainers", "containers")
_NODES = (names.ANNOTATION_AVOIDS, names.ANNOTATION_PREFERS_NOT)
#: Annotations that are kept however long they are.
_WHOLE = (names.ANNOTATION_WRITTEN,)
#: Variables that tell what a pod was made for; every other one is the containers' own business.
_VARIABLES = (names.ENV_INDEX, names.ENV_NPROC, names.ENV_COORDINATOR)


def trimmed(raw: Raw) -> Raw:
    """An object of any kind but the two that there are thousands of."""
    return {**raw, "metadata": _metadata(raw["metadata"])}


def trimmed_pod(raw: Raw) -> Raw:
    kept = pod_fields(raw)
    spec = kept.setdefault("spec", {})
    kept.setdefault("status", {})
    for field in _CONTAINERS:
        if field in spec:
            spec[field] = [_container(container) for container in spec[field] or ()]
    volumes = spec.pop("volumes", None) or ()
    if names.ANNOTATION_PLACE in (raw["metadata"].get("annotations") or {}):
        spec["volumes"] = [volume for volume in volumes if volume["name"] == names.KEY_VOLUME]
    kept["metadata"] = _metadata(kept["metadata"])
    if nodes := {name: sys.intern(text) for name, text in _annotations(raw) if name in _NODES}:
        kept["metadata"]["annotations"] |= nodes
    return kept


def trimmed_node(raw: Raw) -> Raw:
    """With all of its conditions and annotations: which say something is for the table of fault sources to tell."""
    kept = node_fields(raw)
    annotations = {name: text[:LONGEST_ANNOTATION] for name, text in _annotations(raw)}
    metadata = _metadata(kept["metadata"])
    kept["metadata"] = {**metadata, "annotations": annotations} if annotations else metadata
    return kept


def _annotations(raw: Raw) -> Iterable[tuple[str, str]]:
    annotations: Raw = raw["metadata"].get("annotations") or {}
    return annotations.items()


def _metadata(metadata: Raw) -> dict[str, Any]:
    kept = {name: value for name, value in metadata.items() if name != "managedFields"}
    if "annotations" in kept:
        annotations = kept["annotations"].items()
        kept["annotations"] = {
            name: text for name, text in annotations if len(text) <= LONGEST_ANNOTATION or name in _WHOLE
        }
    return kept


def _container(container: Raw) -> dict[str, Any]:
    kept: dict[str, Any] = {"name": container["name"]}
    if variables := [entry for entry in container.get("env") or () if entry["name"] in _VARIABLES]:
        kept["env"] = variables
    limits = (container.get("resources") or {}).get("limits") or {}
    if memory := limits.get("memory"):
        kept["resources"] = {"limits": {"memory": memory}}
    return kept

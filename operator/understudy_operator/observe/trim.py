"""What is kept of an object: what is read of it, and no more. A job of 5,000 pods has 400 MB of raw objects otherwise.

Rules: metadata without managedFields and without long annotations (kubectl's copy of the manifest is the longest); of a
node's long ones the beginning; of a pod's spec what observe/read.py looks at; of a status no images, ids and addresses
that nobody asks for. A job keeps its spec: its pods are made from it. The nodes that a pod was kept off may be many:
they are kept, and for all pods that have the same ones once.
"""

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from understudy_protocol import pod as names

Raw = Mapping[str, Any]
LONGEST_ANNOTATION = 1024
_CONTAINERS = ("initContainers", "containers")
_STATUSES = ("initContainerStatuses", "containerStatuses")
_NODES = (names.ANNOTATION_AVOIDS, names.ANNOTATION_PREFERS_NOT)
#: Variables that tell what a pod was made for; every other one is the containers' own business.
_VARIABLES = (names.ENV_INDEX, names.ENV_NPROC, names.ENV_COORDINATOR)


def trimmed(raw: Raw) -> Raw:
    """An object of any kind but the two that there are thousands of."""
    return {**raw, "metadata": _metadata(raw["metadata"])}


def trimmed_pod(raw: Raw) -> Raw:
    spec, status = raw.get("spec", {}), raw.get("status", {})
    kept_spec = _only(spec, "nodeName", "terminationGracePeriodSeconds", "schedulingGates")
    kept_status = _only(status, "phase", "podIP", "reason", "message", "nominatedNodeName")
    for field in _CONTAINERS:
        if field in spec:
            kept_spec[field] = [_container(container) for container in spec[field]]
    if names.ANNOTATION_PLACE in raw["metadata"].get("annotations", {}):
        kept_spec["volumes"] = [_of_secret(x) for x in spec.get("volumes", ()) if x["name"] == names.KEY_VOLUME]
    for field in _STATUSES:
        if field in status:
            kept_status[field] = [
                _only(entry, "name", "state", "lastState", "started", "ready", "restartCount")
                for entry in status[field]
            ]
    if "conditions" in status:
        kept_status["conditions"] = _conditions(status["conditions"])
    metadata = _metadata(raw["metadata"])
    if nodes := {name: sys.intern(text) for name, text in _annotations(raw) if name in _NODES}:
        metadata["annotations"] |= nodes
    return {"metadata": metadata, "spec": kept_spec, "status": kept_status}


def trimmed_node(raw: Raw) -> Raw:
    """With all of its conditions and annotations: which say something is for the table of fault sources to tell."""
    annotations = {name: text[:LONGEST_ANNOTATION] for name, text in raw["metadata"].get("annotations", {}).items()}
    metadata = _metadata(raw["metadata"])
    return {
        "metadata": {**metadata, "annotations": annotations} if annotations else metadata,
        "spec": _only(raw.get("spec", {}), "taints", "unschedulable"),
        "status": {"conditions": _conditions(raw.get("status", {}).get("conditions", ()))},
    }


def _annotations(raw: Raw) -> Iterable[tuple[str, str]]:
    told: Raw = raw["metadata"].get("annotations", {})
    return told.items()


def _metadata(metadata: Raw) -> dict[str, Any]:
    kept = {name: value for name, value in metadata.items() if name != "managedFields"}
    if "annotations" in kept:
        annotations = kept["annotations"].items()
        kept["annotations"] = {name: text for name, text in annotations if len(text) <= LONGEST_ANNOTATION}
    return kept


def _container(container: Raw) -> dict[str, Any]:
    kept = _only(container, "name")
    if told := [entry for entry in container.get("env", ()) if entry["name"] in _VARIABLES]:
        kept["env"] = told
    if memory := container.get("resources", {}).get("limits", {}).get("memory"):
        kept["resources"] = {"limits": {"memory": memory}}
    return kept


def _of_secret(volume: Raw) -> dict[str, Any]:
    return {"name": volume["name"], "secret": _only(volume.get("secret", {}), "secretName")}


def _conditions(conditions: Iterable[Raw]) -> list[dict[str, Any]]:
    return [_only(entry, "type", "status", "reason", "message", "lastTransitionTime") for entry in conditions]


def _only(raw: Raw, *wanted: str) -> dict[str, Any]:
    return {name: raw[name] for name in wanted if name in raw}

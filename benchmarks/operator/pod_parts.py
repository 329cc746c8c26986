"""The parts of one of our pods that a JobSet's pod does not have, and the pod without them. Pure."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.operator.manifests import Raw
from understudy_protocol import pod as names

OWN = "understudy.dev/"
#: The Job controller gives it to each pod, too.
KEPT_VARIABLE = "JOB_COMPLETION_INDEX"


def new_pod(pod: Raw) -> Raw:
    """A manifest of the same pod under another name, without what belongs to the existing one."""
    metadata = {key: pod["metadata"][key] for key in ("namespace", "labels", "annotations", "ownerReferences")}
    spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
    name = pod["metadata"]["name"]
    named = {**metadata, "name": name[:-1] + ("y" if name.endswith("x") else "x")}
    return copy.deepcopy({"apiVersion": "v1", "kind": "Pod", "metadata": named, "spec": spec})


def smaller_pods(pod: Raw) -> Iterator[tuple[str, Raw]]:
    """The pod without one part after the other, each with the metric of the part that it has lost last."""
    left = copy.deepcopy(pod)
    for metric, remove in _PARTS.items():
        remove(left)
        yield metric, copy.deepcopy(left)


def size(pod: Raw) -> int:
    """Bytes of JSON, as the API server sends it to a watch."""
    return len(json.dumps(pod, separators=(",", ":")).encode())


def managed_size(pod: Raw) -> int:
    return size(pod["metadata"]["managedFields"])


def _sidecar(pod: Raw) -> Raw:
    first: Raw = pod["spec"]["initContainers"][0]
    assert first["name"] == names.SIDECAR_CONTAINER
    return first


def _remove_from_sidecar(field: str) -> Callable[[Raw], None]:
    def remove(pod: Raw) -> None:
        del _sidecar(pod)[field]

    return remove


def _remove_sidecar(pod: Raw) -> None:
    pod["spec"]["initContainers"].remove(_sidecar(pod))


def _remove_variables(pod: Raw) -> None:
    trainer = pod["spec"]["containers"][0]
    trainer["env"] = [x for x in trainer["env"] if x["name"] == KEPT_VARIABLE]


def _remove_volumes(pod: Raw) -> None:
    own = {names.SHARED_VOLUME, names.STATE_VOLUME, names.POD_VOLUME}
    spec = pod["spec"]
    spec["volumes"] = _unnamed(spec["volumes"], own)
    spec["containers"][0]["volumeMounts"] = _unnamed(spec["containers"][0]["volumeMounts"], own)


def _unnamed(items: list[Any], without: set[str]) -> list[Any]:
    return [item for item in items if item["name"] not in without]


def _remove_labels(pod: Raw) -> None:
    for field in ("labels", "annotations"):
        pod["metadata"][field] = {key: x for key, x in pod["metadata"][field].items() if not key.startswith(OWN)}


_PARTS: dict[str, Callable[[Raw], None]] = {
    "sidecar_variables_bytes": _remove_from_sidecar("env"),
    "sidecar_mounts_bytes": _remove_from_sidecar("volumeMounts"),
    "sidecar_security_bytes": _remove_from_sidecar("securityContext"),
    "sidecar_probe_bytes": _remove_from_sidecar("startupProbe"),
    "sidecar_others_bytes": _remove_sidecar,
    "trainer_variables_bytes": _remove_variables,
    "volumes_bytes": _remove_volumes,
    "own_labels_bytes": _remove_labels,
}

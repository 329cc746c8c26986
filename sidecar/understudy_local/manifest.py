"""A pod's manifest, as the operator writes it, as the environments and the command of two processes. Pure.

A local run and a pod differ only outside the manifest: a pod's fixed paths become folders of the run, and each pod has
an address of the loopback network, on which its sidecar listens at the usual ports.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from understudy_protocol import pod as names

Manifest = Mapping[str, Any]
#: The interface through which members connect to each other; a script can override it.
_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo"}
_DEVICES = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class PodPlacement:
    """Where a pod runs. devices: the GPUs of its node; None: all GPUs of the machine are visible."""

    pod_uid: str
    pod_name: str
    node: str
    ip: str
    folder: Path
    pod_folder: Path  # of the files that a kubelet would write
    shipped: Path
    devices: tuple[str, ...] | None = None


def pod_files(place: PodPlacement, key: str, operator_key: str, facts: str) -> dict[str, str]:
    """The files that a kubelet would write for the pod's sidecar, with their texts."""
    return {
        names.KEY_FILE: key,
        names.OPERATOR_KEY_FILE: operator_key,
        names.JOB_FILE: facts,
        names.POD_NAME_FILE: place.pod_name,
        names.POD_UID_FILE: place.pod_uid,
    }


def sidecar_environment(manifest: Manifest, place: PodPlacement, own: Mapping[str, str]) -> dict[str, str]:
    """own: this process's environment."""
    env = _variables(manifest["spec"]["initContainers"][0], place)
    ours = {
        names.ENV_SHARED_FOLDER: str(place.folder),
        names.ENV_LISTEN: place.ip,
        names.ENV_POD_FOLDER: str(place.pod_folder),
        names.ENV_STATE_FOLDER: str(place.folder),
        names.ENV_SHIPPED_FOLDER: str(place.shipped),
    }
    return {**own, **env, **ours}


def launcher_environment(manifest: Manifest, place: PodPlacement, own: Mapping[str, str]) -> dict[str, str]:
    """The user's own environment comes first, as in a terminal. Python's output is unbuffered."""
    env = {**_LOOPBACK, "PYTHONUNBUFFERED": "1", **own, **_variables(_trainer(manifest), place)}
    env[names.ENV_SHARED_FOLDER] = str(place.folder)
    if place.devices is not None:
        env[_DEVICES] = ",".join(place.devices)
    return env


def launcher_command(manifest: Manifest, place: PodPlacement) -> list[str]:
    return [_relocated(word, place) for word in _trainer(manifest)["command"]]


def devices_of(node: int, nodes: int, nproc: int, devices: Sequence[str]) -> tuple[str, ...] | None:
    """A node's share of the machine's devices: one for each worker, if there are enough of them for all nodes."""
    if not devices or len(devices) < nodes * nproc:
        return None
    return tuple(devices[node * nproc : (node + 1) * nproc])


def _trainer(manifest: Manifest) -> Manifest:
    container: Manifest = manifest["spec"]["containers"][0]
    return container


def _variables(container: Manifest, place: PodPlacement) -> dict[str, str]:
    fields = {"status.podIP": place.ip, "spec.nodeName": place.node}
    value = {}
    for entry in container["env"]:
        source = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        value[entry["name"]] = _relocated(entry["value"], place) if source is None else fields[source]
    return value


def _relocated(word: str, place: PodPlacement) -> str:
    """A path in the pod's shared folder, as a path of this machine."""
    shared = names.SHARED_FOLDER
    return f"{place.folder}{word[len(shared) :]}" if word == shared or word.startswith(f"{shared}/") else word

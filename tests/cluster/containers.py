"""The processes of the host that are a pod's containers, found in the nodes' files.

containerd keeps a folder for each running container, with the runtime's configuration
(Kubernetes' names are annotations there) and the pid of its first process. Reading
those takes milliseconds; a call to containerd or the API server takes a hundred.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .node import Node
from .processes import start_time

TASKS = Path("run/io.containerd.runtime.v2.task/k8s.io")
KUBERNETES = "io.kubernetes.cri."


@dataclass(frozen=True)
class RunningContainer:
    """A container whose first process lives; `pid` is the host's."""

    node: str
    namespace: str
    pod: str
    name: str
    pid: int


def running_containers(nodes: Iterable[Node]) -> Iterator[RunningContainer]:
    """Every running container of these nodes, without the pods' sandboxes."""
    for node in nodes:
        for folder in (node.folder / TASKS).glob("*"):
            found = _read(node, folder)
            if found:
                yield found


def _read(node: Node, folder: Path) -> RunningContainer | None:
    try:
        pid = int((folder / "init.pid").read_text())
        labels = json.loads((folder / "config.json").read_text())["annotations"]
        # The folder of an ended container may still exist, and its pid may belong to another process.
        group = Path(f"/proc/{pid}/cgroup").read_text()
        if f"/{node.group.path}/" not in group or folder.name not in group or start_time(pid) is None:
            return None
        if labels[KUBERNETES + "container-type"] != "container":
            return None
        return RunningContainer(
            node.name,
            labels[KUBERNETES + "sandbox-namespace"],
            labels[KUBERNETES + "sandbox-name"],
            labels[KUBERNETES + "container-name"],
            pid,
        )
    except (OSError, ValueError, KeyError):
        return None

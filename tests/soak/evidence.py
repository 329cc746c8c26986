"""Data that the soak collects from the cluster: samples for trends, and the evidence of a violation."""

import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.machine import Usage
from tests.cluster import Cluster
from tests.e2e.installation import NAMESPACE as SYSTEM
from tests.e2e.objects import listed

OBJECTS = ("pods", "secrets", "services", "leases")


def samples(cluster: Cluster, namespaces: Mapping[str, str]) -> list[tuple[str, str, float]]:
    """Series, unit and value of each container's first process, and of each kind of object. namespaces: job by name."""
    found: list[tuple[str, str, float]] = []
    for namespace, name in {**namespaces, SYSTEM: "system"}.items():
        found += [(f"{name} {kind}", "objects", float(len(listed(cluster, namespace, kind)))) for kind in OBJECTS]
        for pod in listed(cluster, namespace, "pods"):
            for container, pid in cluster.container_pids(namespace, pod["metadata"]["name"]).items():
                with suppress(OSError, KeyError):  # it has ended
                    series, files = f"{name} {container} {pid}", len(list(Path(f"/proc/{pid}/fd").iterdir()))
                    found += [(series, "MB", round(Usage.of(pid).rss_mb, 1)), (series, "files", float(files))]
    return found


def collect(cluster: Cluster, folder: Path, broken: Mapping[str, Sequence[str]], storage: Path | None) -> None:
    """Logs, objects and events of the cluster, the training's own report, and all sentences of each invariant."""
    shutil.rmtree(folder, ignore_errors=True)
    cluster.logs(folder / "logs")
    for invariant, sentences in broken.items():
        (folder / f"{invariant}.txt").write_text("\n".join(sentences) + "\n")
    for file in storage.glob("*.jsonl") if storage is not None else ():
        shutil.copy(file, folder)

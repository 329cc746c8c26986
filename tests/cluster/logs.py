"""Collects the data to look at after a failed test, into one folder.

    <folder>/pods/<node>/<namespace>_<pod>_<uid>/<container>/<restart>.log
    <folder>/components/<component>.log
    <folder>/objects/*.yaml, describe-pods.txt, status.txt

Containers' logs are read from the nodes' disks, not through the API. So they include
nodes that are off, frozen or cut off, and previous containers. Each request to the API
server has a limit of its own, so the collection takes at most a minute even without
answers.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .failures import ClusterError
from .node import Node
from .paths import Paths

QUESTION_LIMIT_S = 20
AT_A_TIME = 4
QUESTIONS = {
    "objects/all.yaml": ["get", "all", "-A", "-o", "yaml"],
    "objects/trainingjobs.yaml": ["get", "trainingjobs", "-A", "-o", "yaml"],
    "objects/injectedjobs.yaml": ["get", "injectedjobs", "-A", "-o", "yaml"],
    "objects/recoveries.yaml": ["get", "recoveries", "-A", "-o", "yaml"],
    "objects/hotsparepools.yaml": ["get", "hotsparepools", "-A", "-o", "yaml"],
    "objects/events.yaml": ["get", "events", "-A", "--sort-by=.lastTimestamp", "-o", "yaml"],
    "objects/events.txt": ["get", "events", "-A", "--sort-by=.lastTimestamp"],
    "objects/nodes.yaml": ["get", "nodes", "-o", "yaml"],
    "objects/leases.yaml": ["get", "leases", "-A", "-o", "yaml"],
    "describe-pods.txt": ["describe", "pods", "-A"],
    "pods.txt": ["get", "pods", "-A", "-o", "wide"],
}


def collect(
    folder: Path, paths: Paths, nodes: list[Node], kubectl: Callable[[list[str], float], str] | None, status: str
) -> None:
    """Write all data into `folder`; for a request without an answer, write the reason.

    `kubectl` takes arguments and a limit in seconds; None if the API server does not answer.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "status.txt").write_text(status)
    _copy_tree(paths.logs, folder / "components")
    for node in nodes:
        _copy_tree(node.folder / "log" / "pods", folder / "pods" / node.name)
    if kubectl is None:
        (folder / "objects.txt").write_text("the API server does not answer: see components/kube-apiserver.log\n")
        return
    ask = functools.partial(_ask, folder, kubectl)
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        list(pool.map(ask, QUESTIONS, QUESTIONS.values()))


def _ask(folder: Path, kubectl: Callable[[list[str], float], str], target: str, question: list[str]) -> None:
    file = folder / target
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        file.write_text(kubectl([*question, f"--request-timeout={QUESTION_LIMIT_S}s"], QUESTION_LIMIT_S))
    except ClusterError as error:
        file.write_text(f"no answer: {error}\n")


def _copy_tree(source: Path, target: Path) -> None:
    """Copy files that may vanish during the copy."""
    for file in sorted(source.rglob("*")):
        if not file.is_file() or file.is_symlink():
            continue
        copy = target / file.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(file, copy)
        except FileNotFoundError:
            continue

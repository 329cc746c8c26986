"""The programs of another version of Kubernetes for the integration tests: UNDERSTUDY_KUBERNETES names it, as 1.30.

`python -m tests.cluster.other_kubernetes` builds them from the Go module kubernetes-VERSION of this folder, and links
the programs that do not change with Kubernetes. The local cluster always runs the version of go.mod.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from .binaries import Module, ensure_module
from .commands import Progress
from .failures import ClusterError, MissingTool
from .locks import locked
from .paths import HERE, Paths, content_hash

VARIABLE = "UNDERSTUDY_KUBERNETES"
PREFIX = "kubernetes-"
PROGRAMS = {
    name: f"k8s.io/kubernetes/cmd/{name}"
    for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
}
#: Of the local cluster's own module.
LINKED = ("etcd", "helm")


def versions() -> list[str]:
    """The versions that have a module."""
    return sorted(folder.name.removeprefix(PREFIX) for folder in HERE.glob(f"{PREFIX}*"))


def server_binaries(paths: Paths) -> Path:
    """The folder of the programs that integration tests run. Raises MissingTool for a version without a module."""
    version = os.environ.get(VARIABLE)
    return module_of(paths, version).target if version else paths.binaries


def module_of(paths: Paths, version: str) -> Module:
    """The module. Raises MissingTool if there is none."""
    if version not in versions():
        known = ", ".join(versions())
        raise MissingTool(f"{VARIABLE}={version}: there are modules of {known}; use one of these, or unset it")
    source = HERE / f"{PREFIX}{version}"
    digest = content_hash([source / "go.mod", source / "go.sum"], str(paths.binaries))
    return Module(source, paths.cache / f"{source.name}-{digest}", PROGRAMS, kubernetes=source)


def ensure_server_binaries(paths: Paths, version: str, progress: Progress) -> None:
    module = module_of(paths, version)
    with locked(paths.cache / "binaries.lock", progress):
        ensure_module(module, progress)
        for name in LINKED:
            link = module.target / name
            if not link.is_symlink():
                link.symlink_to(paths.binaries / name)


def main() -> int:
    if version := os.environ.get(VARIABLE):
        try:
            ensure_server_binaries(Paths.from_environment(), version, Progress())
        except ClusterError as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Builds the cluster's programs from the pinned Go modules of this folder, and of dns/.

One `go build` per module compiles all of its missing programs, so that both cores are busy to the end: one invocation
per program would link each of them alone. Programs are moved into place when all of them are complete. Go's own cache
keeps each compiled package, so an interrupted build continues where it stopped. The folder's name is a hash of go.mod
and go.sum: another set of versions has another folder.

The name server has a module of its own, because its requirements would change the versions of Kubernetes' modules. Its
go.mod replaces the modules that both share by Kubernetes' versions, so that each is compiled once.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .commands import Progress, follow
from .failures import MissingTool
from .host_tools import ensure_go
from .paths import DNS, HERE, Paths

CLUSTER_PROGRAMS = {
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kubelet": "k8s.io/kubernetes/cmd/kubelet",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kube-proxy": "k8s.io/kubernetes/cmd/kube-proxy",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
    "containerd": "github.com/containerd/containerd/v2/cmd/containerd",
    "containerd-shim-runc-v2": "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
    "ctr": "github.com/containerd/containerd/v2/cmd/ctr",
    "etcd": "go.etcd.io/etcd/server/v3",
    "bridge": "github.com/containernetworking/plugins/plugins/main/bridge",
    "loopback": "github.com/containernetworking/plugins/plugins/main/loopback",
    "portmap": "github.com/containernetworking/plugins/plugins/meta/portmap",
    "host-local": "github.com/containernetworking/plugins/plugins/ipam/host-local",
    "helm": "helm.sh/helm/v4/cmd/helm",
    "pause": "./pause",
}
#: kwok simulates nodes, for benchmarks and conformance tests; the cluster itself does not need it.
KWOK = {"kwok": "sigs.k8s.io/kwok/cmd/kwok"}
NAME_SERVER = "coredns"
#: The number of packages that a build with an empty cache compiles, without kwok's.
PACKAGES = 3636
BUILD_LIMIT_S = 3600


@dataclass(frozen=True)
class Module:
    """A Go module (source: the folder of its go.mod) and its programs: name -> package, built into `target`.

    kubernetes: the folder of the go.mod that pins the version of Kubernetes which the programs report.
    """

    source: Path
    target: Path
    programs: dict[str, str]
    kubernetes: Path = HERE

    def missing(self) -> dict[str, str]:
        return {name: package for name, package in self.programs.items() if not (self.target / name).exists()}


def missing_programs(paths: Paths, *, kwok: bool = False) -> list[str]:
    """The names of the programs that a build would create."""
    return [name for module in _modules(paths, kwok=kwok) for name in module.missing()]


def ensure_binaries(paths: Paths, progress: Progress, *, kwok: bool = False) -> None:
    """Build the programs that are not in the cache yet; kwok only if requested.

    Raises MissingTool without a Go new enough, CommandFailed when a build fails.
    """
    for module in _modules(paths, kwok=kwok):
        ensure_module(module, progress)


def ensure_module(module: Module, progress: Progress) -> None:
    """Build the module's programs that are missing. Raises as ensure_binaries."""
    if missing := module.missing():
        go = ensure_go(_pinned(r"^go (\d+\.\d+\.\d+)$"))
        progress.report(f"go build: {', '.join(missing)}")
        _build(go, module, missing, progress)


def _modules(paths: Paths, *, kwok: bool) -> list[Module]:
    return [
        Module(HERE, paths.binaries, CLUSTER_PROGRAMS | (KWOK if kwok else {})),
        Module(DNS, paths.name_server, {NAME_SERVER: "."}),
    ]


def _build(go: str, module: Module, programs: dict[str, str], progress: Progress) -> None:
    module.target.mkdir(parents=True, exist_ok=True)
    for left in module.target.glob(".build.*"):  # left by a build that was interrupted
        shutil.rmtree(left)
    workshop = module.target / f".build.{os.getpid()}"
    workshop.mkdir()
    log = module.target / ".build-log"

    def compiled() -> str:
        packages = sum(1 for line in log.read_text(errors="replace").splitlines() if not line.startswith("go: "))
        most = f" of at most {PACKAGES}"
        return f"  … {packages}{most} packages compiled" if packages else "  … downloading Go modules"

    follow(
        # -dwarf=false: the programs are never debugged, and -s -w removes debug symbols only after they were compiled.
        [go, "build", "-v", "-trimpath", "-gcflags=all=-dwarf=false", "-ldflags", _linker_flags(module.kubernetes),
         "-o", f"{workshop}/", *programs.values()],
        timeout_s=BUILD_LIMIT_S,
        log=log,
        heartbeat=lambda: progress.report(compiled()),
        env={"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false", "GOTOOLCHAIN": "local"},
        cwd=module.source,
    )  # fmt: skip
    for name, package in programs.items():
        (workshop / executable_name(package, module.source)).rename(module.target / name)
    workshop.rmdir()


def executable_name(package: str, source: Path) -> str:
    """The program's name after `go build -o FOLDER/`: the last path element that is no major version."""
    words: Sequence[str] = [word for word in package.split("/") if not re.fullmatch(r"v\d+", word)]
    return source.name if words[-1] == "." else words[-1]


def _linker_flags(module: Path) -> str:
    """Without these flags, Kubernetes reports v0.0.0 and kubectl warns about the skew."""
    version = kubernetes_version(module)
    major, minor, _ = version.split(".")
    package = "k8s.io/component-base/version"
    return (
        f"-s -w -X {package}.gitVersion=v{version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor} "
        f"-X {package}.gitTreeState=clean"
    )


def kubernetes_version(module: Path = HERE) -> str:
    """The version of Kubernetes that a module's go.mod pins, like 1.36.3."""
    return _pinned(r"^\s+k8s\.io/kubernetes v(\S+)", module)


def _pinned(pattern: str, module: Path = HERE) -> str:
    found = re.search(pattern, (module / "go.mod").read_text(), re.MULTILINE)
    if found is None:
        raise MissingTool(f"{module / 'go.mod'} has no line like {pattern!r}; restore it from git")
    return found[1]

"""Builds the cluster's programs from the pinned Go modules of this folder, and of dns/.

One `go build` a program, each moved into place when it is whole, so that an
interrupted build goes on where it was. The folder's name is a hash of go.mod and
go.sum: another set of versions is another folder. A first build takes about six
minutes on two cores; with Go's cache warm, seconds.

The name server is a module of its own: what it requires would change the versions
of what Kubernetes is built with.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from .commands import Progress, follow
from .failures import MissingTool
from .host_tools import ensure_go
from .paths import DNS, HERE, Paths

# Order: what takes longest first, so that the estimate shrinks quickly.
PROGRAMS = {
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
    "kwok": "sigs.k8s.io/kwok/cmd/kwok",
    "pause": "./pause",
}
NAME_SERVER = "coredns"
BUILD_LIMIT_S = 1800
FIRST_BUILD = "a first run takes about 6 minutes on 2 cores, a later one seconds"


def ensure_binaries(paths: Paths, progress: Progress) -> None:
    """Build what is not in `paths.binaries` yet.

    Raises MissingTool without a Go new enough, CommandFailed when a build fails.
    """
    wanted = [(name, package, paths.binaries, HERE) for name, package in PROGRAMS.items()]
    wanted.append((NAME_SERVER, ".", paths.name_server, DNS))
    missing = [program for program in wanted if not (program[2] / program[0]).exists()]
    if not missing:
        return
    go = ensure_go(_pinned(r"^go (\d+\.\d+\.\d+)$"))
    progress.say(f"building {len(missing)} of {len(wanted)} programs with Go: {FIRST_BUILD}")
    for position, (name, package, folder, module) in enumerate(missing, start=1):
        progress.say(f"go build {name} ({position} of {len(missing)})")
        folder.mkdir(parents=True, exist_ok=True)
        _build(go, name, package, folder, module, progress)


def _build(go: str, name: str, package: str, folder: Path, module: Path, progress: Progress) -> None:
    for left in folder.glob(f".{name}.[0-9]*"):  # by a build that was interrupted
        left.unlink()
    unfinished = folder / f".{name}.{os.getpid()}"
    follow(
        [go, "build", "-trimpath", "-ldflags", _linker_flags(), "-o", unfinished, package],
        timeout_s=BUILD_LIMIT_S,
        log=folder / f".{name}.log",
        heartbeat=lambda: progress.say(f"  … still building {name}"),
        env={"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false", "GOTOOLCHAIN": "local"},
        cwd=module,
    )
    unfinished.rename(folder / name)


def _linker_flags() -> str:
    """Without these flags, Kubernetes reports v0.0.0 and kubectl warns about the skew."""
    version = kubernetes_version()
    major, minor, _ = version.split(".")
    package = "k8s.io/component-base/version"
    return (
        f"-s -w -X {package}.gitVersion=v{version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor} "
        f"-X {package}.gitTreeState=clean"
    )


def kubernetes_version() -> str:
    """The version of Kubernetes that go.mod pins, like 1.36.3."""
    return _pinned(r"^\s+k8s\.io/kubernetes v(\S+)")


def _pinned(pattern: str) -> str:
    found = re.search(pattern, (HERE / "go.mod").read_text(), re.MULTILINE)
    if found is None:
        raise MissingTool(f"{HERE / 'go.mod'} has no line like {pattern!r}; restore it from git")
    return found[1]

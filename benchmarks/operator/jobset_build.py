"""Builds the peer: JobSet's manager, from the Go module that jobset/go.mod pins, and copies its CRD.

Both are in the cache, in a folder that is named for a hash of go.mod and go.sum, and renamed into place when it is
complete. A first build takes about a minute once Go has the modules.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.commands import Progress, follow, run
from tests.cluster.failures import CommandFailed
from tests.cluster.host_tools import ensure_go
from tests.cluster.paths import Paths, content_hash

HERE = Path(__file__).resolve().parent / "jobset"
MODULE = "sigs.k8s.io/jobset"
CRD = Path("config", "components", "crd", "bases", "jobset.x-k8s.io_jobsets.yaml")
BUILD_LIMIT_S = 1200
_GO = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false", "GOTOOLCHAIN": "local"}


@dataclass(frozen=True)
class Built:
    folder: Path

    @property
    def manager(self) -> Path:
        return self.folder / "manager"

    @property
    def crd(self) -> Path:
        return self.folder / "jobsets.yaml"


def version() -> str:
    """The version that go.mod pins, such as 0.12.0."""
    return _pinned(rf"^\s*(?:require )?{re.escape(MODULE)} v(\S+)")


def ensure_jobset(progress: Progress) -> Built:
    """Raises MissingTool without a Go that is new enough, CommandFailed if the build fails."""
    cache = Paths.from_environment().cache
    built = Built(cache / f"jobset-{content_hash([HERE / 'go.mod', HERE / 'go.sum'])}")
    if built.folder.exists():
        return built
    go = ensure_go(_pinned(r"^go (\d+\.\d+\.\d+)$"))
    progress.report(f"building JobSet {version()} with Go: about a minute")
    for left in cache.glob(".jobset.[0-9]*"):  # left by an interrupted build
        shutil.rmtree(left)
    workshop = Built(cache / f".jobset.{os.getpid()}")
    workshop.folder.mkdir(parents=True)
    try:
        follow(
            [go, "build", "-trimpath", "-ldflags", "-s -w", "-o", workshop.manager, MODULE],
            timeout_s=BUILD_LIMIT_S,
            log=cache / "jobset-build.log",
            heartbeat=lambda: progress.report("  … still building JobSet"),
            env=_GO,
            cwd=HERE,
        )
        source = Path(run([go, "list", "-m", "-f", "{{.Dir}}", MODULE], env=_GO, cwd=HERE).strip())
        shutil.copyfile(source / CRD, workshop.crd)
        workshop.folder.rename(built.folder)
    finally:
        shutil.rmtree(workshop.folder, ignore_errors=True)
    return built


def _pinned(pattern: str) -> str:
    found = re.search(pattern, (HERE / "go.mod").read_text(), re.MULTILINE)
    if found is None:
        raise CommandFailed(f"{HERE / 'go.mod'} has no line like {pattern!r}; restore it from git")
    return found[1]

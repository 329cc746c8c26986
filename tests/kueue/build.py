"""Builds Kueue's manager from the Go module that go.mod pins, with the manifests of its CRDs and webhooks.

The results are in the cache, in a folder that is named for a hash of go.mod and go.sum; it appears when it is complete.
A first build takes some minutes.
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

HERE = Path(__file__).resolve().parent
MODULE = "sigs.k8s.io/kueue"
CRDS = Path("config", "components", "crd", "bases")
WEBHOOKS = Path("config", "components", "webhook", "manifests.yaml")
BUILD_LIMIT_S = 1800
_GO = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false", "GOTOOLCHAIN": "local"}


@dataclass(frozen=True)
class Built:
    folder: Path

    @property
    def manager(self) -> Path:
        return self.folder / "manager"

    @property
    def crds(self) -> Path:
        """The folder of the CRDs."""
        return self.folder / "crds"

    @property
    def webhooks(self) -> Path:
        return self.folder / "webhooks.yaml"


def kueue() -> Built:
    """The paths of the build, whether it exists or not."""
    return Built(Paths.from_environment().cache / f"kueue-{content_hash([HERE / 'go.mod', HERE / 'go.sum'])}")


def ensure_kueue(progress: Progress) -> Built:
    """Raises MissingTool without a recent Go, CommandFailed if the build fails."""
    built, cache = kueue(), Paths.from_environment().cache
    if built.folder.exists():
        return built
    go = ensure_go(_pinned(r"^go (\d+\.\d+\.\d+)$"))
    progress.report("building Kueue with Go: some minutes")
    for left in cache.glob(".kueue.[0-9]*"):  # left by a build that was interrupted
        shutil.rmtree(left)
    workshop = Built(cache / f".kueue.{os.getpid()}")
    workshop.folder.mkdir(parents=True)
    try:
        follow(
            [go, "build", "-trimpath", "-ldflags", "-s -w", "-o", workshop.manager, f"{MODULE}/cmd/kueue"],
            timeout_s=BUILD_LIMIT_S,
            log=cache / "kueue-build.log",
            heartbeat=lambda: progress.report("  … still building Kueue"),
            env=_GO,
            cwd=HERE,
        )
        source = Path(run([go, "list", "-m", "-f", "{{.Dir}}", MODULE], env=_GO, cwd=HERE).strip())
        workshop.crds.mkdir()
        for crd in (source / CRDS).glob("*.yaml"):
            shutil.copyfile(crd, workshop.crds / crd.name)
        shutil.copyfile(source / WEBHOOKS, workshop.webhooks)
        workshop.folder.rename(built.folder)
    finally:
        shutil.rmtree(workshop.folder, ignore_errors=True)
    return built


def _pinned(pattern: str) -> str:
    found = re.search(pattern, (HERE / "go.mod").read_text(), re.MULTILINE)
    if found is None:
        raise CommandFailed(f"{HERE / 'go.mod'} has no line like {pattern!r}; restore it from git")
    return found[1]


if __name__ == "__main__":
    print(ensure_kueue(Progress()).folder)

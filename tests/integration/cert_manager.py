"""cert-manager's CRDs, from its Go module: `make integration` copies them into the cache. Nothing else is used."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from tests.cluster.commands import Progress, run
from tests.cluster.failures import CommandFailed
from tests.cluster.host_tools import ensure_go
from tests.cluster.paths import Paths

MODULE = "github.com/cert-manager/cert-manager"
VERSION = "v1.21.2"
#: As in a go.sum file.
SUM = "h1:UWgoYM+KLNtRlqmoWOKjKBOBUPVHeepQ6/ac3ERJW68="
FILES = ("cert-manager.io_certificates.yaml", "cert-manager.io_issuers.yaml")
GO_VERSION = "1.21.0"
DOWNLOAD_LIMIT_S = 300


def crds() -> list[Path]:
    """The CRDs of Certificate and Issuer."""
    folder = Paths.from_environment().cache / f"cert-manager-{VERSION}"
    return [folder / name for name in FILES]


def ensure_crds(progress: Progress) -> None:
    """Raises MissingTool without Go, CommandFailed if the module cannot be downloaded or has another checksum."""
    folder = crds()[0].parent
    if folder.exists():
        return
    progress.report(f"downloading the Go module of cert-manager {VERSION}")
    workshop = folder.with_name(f".{folder.name}.{os.getpid()}")
    workshop.mkdir(parents=True)
    try:
        download = [ensure_go(GO_VERSION), "mod", "download", "-json", f"{MODULE}@{VERSION}"]
        module = json.loads(run(download, timeout_s=DOWNLOAD_LIMIT_S, env={"GOTOOLCHAIN": "local"}, cwd=workshop))
        if module["Sum"] != SUM:
            raise CommandFailed(f"{MODULE} {VERSION} has the sum {module['Sum']}, expected {SUM}: it is another module")
        for name in FILES:
            shutil.copyfile(Path(module["Dir"], "deploy", "crds", name), workshop / name)
        workshop.rename(folder)
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


if __name__ == "__main__":
    ensure_crds(Progress())

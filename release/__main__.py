"""`make release`: the files of a release, in build/release.

    understudy-operator-VERSION.oci.tar           the images that the tests of this checkout run
    understudy-sidecar-VERSION.oci.tar
    understudy-CHARTVERSION.tgz                   the chart
    understudy_training-VERSION-py3-none-any.whl  local mode, understudy_rollout, …
    kubectl-understudy                            the command line as one file
    *.cdx.json                                    an SBOM for each image (CycloneDX)
    understudy-VERSION.provenance.json            how they were made (in-toto, SLSA); not signed
    SHA256SUMS                                    of all of these; sha256sum --check reads it

A release is made from a commit: a changed working tree is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from release.inventory import read_image
from release.plugin import write_plugin
from release.provenance import Dependency, Source, statement
from release.sbom import sbom
from tests.cluster import images
from tests.cluster.commands import Progress
from tests.cluster.failures import ClusterError
from tests.cluster.paths import CHECKOUT, Paths

FOLDER = CHECKOUT / "build" / "release"
CHART = CHECKOUT / "charts" / "understudy"
LOCKS = (
    "requirements/pip.lock",
    "requirements/operator.lock",
    "requirements/sidecar.lock",
    "requirements/cli.lock",
    "requirements/release.lock",
)


class ReleaseFailed(Exception):
    """Says why, and what to do."""


def main() -> int:
    started = datetime.now(UTC)
    try:
        committed, source = _source()
        paths, progress = Paths.from_environment(), Progress()
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir(parents=True)
        base = images.ensure_base(paths, progress)
        for target in images.TARGETS:
            name = f"understudy-{target}-{source.version}"
            archive = FOLDER / f"{name}.oci.tar"
            shutil.copyfile(images.ensure_project_image(paths, target, progress).file, archive)
            text = sbom(f"understudy-{target}", source.version, read_image(archive), committed)
            (FOLDER / f"{name}.cdx.json").write_text(text)
        _run([str(paths.binaries / "helm"), "package", str(CHART), "--destination", str(FOLDER)])
        _run(
            [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(FOLDER)],
            SOURCE_DATE_EPOCH=f"{committed.timestamp():.0f}",
        )
        with tempfile.TemporaryDirectory(prefix="understudy-plugin-") as folder:
            words = ["install", "--quiet", "--disable-pip-version-check", "--no-compile", "--only-binary=:all:"]
            words += ["--require-hashes", "--target", folder, "--requirement", "requirements/cli.lock"]
            _run([sys.executable, "-m", "pip", *words])
            write_plugin(FOLDER / "kubectl-understudy", CHECKOUT, Path(folder), source.version, committed)
        if _source() != (committed, source):
            raise ReleaseFailed("the commit has changed meanwhile; run it again")
        dependencies = [
            Dependency(f"oci:{base.reference}", base.digest.removeprefix("sha256:")),
            *(Dependency(f"file:{lock}", digest(CHECKOUT / lock)) for lock in LOCKS),
        ]
        files = {file.name: digest(file) for file in FOLDER.iterdir()}
        provenance = statement(files, source, dependencies, started, datetime.now(UTC))
        (FOLDER / f"understudy-{source.version}.provenance.json").write_text(json.dumps(provenance, indent=1) + "\n")
    except (ReleaseFailed, ClusterError) as error:
        print(f"make release: {error}", file=sys.stderr)
        return 1
    sums = "".join(f"{digest(file)}  {file.name}\n" for file in sorted(FOLDER.iterdir()))
    (FOLDER / "SHA256SUMS").write_text(sums)
    print(f"{FOLDER.relative_to(CHECKOUT)}:\n{sums}", end="")
    return 0


def _source() -> tuple[datetime, Source]:
    """When the commit was made, and what it is. Raises ReleaseFailed."""
    if changed := _run(["git", "status", "--porcelain"]):
        raise ReleaseFailed(f"the working tree differs from the commit; commit, or remove:\n{changed}")
    commit, seconds = _run(["git", "log", "-1", "--format=%H %ct"]).split()
    version = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["version"]
    lines = (CHART / "Chart.yaml").read_text().splitlines()
    (chart_version,) = [line.partition(":")[2].strip() for line in lines if line.startswith("version:")]
    return datetime.fromtimestamp(int(seconds), UTC), Source(commit, version, chart_version)


def digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _run(command: Sequence[str], **environment: str) -> str:
    """Its output. Raises ReleaseFailed."""
    done = subprocess.run(
        command, cwd=CHECKOUT, env={**os.environ, **environment}, check=False, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise ReleaseFailed(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr or done.stdout}")
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())

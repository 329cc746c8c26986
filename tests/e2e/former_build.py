"""The newest commit with another protocol than this checkout has, as files to build images and install a chart from."""

import subprocess
from pathlib import Path

from tests.cluster.paths import Paths
from tests.e2e.training import CHECKOUT

PROTOCOL = "sidecar/understudy_protocol"


def former_build() -> Path:
    """Its folder, in the cache. Raises AssertionError in a clone without its history."""
    changed = _git("rev-list", "-1", "HEAD", "--", PROTOCOL)
    commit = _git("rev-parse", f"{changed}^")
    folder = Paths.from_environment().cache / "builds" / commit[:12]
    if not folder.exists():
        unfinished = folder.with_suffix(".new")
        subprocess.run(["rm", "-rf", unfinished], check=True)
        unfinished.mkdir(parents=True)
        files = subprocess.run(["git", "-C", CHECKOUT, "archive", commit], check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", unfinished], input=files, check=True)
        unfinished.rename(folder)
    return folder


def _git(*words: str) -> str:
    command = ["git", "-C", str(CHECKOUT), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}; a clone with its history has the former build"
    return done.stdout.strip()

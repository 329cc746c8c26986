"""Installs torch once, into a folder that pods mount read-only.

torch with its CUDA libraries is 4.7 GB: in an image it would be copied into every node.
So it is installed with pip on the host, and a pod mounts the folder by hostPath and
puts it on PYTHONPATH. That needs a host Python of the base image's minor version.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import sys
from pathlib import Path

from .commands import Progress, follow, run
from .failures import CommandFailed, MissingTool
from .paths import Paths

VERSION = "2.13.0"
#: Set by `make torches` for another version.
VARIABLE = "UNDERSTUDY_TORCH"
PYTHON = "3.11"  # the version of the base image, Debian bookworm
INSTALL_LIMIT_S = 1800
PROBE_LIMIT_S = 300


def torch_version() -> str:
    return os.environ.get(VARIABLE, VERSION)


def folder(paths: Paths) -> Path:
    """The folder in which it is installed."""
    return paths.torch(torch_version())


def ensure_torch(paths: Paths, progress: Progress) -> Path:
    """The folder with torch, installed unless it exists; it appears when it is complete.

    Raises MissingTool without a Python of the right minor version, CommandFailed when
    pip fails.
    """
    target, packages = folder(paths), (f"torch=={torch_version()}", "numpy")
    if target.exists():
        return target
    python = torch_python()
    for left in paths.cache.glob(f".{target.name}.*"):
        shutil.rmtree(left)
    workshop = paths.cache / f".{target.name}.{os.getpid()}"
    unfinished, temporary = workshop / "installed", workshop / "temporary"
    temporary.mkdir(parents=True)
    progress.report(f"installing {' and '.join(packages)}: 5 GB, one to two minutes")
    follow(
        [python, "-m", "pip", "install", "--no-input", "--no-cache-dir", "--target", unfinished, *packages],
        timeout_s=INSTALL_LIMIT_S,
        log=paths.cache / "torch-install.log",
        heartbeat=lambda: progress.report(f"  … {_gigabytes(workshop):.1f} GB written"),
        # pip builds in TMPDIR and moves: on the same file system that is a rename, and /tmp may be small.
        env={"PIP_ROOT_USER_ACTION": "ignore", "TMPDIR": str(temporary)},
    )
    unfinished.rename(target)
    shutil.rmtree(workshop)
    progress.report(f"torch is in {target}")
    return target


@functools.cache
def torch_python() -> str:
    """The Python for which torch is installed, on this machine. Raises MissingTool.

    This process asks itself whether it has pip: while the machine reads torch from its disk for the first time, a
    program that only prints pip's version has taken more than 30 s.
    """
    if sys.version.startswith(f"{PYTHON}.") and importlib.util.find_spec("pip"):
        return sys.executable
    refusals = []
    for candidate in [path for path in (shutil.which(f"python{PYTHON}"), f"/usr/bin/python{PYTHON}") if path]:
        try:
            # Its own path, because the first on PATH may be a script that changes PATH for what it starts.
            return run([candidate, "-c", "import sys, pip; print(sys.executable)"], timeout_s=PROBE_LIMIT_S).strip()
        except CommandFailed as failed:
            refusals.append(str(failed))
    raise MissingTool(
        f"no Python {PYTHON} with pip on this machine; pods have {PYTHON}, and torch for them is installed with it. "
        f"Install with: apt-get install --yes python{PYTHON} python{PYTHON}-venv python3-pip\n" + "\n".join(refusals)
    )


def _gigabytes(folder: Path) -> float:
    """The size of a folder that is being written, in 1e9 bytes."""
    shown = run(["du", "-sb", folder], check=False).split()
    return int(shown[0]) / 1e9 if shown else 0.0

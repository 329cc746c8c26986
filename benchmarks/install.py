"""Installs the peers, on demand, into the cache: torch (the e2e tests' own install), NVRx and DLRover next to it.

Every package is pinned, and NVRx's wheel is checked by its hash, because another version would be another peer. The
wheel is built for a newer Python and C library than this repository's, but the measured parts of it are plain Python.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.commands import Progress, follow, run
from tests.cluster.failures import CommandFailed
from tests.cluster.paths import Paths
from tests.cluster.torch_install import PYTHON, ensure_torch, torch_version

NVRX_VERSION = "0.7.0"
WHEEL_SHA256 = "e0c646ccae211de81a4c2b5bb5cff96a5e12af1373fb0eb818a40716eef685ad"
WHEEL_FOR = ("--python-version", "3.12", "--platform", "manylinux_2_39_x86_64")
NEEDS = (
    "defusedxml==0.7.1",
    "grpcio==1.76.0",
    "httpx==0.28.1",
    "nvidia-ml-py==13.615.71",
    "packaging==26.3",
    "protobuf==7.36.2",
    "psutil==7.2.2",
    "pyyaml==6.0.3",
    "setproctitle==1.3.8",
)
DLROVER_VERSION = "0.6.1"
DLROVER_NEEDS = ("deprecated==1.3.1", "pynvml==13.0.1", "requests==2.34.2")
INSTALL_LIMIT_S = 600
VERSIONS = {"NVRx": NVRX_VERSION, "torch": torch_version()}


@dataclass(frozen=True)
class Peers:
    """The program and the environment for a process that can import the peers."""

    python: str
    env: dict[str, str]


def ensure_peers(progress: Progress) -> Peers:
    """Raises MissingTool and CommandFailed of the cluster tool, which install torch as well."""
    paths = Paths.from_environment()
    torch = ensure_torch(paths, progress)
    python = sys.executable if sys.version.startswith(f"{PYTHON}.") else f"python{PYTHON}"
    nvrx = _ensure_nvrx(paths.cache, python, progress)
    return Peers(
        python,
        {
            "PYTHONPATH": f"{nvrx}:{torch}",
            "TORCH_CPP_LOG_LEVEL": "ERROR",
            # As NVRx's launcher sets it: one store a rendezvous.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            # torch looks up a name for each connection, outside of the measured time: keep it short.
            "RES_OPTIONS": "attempts:1 timeout:1",
        },
    )


def ensure_dlrover(progress: Progress) -> Path:
    """The folder with DLRover and what it needs beside torch. Raises CommandFailed."""
    cache = Paths.from_environment().cache
    target = cache / f"dlrover-{DLROVER_VERSION}"
    if target.exists():
        return target
    progress.report(f"installing DLRover {DLROVER_VERSION}")
    workshop = cache / f".{target.name}.{os.getpid()}"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--only-binary=:all:")
    follow(
        [*pip, "--target", workshop, f"dlrover=={DLROVER_VERSION}", *NEEDS, *DLROVER_NEEDS],
        timeout_s=INSTALL_LIMIT_S,
        log=cache / "dlrover-install.log",
        env={"PIP_ROOT_USER_ACTION": "ignore"},
    )
    workshop.rename(target)
    return target


def _ensure_nvrx(cache: Path, python: str, progress: Progress) -> Path:
    """The folder with NVRx and its dependencies. It is renamed into place when it is complete."""
    target = cache / f"nvrx-{NVRX_VERSION}"
    if target.exists():
        return target
    progress.report(f"installing nvidia-resiliency-ext {NVRX_VERSION}")
    workshop = cache / f".nvrx-{NVRX_VERSION}.{os.getpid()}"
    installed, downloads = workshop / "installed", workshop / "downloads"
    downloads.mkdir(parents=True)
    pip = (python, "-m", "pip", "--disable-pip-version-check", "--no-input")
    follow(
        [*pip, "install", "--only-binary=:all:", "--target", installed, *NEEDS],
        timeout_s=INSTALL_LIMIT_S,
        log=cache / "nvrx-install.log",
        env={"PIP_ROOT_USER_ACTION": "ignore"},
    )
    wanted = f"nvidia-resiliency-ext=={NVRX_VERSION}"
    run(
        [*pip, "download", "--no-deps", "--only-binary=:all:", *WHEEL_FOR, "-d", downloads, wanted],
        timeout_s=INSTALL_LIMIT_S,
    )
    (wheel,) = downloads.glob("*.whl")
    seen = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if seen != WHEEL_SHA256:
        raise CommandFailed(f"{wheel.name} has the SHA-256 {seen}, and {WHEEL_SHA256} was expected: it is another file")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    installed.rename(target)
    shutil.rmtree(workshop)
    return target

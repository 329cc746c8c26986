"""Real torchrun processes. torch is installed by `make torchrun` (tests/cluster/torch_install.py)."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.torchrun.job import Job
from understudy_launcher.package import write_package


@pytest.fixture(scope="session")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The content of the sidecar's image."""
    folder = tmp_path_factory.mktemp("package")
    write_package(folder)
    return folder


@pytest.fixture(scope="session")
def torch() -> Path:
    return Cluster().torch_path


@pytest.fixture
def job(packaged: Path, torch: Path) -> Iterator[Job]:
    """A job; its members end with the test."""
    folders: list[Path] = []

    def folder() -> Path:
        """The shared folder of a pod. Not in tmp_path: a unix socket's path has at most 107 characters."""
        folders.append(Path(tempfile.mkdtemp(prefix="understudy-")))
        shutil.copytree(packaged, folders[-1], dirs_exist_ok=True)
        return folders[-1]

    made = Job(torch, folder)
    yield made
    for member in made.members:
        member.end()
    for path in folders:
        shutil.rmtree(path)

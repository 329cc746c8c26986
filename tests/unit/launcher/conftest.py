from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.launcher.fake_sidecar import TRAINER_PYTHON, Launched, plain_environment
from tests.unit.launcher.linked import Linked
from understudy_launcher.package import write_package
from understudy_protocol import pod

Launch = Callable[..., Launched]


@pytest.fixture(scope="session")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the sidecar's image copies into the trainer container."""
    folder = tmp_path_factory.mktemp("package")
    write_package(folder)
    return folder


@pytest.fixture
def folder(packaged: Path) -> Iterator[Path]:
    """The shared folder of a pod. Not in tmp_path: a unix socket's path has at most 107 characters."""
    path = Path(tempfile.mkdtemp(prefix="understudy-"))
    shutil.copytree(packaged, path, dirs_exist_ok=True)
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def default_signals() -> Iterator[None]:
    """Launchers would inherit the ignored signals of a background shell or of nohup."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGHUP, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def launch(folder: Path, default_signals: None) -> Iterator[Launch]:
    """Starts launchers through the entry script, as a pod does, with the trainer's Python first on PATH."""
    launched = []

    stub_of_the_pod = ["/bin/sh", f"{folder}/{pod.LAUNCHER_SCRIPT}"]

    def start(*command: str, stub: Any = stub_of_the_pod, cwd: Path = folder, **env: str) -> Launched:
        whole = plain_environment() | {pod.ENV_SHARED_FOLDER: str(folder), "HERE": str(folder)} | env
        whole["PATH"] = env.get("PATH", f"{Path(TRAINER_PYTHON).parent}{os.pathsep}{os.environ['PATH']}")
        launched.append(Launched([*stub, *command], folder, whole, cwd))
        return launched[-1]

    yield start
    for launcher in launched:
        launcher.end()


@pytest.fixture
def path() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="understudy-") as folder:
        yield str(Path(folder) / "sidecar.sock")


@pytest.fixture
def server(path: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.settimeout(10)
        listening.bind(path)
        listening.listen()
        yield listening


@pytest.fixture
def linked(path: str, server: socket.socket) -> Iterator[Linked]:
    both = Linked(path, server)
    yield both
    both.close()

"""The files of a run: one folder for each run, from which other processes learn which runs are active.

    NAME/control.sock     the socket for `understudy local kill`
    NAME/sidecars/POD/    the files of a pod's sidecar: keys, the job's facts, the pod's name and uid
    NAME/shipped/         the files that a sidecar image ships
    NAME/pods/POD/        a pod's shared folder
    NAME/logs/POD.log     the lines of its launcher, its sidecar and its workers
    NAME/objects.json     after the end: the job and its pods, as run_objects.described has them

Rules: only this user can access the parent folder. A run that has ended keeps its logs and objects.json; MAX_RUNS runs
are kept. The two processes of a run hold a lock of its folder from its creation to its end, so runs that start at the
same time leave each other's folders alone. The kernel releases the lock of killed processes.
"""

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from understudy_local.options import NoSuchRun, UsageError
from understudy_protocol.pod import LAUNCHER_SOCKET

MAX_RUNS = 5
CONTROL = "control.sock"
OBJECTS = "objects.json"
_LONGEST_SOCKET = 107  # bytes: unix(7), sun_path without its closing zero
_LONGEST_POD = "node-99999"
_locks: dict[Path, int] = {}  # the open folders of this process's runs


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def control(self) -> Path:
        return self.path / CONTROL

    def sidecar(self, pod: str) -> Path:
        """The folder of the files that a kubelet would write for the pod's sidecar."""
        return self.path / "sidecars" / pod

    @property
    def shipped(self) -> Path:
        return self.path / "shipped"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def pod(self, name: str) -> Path:
        return self.path / "pods" / name

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def record_end(self, described: Mapping[str, Any]) -> None:
        """Keep the last state for `understudy local why` and the like."""
        (self.path / OBJECTS).write_text(json.dumps(described))

    def recorded(self) -> dict[str, Any] | None:
        """The last state of a run that has ended; None if the run was killed before it could write the file."""
        try:
            found = json.loads((self.path / OBJECTS).read_text())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def clear(self) -> None:
        """After the run: only its logs and its last state remain."""
        self.control.unlink(missing_ok=True)
        for folder in (self.path / "sidecars", self.shipped, self.path / "pods"):
            shutil.rmtree(folder, ignore_errors=True)
        if self.path in _locks:
            os.close(_locks.pop(self.path))


def make(name: str) -> RunFolder:
    """Create a new folder. Raises UsageError if a run of that name is active, the name is invalid, or its path is too
    long.
    """
    if name and (not name.replace("-", "").isalnum() or len(name) > 32):
        raise UsageError(f"--name {name!r}: expected letters, digits and dashes, at most 32")
    parent = _parent()
    run = RunFolder(parent / (name or secrets.token_hex(3)))
    too_long = len(os.fsencode(run.pod(_LONGEST_POD) / LAUNCHER_SOCKET)) - _LONGEST_SOCKET
    if too_long > 0:
        raise UsageError(
            f"path {parent} is {too_long} bytes too long for Unix sockets: set TMPDIR to a folder with a shorter path"
        )
    with _locked(parent):
        _forget_old(parent)
        if not _has_ended(run):
            raise UsageError(f"--name {name}: an active run has this name. End that run, or choose another name")
        shutil.rmtree(run.path, ignore_errors=True)
        for folder in (run.path, run.shipped, run.logs):
            folder.mkdir(mode=0o700)
        _locks[run.path] = _open_folder(run.path)
        fcntl.flock(_locks[run.path], fcntl.LOCK_EX)
    return run


def of(name: str) -> RunFolder:
    """The folder of the run with that name, even if it does not exist."""
    return RunFolder(_parent() / name)


def live() -> list[RunFolder]:
    """The active runs, the newest first."""
    runs = [run for run in map(RunFolder, _parent().iterdir()) if _is_live(run)]
    return sorted(runs, key=lambda run: run.control.stat().st_mtime, reverse=True)


def active(name: str) -> RunFolder:
    """The active run of that name; the newest if it is empty. Raises NoSuchRun."""
    run = next((run for run in live() if name in ("", run.name)), None)
    if run is None:
        named = f" with the name {name}" if name else ""
        raise NoSuchRun(f"no local run{named} is active: start one with `understudy local -- COMMAND`")
    return run


def newest(name: str) -> RunFolder:
    """The run of that name, active or not. Without a name: the newest, active ones first. Raises NoSuchRun."""
    kept = sorted(map(RunFolder, _parent().iterdir()), key=lambda run: run.path.stat().st_mtime, reverse=True)
    run = next((run for run in (*live(), *kept) if name in ("", run.name)), None)
    if run is None:
        named = f" with the name {name}" if name else ""
        raise NoSuchRun(f"no local run{named} is kept: start one with `understudy local -- COMMAND`")
    return run


def _is_live(run: RunFolder) -> bool:
    """Whether a process listens: a killed run has left its socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(run.control))
        except OSError:
            return False
    return True


def _parent() -> Path:
    """Raises UsageError if another user has created it."""
    parent = Path(tempfile.gettempdir()) / f"understudy-local-{os.getuid()}"
    parent.mkdir(mode=0o700, exist_ok=True)
    found = parent.lstat()
    if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode) or stat.S_IMODE(found.st_mode) & 0o077:
        raise UsageError(f"other users can access or own {parent}: remove it, or set TMPDIR to another folder")
    return parent


def _open_folder(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    opened = _open_folder(folder)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def _has_ended(run: RunFolder) -> bool:
    """Whether no process runs it, or starts it. Also if it does not exist."""
    try:
        opened = _open_folder(run.path)
    except OSError:
        return True
    try:
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(opened)
    return not _is_live(run)


def _forget_old(parent: Path) -> None:
    ended = [path for path in parent.iterdir() if _has_ended(RunFolder(path))]
    for path in sorted(ended, key=lambda path: path.stat().st_mtime, reverse=True)[MAX_RUNS - 1 :]:
        shutil.rmtree(path, ignore_errors=True)

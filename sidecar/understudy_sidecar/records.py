"""The files that a sidecar writes: the launcher and the verdict for the trainer, and the sidecar's own state.

Two volumes, and every program that opens a file there uses understudy_protocol/files.py:

    shared folder (the trainer writes there too)    written by    read by
      launcher.pyz, launch…, python/                sidecar       trainer container
      variables.json                                sidecar       launcher
      verdict.json                                  sidecar       launcher, torchrun's agent, exit_on_fault()
      sidecar.sock, rollouts.sock                   sidecar       launcher, torchrun's agent, workers
      errors-UID/                                   workers       launcher
    state folder (only the sidecar mounts it)
      closed.json, hard-state.json, order.json,    the next process of this sidecar
      coordinator-verdict.json, launcher-connected

A sidecar reads nothing from the shared folder. It stores the close in the state folder, for the next process, and in
the termination message, so that the operator can read it from one finished pod later. It stores its hard state
(hard-state.json), so that no later process votes twice in a term: one term has one coordinator. A state file that
cannot be read is an error: a process that ignored it could vote twice, or serve a second job.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from understudy_protocol import files, pod, wire
from understudy_protocol.enums import Verdict
from understudy_protocol.hard_state import HardState
from understudy_protocol.membership import Close, NodeVerdict
from understudy_protocol.order import Order

#: Where the image has the files for the trainer container (see the Dockerfile).
SHIPPED_FILES = Path("/opt/understudy/share")
CLOSE_FILE = "closed.json"
HARD_STATE_FILE = "hard-state.json"
COORDINATOR_VERDICT_FILE = "coordinator-verdict.json"
ORDER_FILE = "order.json"
LAUNCHER_FILE = "launcher-connected"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
TERMINATION_LOG = Path("/dev/termination-log")
#: The most bytes of a file in the state folder: the size of the volume. The hard state of a standby coordinator has a
#: leader snapshot (client.py), and while the file is replaced, the volume contains both versions.
STATE_BYTES = 32 << 20
PRIVATE, PUBLIC = 0o600, 0o644
T = TypeVar("T")
log = logging.getLogger(__name__)


class CannotStore(Exception):
    """The state volume does not accept a write: no message that relies on it may be sent."""


class CannotRead(Exception):
    """A file in the state folder is not one that a sidecar wrote. The text never quotes the file."""


def install_launcher(
    folder: Path, shipped: Path = SHIPPED_FILES, variables: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Copy launcher, entry script and the workers' Python folder into the shared volume, and write the variables for
    the launcher. Raises OSError.
    """
    files.install_folder(shipped, folder)
    if variables:
        files.write_file(folder / pod.VARIABLES_FILE, json.dumps(dict(variables)).encode())


def record_close(folder: Path, close: Close, termination_log: Path = TERMINATION_LOG) -> None:
    """Write errors are only logged: the launcher and the other members get the close anyway."""
    with _log_os_error("the close"):
        _write(folder / CLOSE_FILE, close)
    if termination_log.exists():
        with _log_os_error("the close as termination message"):
            termination_log.write_text(wire.encode(close)[:4096])


def recorded_close(folder: Path) -> Close | None:
    """The close that an earlier process of this sidecar stored. Raises CannotRead."""
    return _read(folder / CLOSE_FILE, Close)


def record_verdict(folder: Path, verdict: NodeVerdict) -> None:
    """Store the verdict for the launcher, which reads it when it gets SIGTERM: the file is complete at any moment."""
    with _log_os_error("the node health verdict for the launcher"):
        _write(folder / pod.VERDICT_FILE, verdict, PUBLIC)


def record_coordinator_verdict(folder: Path, verdict: NodeVerdict) -> None:
    """Store the verdict without the part that the node's file adds."""
    with _log_os_error("the node health verdict"):
        _write(folder / COORDINATOR_VERDICT_FILE, verdict)


def recorded_coordinator_verdict(folder: Path) -> NodeVerdict:
    """The verdict that an earlier process of this sidecar stored. Raises CannotRead."""
    return _read(folder / COORDINATOR_VERDICT_FILE, NodeVerdict) or NodeVerdict(Verdict.UNKNOWN)


def record_launcher(folder: Path, connected: bool) -> None:
    """Store whether the launcher is connected. Write errors are only logged."""
    with _log_os_error("whether the launcher is connected"):
        if connected:
            files.write_file(folder / LAUNCHER_FILE, BOOT_ID.read_bytes(), PRIVATE)
        else:
            (folder / LAUNCHER_FILE).unlink(missing_ok=True)


def recorded_launcher(folder: Path) -> bool:
    """Whether a launcher was connected when the previous process of this sidecar ended, and the node has not rebooted.

    After a reboot the trainer container starts again, and it is unknown how long that takes.
    """
    try:
        return files.read_file(folder / LAUNCHER_FILE, STATE_BYTES) == BOOT_ID.read_bytes()
    except OSError:
        return False


def record_hard_state(folder: Path, hard_state: HardState) -> None:
    """Store it before any message that relies on it. Raises CannotStore."""
    try:
        _write(folder / HARD_STATE_FILE, hard_state)
    except OSError as error:
        raise CannotStore(f"{folder}: {error.strerror}") from error


def recorded_hard_state(folder: Path) -> HardState:
    """The hard state that an earlier process of this sidecar stored. Raises CannotRead."""
    return _read(folder / HARD_STATE_FILE, HardState) or HardState()


def record_order(folder: Path, order: Order) -> None:
    """Store the job of this spare, with the job's key. Raises OSError."""
    _write(folder / ORDER_FILE, order)


def recorded_order(folder: Path) -> Order | None:
    """The order that an earlier process of this sidecar stored, if it was claimed. Raises CannotRead."""
    return _read(folder / ORDER_FILE, Order)


def _read(path: Path, expected: type[T]) -> T | None:
    """None if there is no such file. Raises CannotRead."""
    try:
        found = wire.decode(files.read_file(path, STATE_BYTES), {expected.__name__: expected})
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CannotRead(f"{path}: {error.strerror}; delete the pod") from None
    except wire.WireError:  # its text quotes the file
        found = None
    if not isinstance(found, expected):
        raise CannotRead(f"{path}: not a {expected.__name__} of this version's sidecar; delete the pod")
    return found


def _write(path: Path, message: object, mode: int = PRIVATE) -> None:
    files.write_file(path, wire.encode(message).encode(), mode)


@contextmanager
def _log_os_error(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        log.error("cannot write %s: %s", what, error)

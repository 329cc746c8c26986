"""What a sidecar leaves in files: the launcher for the trainer, the verdict, the proof of a close, and its vow.

The close is kept in the state volume, where a restarted sidecar finds it, and in the termination message, so that
one finished pod is proof enough for an operator that was away. The vow is kept so that no later life of this sidecar
gives an office away twice, or takes it again: one epoch and term, one coordinator.
"""

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from understudy_protocol import pod, wire
from understudy_protocol.membership import Close, NodeVerdict
from understudy_protocol.order import Order
from understudy_protocol.vow import Vow
from understudy_protocol.words import Verdict

#: Where the image holds what the trainer container needs (see the Dockerfile).
SHIPPED = Path("/opt/understudy/share")
CLOSE_FILE = "closed.json"
VOW_FILE = "vow.json"
TOLD_FILE = "told-verdict.json"
ORDER_FILE = "order.json"
TERMINATION_LOG = Path("/dev/termination-log")
log = logging.getLogger(__name__)


class CannotStore(Exception):
    """The state volume does not take what was to be stored: nothing that relies on it may be sent."""


def install_launcher(folder: Path, shipped: Path = SHIPPED) -> None:
    """Copy launcher, stub and the workers' Python folder into the volume that the trainer mounts."""
    for entry in shipped.iterdir():  # the volume's own folder belongs to root: nothing about it may be set
        if entry.is_dir():
            shutil.copytree(entry, folder / entry.name, dirs_exist_ok=True)
        else:
            shutil.copy(entry, folder / entry.name)


def record_close(folder: Path, close: Close, termination_log: Path = TERMINATION_LOG) -> None:
    """As far as it can be written: the launcher and the other members get the close all the same."""
    text = wire.encode(close)
    with _as_far_as_possible("the close"):
        (folder / CLOSE_FILE).write_text(text)
    if termination_log.exists():
        with _as_far_as_possible("the close as termination message"):
            termination_log.write_text(text[:4096])


def recorded_close(folder: Path) -> Close | None:
    """The close that a former life of this sidecar recorded."""
    try:
        text = (folder / CLOSE_FILE).read_text()
    except FileNotFoundError:
        return None
    close = wire.decode(text, {"Close": Close})
    return close if isinstance(close, Close) else None


def record_verdict(folder: Path, verdict: NodeVerdict) -> None:
    """For the launcher, which reads it when it is asked to end: whole at any moment."""
    with _as_far_as_possible("the node health verdict for the launcher"):
        _write_whole(folder / pod.VERDICT_FILE, verdict)


def record_told(folder: Path, verdict: NodeVerdict) -> None:
    """What the coordinator's part of it is."""
    with _as_far_as_possible("the node health verdict"):
        _write_whole(folder / TOLD_FILE, verdict)


def recorded_told(folder: Path) -> NodeVerdict:
    """What a former life of this sidecar was told of its node."""
    try:
        text = (folder / TOLD_FILE).read_text()
    except FileNotFoundError:
        return NodeVerdict(Verdict.UNKNOWN)
    verdict = wire.decode(text, {"NodeVerdict": NodeVerdict})
    assert isinstance(verdict, NodeVerdict), "the file is this module's own"
    return verdict


def record_vow(folder: Path, vow: Vow) -> None:
    """Before anything is sent that relies on it. Raises CannotStore."""
    try:
        _write_whole(folder / VOW_FILE, vow)
    except OSError as error:
        raise CannotStore(f"{folder}: {error.strerror}") from error


def recorded_vow(folder: Path) -> Vow:
    """What a former life of this sidecar has promised."""
    try:
        text = (folder / VOW_FILE).read_text()
    except FileNotFoundError:
        return Vow()
    vow = wire.decode(text, {"Vow": Vow})
    assert isinstance(vow, Vow), "the file is this module's own"
    return vow


def record_order(folder: Path, order: Order) -> None:
    """Whose this spare is, and that job's key: for nobody else to read."""
    aside = folder / f"{ORDER_FILE}.new"
    aside.touch(mode=0o600)
    _write_whole(folder / ORDER_FILE, order)


def recorded_order(folder: Path) -> Order | None:
    """What a former life of this sidecar was told, if it was claimed."""
    try:
        text = (folder / ORDER_FILE).read_text()
    except FileNotFoundError:
        return None
    return read_order(text)


def read_order(text: str) -> Order:
    """Raises WireError."""
    order = wire.decode(text, {"Order": Order})
    if not isinstance(order, Order):
        raise wire.WireError(f"expected an Order, got {order.type[:64]!r}")
    return order


@contextmanager
def _as_far_as_possible(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        log.error("cannot write %s: %s", what, error)


def _write_whole(path: Path, message: object) -> None:
    """Written aside and moved: a kill in between leaves the former one."""
    aside = path.with_name(f"{path.name}.new")
    aside.write_text(wire.encode(message))
    os.replace(aside, path)

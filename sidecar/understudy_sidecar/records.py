"""What a sidecar leaves in files: the launcher for the trainer container, the proof of a close, and its newest office.

The close is kept in the shared emptyDir, where a restarted sidecar finds it, and in the termination message, so that
one finished pod is proof enough for an operator that was away. The epoch is kept so that no later life of this sidecar
takes office in it again: one epoch, one coordinator.
"""

import os
import shutil
from pathlib import Path

from understudy_protocol import wire
from understudy_protocol.membership import Close

#: Where the image holds what the trainer container needs (see the Dockerfile).
SHIPPED = Path("/opt/understudy/share")
CLOSE_FILE = "closed.json"
EPOCH_FILE = "epoch"
TERMINATION_LOG = Path("/dev/termination-log")


def install_launcher(folder: Path, shipped: Path = SHIPPED) -> None:
    """Copy launcher, stub and the workers' Python folder into the volume that the trainer mounts."""
    for entry in shipped.iterdir():  # the volume's own folder belongs to root: nothing about it may be set
        if entry.is_dir():
            shutil.copytree(entry, folder / entry.name, dirs_exist_ok=True)
        else:
            shutil.copy(entry, folder / entry.name)


def record_close(folder: Path, close: Close, termination_log: Path = TERMINATION_LOG) -> None:
    text = wire.encode(close)
    (folder / CLOSE_FILE).write_text(text)
    if termination_log.exists():
        termination_log.write_text(text[:4096])


def recorded_close(folder: Path) -> Close | None:
    """The close that a former life of this sidecar recorded."""
    try:
        text = (folder / CLOSE_FILE).read_text()
    except FileNotFoundError:
        return None
    close = wire.decode(text, {"Close": Close})
    return close if isinstance(close, Close) else None


def record_epoch(folder: Path, epoch: int) -> None:
    """Before the office is taken. Written aside and moved: a kill in between leaves the former one."""
    aside = folder / f"{EPOCH_FILE}.new"
    aside.write_text(str(epoch))
    os.replace(aside, folder / EPOCH_FILE)


def recorded_epoch(folder: Path) -> int:
    """The newest epoch in which this pod's sidecar has taken office; 0 if in none."""
    try:
        return int((folder / EPOCH_FILE).read_text())
    except FileNotFoundError:
        return 0

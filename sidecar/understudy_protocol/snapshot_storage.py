"""Snapshots in a folder on storage that all pods share: their names, and which of them a round restores.

    FOLDER/EPOCH.TERM.ROUND-STEP-of-RANKS/RANK    a rank's snapshot: the page of its header, and its content
    FOLDER/EPOCH.TERM.ROUND-STEP-of-RANKS/.RANK   the same while it is written
    FOLDER/choice-EPOCH.TERM.ROUND                which snapshot this round restores

Rules: a snapshot counts once all of its ranks have their files. Its name has the round that saved it, so a process of a
replaced round overwrites nothing of a newer one. The worker of rank 0 chooses, and the workers of the other ranks wait
for its choice: else two looks at a folder that changes could give two steps. The standard library alone.
"""

import contextlib
import errno
import json
import os
import re
import time
from dataclasses import dataclass
from typing import Callable, Optional

from understudy_protocol.enums import RoundToken
from understudy_protocol.snapshots import SavedStep

_NAME = re.compile(r"(\d{10,})\.(\d{10,})\.(\d{10,})-(\d+)-of-(\d+)", re.ASCII)
_CHOICE = "choice-"
_CHOICE_NAME = re.compile(r"choice-(\d+)\.(\d+)\.(\d+)(?:\.new)?", re.ASCII)
_POLL_S = 0.05
WAIT_S = 300.0
_LOG_AFTER_S = 10.0


class SnapshotStorageError(RuntimeError):
    """The folder of spec.snapshots.storage cannot be read or written."""


@dataclass(frozen=True, order=True)
class StoredStep:
    """A folder with the snapshots of one step. The order is that of the training."""

    saved: SavedStep
    world_size: int

    @property
    def name(self) -> str:
        token = self.saved.token
        return f"{token.epoch:010d}.{token.term:010d}.{token.round:010d}-{self.saved.step}-of-{self.world_size}"


@dataclass(frozen=True)
class StorageChoice:
    """name: of the folder that the round restores; "": none, and `reason` says why."""

    name: str
    reason: str = ""


def stored_steps(folder: str) -> list[StoredStep]:
    """Newest first, also incomplete ones. Raises OSError."""
    found = []
    for name in os.listdir(folder):
        match = _NAME.fullmatch(name)
        if match is not None:
            epoch, term, number, step, ranks = map(int, match.groups())
            found.append(StoredStep(SavedStep(RoundToken(epoch, term, number), step), ranks))
    return sorted(found, reverse=True)


def is_complete(folder: str, stored: StoredStep) -> bool:
    """Whether each rank has written its file."""
    try:
        names = set(os.listdir(os.path.join(folder, stored.name)))
    except FileNotFoundError:  # removed meanwhile
        return False
    return all(str(rank) in names for rank in range(stored.world_size))


def choose(folder: str, world_size: int, before_step: Optional[int]) -> StorageChoice:
    """The newest complete snapshot. before_step: only of an older step; None: of any. Raises OSError."""
    steps = stored_steps(folder)
    if not steps:
        return StorageChoice("", f"{folder} has no snapshot")
    of_this_size = [x for x in steps if x.world_size == world_size]
    if not of_this_size:
        ranks = steps[0].world_size
        return StorageChoice("", f"the snapshots in {folder} are of {ranks} ranks, and this round has {world_size}")
    complete = [x for x in of_this_size if is_complete(folder, x)]
    if not complete:
        return StorageChoice("", f"no snapshot in {folder} has the files of all {world_size} ranks")
    older = [x for x in complete if before_step is None or x.saved.step < before_step]
    if not older:
        return StorageChoice("", f"no complete snapshot in {folder} is older than step {before_step}")
    return StorageChoice(older[0].name)


def agreed_choice(
    folder: str, token: RoundToken, rank: int, world_size: int, before_step: Optional[int], log: Callable[[str], None]
) -> StorageChoice:
    """The choice of rank 0 for this round. Raises SnapshotStorageError."""
    path = os.path.join(folder, f"{_CHOICE}{token.epoch}.{token.term}.{token.round}")
    try:
        _check_folder(folder)
        if rank == 0:
            choice = choose(folder, world_size, before_step)
            if world_size > 1:
                _publish(path, choice, token)
            return choice
        return _wait_for(path, log)
    except OSError as error:
        raise SnapshotStorageError(
            f"spec.snapshots.storage.path: {error.strerror or error}: {error.filename or folder}. Mount a volume there "
            "that the workers of all pods can write"
        ) from error


def _check_folder(folder: str) -> None:
    """In each rank: else only rank 0 would fail, and each restart again, because the other ranks wait for its choice.
    If all ranks fail with the same text, the job ends (understudy_sidecar/membership/script_fault.py).
    """
    os.makedirs(folder, exist_ok=True)
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise OSError(errno.EACCES, "the workers cannot write there")


def _publish(path: str, choice: StorageChoice, token: RoundToken) -> None:
    """And remove the choices of older rounds. A process of a replaced round removes none of a newer one."""
    folder = os.path.dirname(path)
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        json.dump({"name": choice.name, "reason": choice.reason}, file)
    os.replace(f"{path}.new", path)
    for name in os.listdir(folder):
        match = _CHOICE_NAME.fullmatch(name)
        if match is not None and RoundToken(*map(int, match.groups())) < token:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(folder, name))


def _wait_for(path: str, log: Callable[[str], None]) -> StorageChoice:
    since, is_logged = time.monotonic(), False
    while (waited_s := time.monotonic() - since) < WAIT_S:
        with contextlib.suppress(FileNotFoundError), open(path, encoding="utf-8") as file:
            content = json.load(file)
            return StorageChoice(content["name"], content["reason"])
        if not is_logged and waited_s > _LOG_AFTER_S:
            is_logged = True
            log(
                f"snapshot.load() has waited {_LOG_AFTER_S:g} s for rank 0, which chooses a snapshot on storage: {path}"
            )
        time.sleep(_POLL_S)
    raise SnapshotStorageError(
        f"rank 0 has chosen no snapshot on storage within {WAIT_S:g} s: there is no {path}. The volume of "
        "spec.snapshots.storage.path must be the same in all pods"
    )

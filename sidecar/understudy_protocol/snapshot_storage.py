"""Snapshots in a folder on storage that all pods share: their names, and which of them a round restores.

    FOLDER/EPOCH.TERM.ROUND-STEP-of-RANKS/RANK    a rank's snapshot: the page of its header, and its content
    FOLDER/EPOCH.TERM.ROUND-STEP-of-RANKS/.RANK   the same while it is written
    FOLDER/EPOCH.TERM.ROUND-STEP-of-RANKS/RANK.failed    the rank could not write it
    FOLDER/choice-EPOCH.TERM.ROUND                which snapshot this round restores

Rules: a snapshot counts once all of its ranks have their files. Its name has the round that saved it, so a process of a
replaced round overwrites nothing of a newer one. The worker of rank 0 chooses, and the workers of the other ranks wait
for its choice: else two looks at a folder that changes could give two steps. The coordinator reports steps that are
suspect, because rounds have failed soon after them. It does not know which snapshot on storage a round has restored. So
the choice of a round also records this for the next ones. The standard library alone.
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
FAILED = ".failed"
#: A training that fails again within so many steps of the suspect one has got no further.
_SAME_STEPS = 3
WAIT_S = 300.0
NO_MEMORY_IN_RANK_0 = "rank 0 has no memory for snapshots, so no rank restores one"
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
    """name: of the folder that the round restores; "": none, and `reason` says why. With a name, `reason` is about
    newer snapshots of another world size; "": there are none.
    """

    name: str
    reason: str = ""


@dataclass(frozen=True)
class _Suspicion:
    """Since the round `token`, snapshots of the step before_step or newer ones do not count, unless this round or a
    later one has saved them. suspect_step: as the coordinator has reported it. restored: by that round.
    """

    token: RoundToken
    before_step: int
    suspect_step: int
    restored: Optional[int]


def stored_steps(folder: str) -> list[StoredStep]:
    """Newest first, also incomplete ones. Raises OSError."""
    found = []
    for name in os.listdir(folder):
        stored = _stored_step(name)
        if stored is not None:
            found.append(stored)
    return sorted(found, reverse=True)


def _stored_step(name: str) -> Optional[StoredStep]:
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    epoch, term, number, step, ranks = map(int, match.groups())
    return StoredStep(SavedStep(RoundToken(epoch, term, number), step), ranks)


def is_complete(folder: str, stored: StoredStep) -> bool:
    """Whether each rank has written its file. A directory or a pipe of that name, for example, cannot be restored."""
    try:
        names = _files(os.path.join(folder, stored.name))
    except (FileNotFoundError, NotADirectoryError):  # removed meanwhile, or a file of this name
        return False
    return all(str(rank) in names for rank in range(stored.world_size))


def _files(folder: str) -> set[str]:
    """Raises OSError."""
    with os.scandir(folder) as entries:
        return {entry.name for entry in entries if entry.is_file()}


def choose(
    folder: str, world_size: int, before_step: Optional[int], since: Optional[RoundToken] = None
) -> StorageChoice:
    """The newest complete snapshot. before_step: only of an older step, or saved by the round `since` or a later one;
    None: of any step. Raises OSError.
    """
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
    older = [
        x
        for x in complete
        if before_step is None or x.saved.step < before_step or (since is not None and x.saved.token >= since)
    ]
    if not older:
        return StorageChoice("", f"no complete snapshot in {folder} is older than step {before_step}")
    newer = [x for x in steps if x > older[0] and x.world_size != world_size]
    if not newer:
        return StorageChoice(older[0].name)
    ranks, step = newer[0].world_size, newer[0].saved.step
    return StorageChoice(older[0].name, f"the newer snapshot of step {step} is of {ranks} ranks, and is not restored")


def agreed_choice(
    folder: str,
    token: RoundToken,
    rank: int,
    world_size: int,
    before_step: Optional[int],
    log: Callable[[str], None],
    *,
    has_memory: bool = True,
) -> StorageChoice:
    """The choice of rank 0 for this round. has_memory: this rank can restore one. Raises SnapshotStorageError."""
    path = os.path.join(folder, f"{_CHOICE}{token.epoch}.{token.term}.{token.round}")
    try:
        _check_folder(folder)
        if rank == 0:
            if has_memory:
                choice, suspicion = _choose(folder, token, world_size, before_step)
            else:
                choice, suspicion = StorageChoice("", NO_MEMORY_IN_RANK_0), _last_suspicion(folder, token)
            _publish(path, choice, token, suspicion)
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


def _choose(
    folder: str, token: RoundToken, world_size: int, suspect_step: Optional[int]
) -> "tuple[StorageChoice, Optional[_Suspicion]]":
    """The choice of this round, and which snapshots are suspect from now on. suspect_step: as the coordinator reports
    it. Raises OSError.
    """
    before = _last_suspicion(folder, token)
    if suspect_step is None and before is None:
        return choose(folder, world_size, None), None
    if suspect_step is None:
        assert before is not None
        choice = choose(folder, world_size, before.before_step, before.token)
        stored = _stored_step(choice.name)
        return choice, before if stored is None or stored.saved.token < before.token else None
    before_step = suspect_step
    if before is not None and suspect_step <= before.suspect_step + _SAME_STEPS:
        before_step = min(before_step, before.before_step if before.restored is None else before.restored)
    choice = choose(folder, world_size, before_step)
    stored = _stored_step(choice.name)
    return choice, _Suspicion(token, before_step, suspect_step, None if stored is None else stored.saved.step)


def _last_suspicion(folder: str, token: RoundToken) -> Optional[_Suspicion]:
    """That the newest choice of an older round has recorded."""
    found = [(RoundToken(*map(int, match.groups())), name) for name in _files(folder) if (match := _choice(name))]
    older = [(of_round, name) for of_round, name in found if of_round < token]
    if not older:
        return None
    try:
        with open(os.path.join(folder, max(older)[1]), encoding="utf-8") as file:
            of_round, before_step, suspect_step, restored = json.load(file)["suspicion"]
        return _Suspicion(RoundToken(*of_round), before_step, suspect_step, restored)
    except (FileNotFoundError, ValueError, TypeError, KeyError):  # it has none
        return None


def _choice(name: str) -> "Optional[re.Match[str]]":
    return None if name.endswith(".new") else _CHOICE_NAME.fullmatch(name)


def _publish(path: str, choice: StorageChoice, token: RoundToken, suspicion: Optional[_Suspicion]) -> None:
    """And remove the choices of older rounds. On a full volume, the choice needs their room: else each round fails."""
    recorded = None
    if suspicion is not None:
        of_round = (suspicion.token.epoch, suspicion.token.term, suspicion.token.round)
        recorded = (of_round, suspicion.before_step, suspicion.suspect_step, suspicion.restored)
    text = json.dumps({"name": choice.name, "reason": choice.reason, "suspicion": recorded})
    try:
        _write(path, text)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _remove_older_choices(path, token)
        _write(path, text)
    _remove_older_choices(path, token)


def _write(path: str, text: str) -> None:
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(f"{path}.new", path)


def _remove_older_choices(path: str, token: RoundToken) -> None:
    """A process of a replaced round removes none of a newer one."""
    folder = os.path.dirname(path)
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
        "spec.snapshots.storage.path must be the same in all pods, and rank 0 must call snapshot.load() within this "
        "time: call it before work that only rank 0 does"
    )

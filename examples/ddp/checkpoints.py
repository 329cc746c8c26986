"""A checkpoint store on a shared folder, in which the writes of a replaced worker do not count.

The danger: a pod freezes inside its save, its ranks go to a spare, the job trains on, and then the pod thaws. Nothing
can stop it, so its writes must not count. Its round decides: every round of a job has a token, `epoch.term.round`,
which only grows (UNDERSTUDY_ROUND; `0.0.0` outside Understudy, where the attempts of one token are numbered by their
start). The rules, all for rank 0:

1. A round writes into a folder of its own and nowhere else: `000001.000001.000003-0000/`.
2. It begins in this order: create the folder; look for newer folders, and stop if there is one (`StaleRound`); link the
   newest intact checkpoints of the newest begun round into the own folder; look again; create the file `BEGUN` there.
3. For all later rounds only the folder of the newest begun round counts.
4. A save writes a temporary file, looks for newer folders, renames the file to its name, and looks again.
5. Only files that no round needs are removed: all but the newest two files of the own folder, and, once the round has
   saved something itself, the folders of older rounds.

Why it holds. Of two rounds at once each creates its folder before it looks, so either the older one sees the newer one,
or the newer one sees the older one's folder with all that it has published. A save that returns saw no newer folder
after its rename, so every later round finds its file. If a newer folder appears between a look and the rename, the save
raises StaleRound, and its file does not count: by rule 3 later rounds read the newer round's folder. By rule 2 that
folder has all files from which the newer round resumed, under names of its own, which an old round never touches. So
the kept history is one line, whenever a process freezes and thaws. No lock and no clock is involved, and no look has to
be in time for the line to stay one; looks only save a replaced worker useless work, and report that its save is void.

A checkpoint file contains the length and SHA-256 of its content, so a file that a power cut truncated is found and
skipped. The module does not depend on torch: the caller provides the two functions between a state and its bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KEPT = 2
BEGUN = "BEGUN"
MAGIC = b"understudy checkpoint 1\n"
HEADER_BYTES = len(MAGIC) + 8 + hashlib.sha256().digest_size


class StaleRound(RuntimeError):
    """A newer round has begun: this worker was replaced and must stop without writing anything."""

    def __init__(self, own: RoundId, newest: RoundId, folder: Path) -> None:
        super().__init__(
            f"round {own} is over: round {newest} has begun in {folder}. This worker was replaced and stops. "
            f"(A new job needs a checkpoint folder of its own, or an empty one.)"
        )


class CorruptCheckpoint(ValueError):
    """A checkpoint file's content differs from the written content."""


class RoundId(NamedTuple):
    """One attempt at one round, in the order in which they began."""

    epoch: int
    term: int
    number: int
    attempt: int = 0

    @classmethod
    def parse(cls, token: str) -> RoundId:
        """Read a token in the format of UNDERSTUDY_ROUND."""
        if not re.fullmatch(r"\d+\.\d+\.\d+", token):
            raise ValueError(f"round token {token!r}: expected epoch.term.round, three whole numbers")
        return cls(*map(int, token.split(".")))

    @classmethod
    def of_folder(cls, name: str) -> RoundId | None:
        """Read a folder's name; None if it is no round's."""
        found = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)-(\d+)", name)
        return cls(*map(int, found.groups())) if found else None

    @property
    def folder(self) -> str:
        return f"{self.epoch:06d}.{self.term:06d}.{self.number:06d}-{self.attempt:04d}"

    def __str__(self) -> str:
        token = f"{self.epoch}.{self.term}.{self.number}"
        return f"{token} (attempt {self.attempt})" if self.attempt else token


class CheckpointStore:
    """The checkpoints of one job. Rank 0 calls `begin` and `save`; any rank may `load` the checkpoint that rank 0
    chose.
    """

    def __init__(
        self, folder: Path, token: str, dumps: Callable[[Any], bytes], loads: Callable[[bytes], Any], kept: int = KEPT
    ) -> None:
        self.folder = folder
        self._round = RoundId.parse(token)
        self._dumps = dumps
        self._loads = loads
        self._kept = kept

    def begin(self) -> Path | None:
        """Begin the round. Returns the checkpoint to resume from, None if there is none (rule 2)."""
        self._announce()
        with self._gone_means_stale():
            self._require_newest()
            taken = self._take_over()
            self._require_newest()  # a newer round may have removed the files to link
            _sync_folder(self._own)  # a power cut must not keep the mark and lose the links
            (self._own / BEGUN).touch()
            _sync_folder(self._own)
        return taken[0] if taken else None

    def load(self, checkpoint: Path) -> Any:
        """Read a state back. Raises CorruptCheckpoint if its content differs from the saved one."""
        with self._gone_means_stale():
            data = checkpoint.read_bytes()
        return self._loads(_unframed(data, checkpoint))

    def save(self, step: int, state: Any) -> Path:
        """Publish the state under its step, and remove files that are no longer needed (rules 4 and 5)."""
        final = self._own / f"step-{step:09d}.ckpt"
        partial = final.with_suffix(".partial")
        with self._gone_means_stale():
            self._require_newest()
            try:
                _write(partial, _framed(self._dumps(state)))
                self._require_newest()
                partial.rename(final)
            finally:
                partial.unlink(missing_ok=True)
            _sync_folder(self._own)
            self._require_newest()
            self._prune()
        return final

    @property
    def _own(self) -> Path:
        return self.folder / self._round.folder

    def _rounds(self) -> list[RoundId]:
        found = (RoundId.of_folder(name) for name in os.listdir(self.folder))
        return sorted(round_id for round_id in found if round_id is not None)

    def _announce(self) -> None:
        """Create the round's folder. The same token again is a new attempt, newer than those before it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        while True:
            same = [one.attempt for one in self._rounds() if one[:3] == self._round[:3]]
            self._round = self._round._replace(attempt=max(same, default=-1) + 1)
            with contextlib.suppress(FileExistsError):  # another attempt took the number
                self._own.mkdir()
                _sync_folder(self.folder)
                return

    def _require_newest(self) -> None:
        newest = max(self._rounds(), default=self._round)
        if newest > self._round:
            with contextlib.suppress(OSError):
                self._own.rmdir()  # only if nothing is in it
            raise StaleRound(self._round, newest, self.folder)

    def _take_over(self) -> list[Path]:
        """Link the newest intact checkpoints of the newest begun round into the own folder; newest first."""
        older = (self.folder / one.folder for one in reversed(self._rounds()) if one < self._round)
        predecessor = next((folder for folder in older if (folder / BEGUN).exists()), None)
        taken: list[Path] = []
        for checkpoint in reversed(_checkpoints(predecessor)) if predecessor else ():
            if len(taken) < self._kept and _taken_over(checkpoint, self._own):
                taken.append(self._own / checkpoint.name)
        return taken

    def _prune(self) -> None:
        for checkpoint in _checkpoints(self._own)[: -self._kept]:
            checkpoint.unlink(missing_ok=True)
        for one in self._rounds():
            if one < self._round:
                shutil.rmtree(self.folder / one.folder, ignore_errors=True)

    @contextlib.contextmanager
    def _gone_means_stale(self) -> Iterator[None]:
        """Only a newer round removes this one's folder (rule 5), so a missing folder means the same as a newer one."""
        try:
            yield
        except FileNotFoundError:
            self._require_newest()
            raise


def _checkpoints(folder: Path) -> list[Path]:
    """The folder's published checkpoints, oldest step first."""
    return sorted(folder.glob("step-*.ckpt"))


def _taken_over(checkpoint: Path, into: Path) -> bool:
    """Give the checkpoint a name in another round's folder, if it is intact; a warning if it is not."""
    partial = into / f"{checkpoint.name}.partial"
    try:
        _link_or_copy(checkpoint, partial)
        _unframed(partial.read_bytes(), checkpoint)
        partial.rename(into / checkpoint.name)
    except CorruptCheckpoint as error:
        print(f"warning: skipped {error}", file=sys.stderr, flush=True)
        partial.unlink()
        return False
    except FileNotFoundError:
        if into.exists():
            return False  # removed by its round, which published one more in the meantime
        raise
    return True


def _link_or_copy(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # no hard links here, or not of another user's file
        _write(target, source.read_bytes())


def _framed(content: bytes) -> bytes:
    return MAGIC + len(content).to_bytes(8, "big") + hashlib.sha256(content).digest() + content


def _unframed(data: bytes, origin: Path) -> bytes:
    content = data[HEADER_BYTES:]
    if not data.startswith(MAGIC):
        raise CorruptCheckpoint(f"{origin}: not a checkpoint, or one that was never fully written")
    length = int.from_bytes(data[len(MAGIC) : len(MAGIC) + 8], "big")
    if len(content) != length:
        raise CorruptCheckpoint(f"{origin}: truncated, {len(content)} of {length} bytes")
    if hashlib.sha256(content).digest() != data[len(MAGIC) + 8 : HEADER_BYTES]:
        raise CorruptCheckpoint(f"{origin}: checksum mismatch")
    return content


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

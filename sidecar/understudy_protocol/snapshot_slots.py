"""The file of a rank's snapshots, as a worker writes and reads it: for understudy_torch and understudy_jax.

    the file of a local rank, inherited as UNDERSTUDY_SNAPSHOT_FD
    ------  --------------------------------------------------------------------------------------------------------
    page 0  the order: round, rank, and what the round restores; written by understudy_launcher/snapshot_memory.py; at
            its end the slot that the sidecar copies to another pod
    page 1  the header of slot 0, then the content of slot 0: the structure of the state, then its arrays
    ...     the same for slot 1

Rules: a save writes into the slot whose snapshot the next round would not restore: it clears the header, copies, and
writes the header last. So a worker that is killed at any instant leaves the other slot whole. A state that does not
fit, or that cannot be restored, fails this save with a message on stderr, and the training continues. Outside a job, or
in one without memory for snapshots, there is no file.

A library's module packs a state into a structure, of bytes, and into its arrays. The digest is SHA-256 over the names
in the header, the structure, and the sums of the arrays' blocks as 64-bit integers: each flipped bit changes the sum of
its block, and a sum costs less than the copy. The contents are mapped, because a copy into a mapping takes half the
time of a system call. A slot's pages are mapped at once at its first use in a process, instead of by a page fault each.

This module needs the standard library alone. It runs in the user's processes.
"""

import contextlib
import hashlib
import mmap
import operator
import os
import struct
import sys
import threading
import time
from binascii import crc32
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple, Optional

from understudy_protocol.enums import RoundToken
from understudy_protocol.pod import ENV_ROUND, ENV_SNAPSHOT_FD, ENV_SNAPSHOT_STORAGE_PATH
from understudy_protocol.snapshot_files import (
    COPIED,
    COPIED_OFFSET,
    HEADER,
    MAGIC,
    MEMORY,
    ORDER,
    PAGE_BYTES,
    PENDING,
    SLOTS,
    STORAGE_OFFSET,
    STORAGE_SETTINGS,
    STORING,
    STORING_OFFSET,
)
from understudy_protocol.snapshot_storage import SnapshotStorageError, agreed_choice
from understudy_protocol.snapshots import MAX_STEP

BLOCK_BYTES = 1 << 16
_NOT_FETCHED = (0, 0, 0)
_ALIGNMENT = 64
_MADV_POPULATE_WRITE = 23  # since Linux 5.14
_POLL_S = 0.001
_LOG_AFTER_S = 10.0
_MOST_SHOWN = 80  # characters of a value in a message
_NO_MEMORY = "this process is no worker of a job with spec.snapshots, or its pod has no memory for snapshots"
_NOT_ASKED = "snapshot.load() was not called"

Token = tuple[int, int, int]

#: Saves of several threads follow one another: two at once would write the same slot. A signal handler may save, too.
_saving = threading.RLock()


def _renew_lock() -> None:
    """In a forked child: the thread of the parent that has the lock does not exist there."""
    global _saving
    _saving = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


class DamagedSnapshotError(RuntimeError):
    """The content of a snapshot has changed. It is discarded: the next round restores a copy of it, or a checkpoint."""


class UnsuitableState(Exception):
    """The state cannot be stored. The text has the reason."""


class _ChangedContent(Exception):
    """A snapshot is not as it was saved. The text has the reason."""


class WrongLibraryError(ValueError):
    """The snapshot is whole, but the module of another library has saved it."""


class Part(NamedTuple):
    """An array of a state. copy: copies it into this memory at this offset for a save, and out of it for a load.
    Returns the block sums of the memory there: the sums of its blocks of BLOCK_BYTES as 64-bit integers, native, then
    the last bytes, which are no full integer, as they are. prepare: is called before the copies, with the memory, and
    the offset and the length of all arrays together; once if several parts have the same one.
    """

    size: int
    copy: Callable[[mmap.mmap, int], bytes]
    prepare: Optional[Callable[[mmap.mmap, int, int], None]] = None


Pack = Callable[[Any], tuple[bytes, Sequence[Part]]]  # a state -> its structure and its arrays; raises UnsuitableState
Unpack = Callable[[bytes], tuple[Any, Sequence[Part]]]  # a structure -> the state, and its arrays to be filled


class SnapshotSlots:
    """The file of this rank. fd: the inherited file."""

    def __init__(self, fd: int, token: Token) -> None:
        self._fd, self._token = fd, token
        order = self._order()
        self._slot_bytes, self._every, self._rank, self._world_size = order[1], order[2], order[6], order[7]
        self._calls = 0
        self._target: Optional[int] = None  # the slot for the next save
        self._newest: Optional[int] = None  # the step that was restored or saved last
        self._saved: Optional[int] = None  # the step that was saved last
        self._complaints: set[str] = set()
        self._mapped: Optional[mmap.mmap] = None
        self._populated: set[int] = set()  # slots
        self.reason = _NOT_ASKED

    # The order ------------------------------------------------------------------------------------------------------

    def _order(self) -> tuple[int, ...]:
        return ORDER.unpack(os.pread(self._fd, ORDER.size, 0))

    def _is_current(self) -> bool:
        """Whether this worker belongs to the round of the order: no worker of an older round writes."""
        return self._order()[3:6] == self._token

    def _choice(self) -> tuple[int, ...]:
        """Wait until the launcher has written the choice."""
        since, is_logged = time.monotonic(), False
        while (order := self._order())[8] == PENDING or order[3:6] != self._token:
            if not is_logged and time.monotonic() > since + _LOG_AFTER_S:
                is_logged = True
                _log(
                    f"snapshot.load() has waited {_LOG_AFTER_S:g} s until the workers of all pods are started, and new "
                    "pods have fetched their copies"
                )
            time.sleep(_POLL_S)
        return order

    # Restore --------------------------------------------------------------------------------------------------------

    def load(self, unpack: Unpack) -> Optional[Any]:
        """The state that the coordinator has chosen for the round; None: see `reason`. Waits for the choice."""
        if self._target is not None:
            raise RuntimeError("snapshot.load() restores once, before the first snapshot.save() of a process")
        order = self._choice()
        state, slot, step, length = order[8:]
        if state != MEMORY:
            self.reason = os.pread(self._fd, length, ORDER.size).decode(errors="replace")
            return self._load_stored(unpack, None if step < 0 else step)
        if slot not in range(SLOTS):
            raise DamagedSnapshotError(f"rank {self._rank} has no snapshot of step {step}, which all others restore")
        try:
            restored = self._read(slot, step, unpack)
        except _ChangedContent as error:  # after any other error, such as a module that is missing, it may be whole
            self._clear(slot)
            raise DamagedSnapshotError(
                f"the snapshot of step {step} of rank {self._rank} is damaged ({error}), and is discarded: the next "
                "round restores a copy of it, or a checkpoint. Check the memory of this node"
            ) from error
        self.reason, self._target, self._newest = "", 1 - slot, step
        return restored

    def _load_stored(self, unpack: Unpack, before_step: Optional[int]) -> Optional[Any]:
        """The state of a snapshot in the folder of spec.snapshots.storage, if there is one: read into a slot, and from
        there. before_step: see choose().
        """
        _, length = STORAGE_SETTINGS.unpack(os.pread(self._fd, STORAGE_SETTINGS.size, STORAGE_OFFSET))
        folder = os.pread(self._fd, length, STORAGE_OFFSET + STORAGE_SETTINGS.size).decode(errors="replace")
        if not folder:
            return None
        choice = agreed_choice(folder, RoundToken(*self._token), self._rank, self._world_size, before_step, _log)
        if not choice.name:
            self.reason = f"{self.reason}; {choice.reason}"
            return None
        path, slot = os.path.join(folder, choice.name, str(self._rank)), self._free_slot()
        try:
            step = self._read_file(path, slot)
            restored = self._read(slot, step, unpack)
        except OSError as error:
            raise SnapshotStorageError(f"the snapshot {path} cannot be read: {error.strerror or error}") from error
        except _ChangedContent as error:  # after any other error, the file may be whole
            self._clear(slot)
            with contextlib.suppress(OSError):
                os.rename(path, f"{path}.damaged")
            raise DamagedSnapshotError(
                f"the snapshot {path} cannot be restored ({error}), and is discarded: the next round restores an older "
                "one, or a checkpoint. Check the storage"
            ) from error
        _log(f"restored step {step} from {path}{choice.reason and '; '}{choice.reason}")
        self.reason, self._target, self._newest = "", 1 - slot, step
        return restored

    def _read_file(self, path: str, slot: int) -> int:
        """Copy the file into the slot. Return the step of its header. Raises _ChangedContent, OSError, and
        SnapshotStorageError.
        """
        self._clear(slot)
        with open(path, "rb", buffering=0) as file:
            header, size = file.read(HEADER.size), os.fstat(file.fileno()).st_size - PAGE_BYTES
            if len(header) != HEADER.size or size <= 0:
                raise _ChangedContent("it is incomplete")
            if size > self._slot_bytes:
                raise SnapshotStorageError(
                    f"the snapshot {path} has {_mib(size)}, and spec.snapshots.size is {_mib(self._slot_bytes)}: raise "
                    "the size"
                )
            at = self._content(slot)
            self._populate(slot, size)
            file.seek(PAGE_BYTES)
            left = memoryview(self._map())[at : at + size]
            while left:
                count = file.readinto(left)
                if not count:
                    raise _ChangedContent("it has become shorter")
                left = left[count:]
        fields = HEADER.unpack(header)
        if fields[5:7] != (self._rank, self._world_size):
            raise _ChangedContent(f"it is of rank {fields[5]} of {fields[6]}")
        _pwrite_bytes(self._fd, header, at - PAGE_BYTES)
        return int(fields[4])

    def _read(self, slot: int, step: int, unpack: Unpack) -> Any:
        """The state in a slot. Raises _ChangedContent if the slot is damaged, and any error of `unpack`."""
        at = self._content(slot)
        header = os.pread(self._fd, HEADER.size, at - PAGE_BYTES)
        fields = HEADER.unpack(header)
        if fields[0] != MAGIC or fields[-1] != crc32(header[:-8]) or fields[4] != step:
            raise _ChangedContent("its header has changed")
        names, structure_bytes, total, crc, digest = header[8:56], *fields[7:10], fields[12]
        structure = os.pread(self._fd, structure_bytes, at)
        if crc32(structure) != crc:
            raise _ChangedContent("its structure has changed")
        state, parts = unpack(structure)
        layout, end = _layout(structure_bytes, parts)
        if end != total or total > self._slot_bytes:
            raise _ChangedContent("its structure does not fit its header")
        found = hashlib.sha256(names + structure)
        self._prepare(parts, at, total)
        for part, offset in zip(parts, layout):
            found.update(part.copy(self._map(), at + offset))
        if found.digest() != digest:
            raise _ChangedContent("its digest is wrong")
        return state

    # Save -----------------------------------------------------------------------------------------------------------

    def save(self, step: int, state: Any, pack: Pack) -> bool:
        """Return whether it was stored."""
        with _saving:
            self._calls += 1
            if (self._calls - 1) % self._every:
                return False
            try:
                return self._write(self._checked_step(step), *pack(state))
            except (UnsuitableState, RecursionError, OSError) as error:
                self.complain(f"snapshot.save({shown(step)}) has stored nothing: {error}", about=str(error))
                return False

    def _checked_step(self, step: Any) -> int:
        """Of the snapshots of a round, that with the largest step is the newest one, also in the copies."""
        number = whole_step(step)
        if number is None:
            raise UnsuitableState(f"its step is {shown(step)}: expected a whole number from 0 to 2^53 - 1")
        if self._saved is not None and number <= self._saved:
            raise UnsuitableState(
                f"step {self._saved} was saved before, and of two snapshots, the one with the larger step is the newer "
                "one: count the steps from the start of the training, and not of an epoch"
            )
        return number

    def complain(self, text: str, about: str = "") -> None:
        """about: of several texts with the same `about`, only the first one is written."""
        if (about or text) not in self._complaints and len(self._complaints) < 10:
            self._complaints.add(about or text)
            _log(text)

    def _write(self, step: int, structure: bytes, parts: Sequence[Part]) -> bool:
        layout, total = _layout(len(structure), parts)
        if total > self._slot_bytes:
            raise UnsuitableState(
                f"the state of rank {self._rank} has {_mib(total)}, and spec.snapshots.size is "
                f"{_mib(self._slot_bytes)} for each rank: raise the size, or save less. The training continues"
            )
        if not self._is_current():
            return False
        slot = self._free_slot()
        at = self._content(slot)
        names = struct.pack("<6q", *self._token, step, self._rank, self._world_size)
        self._clear(slot)
        _pwrite_bytes(self._fd, structure, at)
        digest = hashlib.sha256(names + structure)
        if not self._prepare(parts, at, total):
            self._populate(slot, total)
        for part, offset in zip(parts, layout):
            digest.update(part.copy(self._map(), at + offset))
        if not self._is_current():
            return False
        place = (*self._token, step, self._rank, self._world_size)
        sizes = (len(structure), total, crc32(structure), (self._calls - 1) // self._every + 1)
        header = HEADER.pack(MAGIC, *place, *sizes, time.time_ns(), digest.digest(), *_NOT_FETCHED, 0)[:-8]
        _pwrite_bytes(self._fd, header + struct.pack("<q", crc32(header)), at - PAGE_BYTES)
        self._target, self._saved = 1 - slot, step
        self._mark_for_storage(slot, step)
        return True

    def _mark_for_storage(self, slot: int, step: int) -> None:
        """If this is the first step behind a multiple of `every`: all ranks mark the same steps. Until the slot is
        written, saves go to the other one.
        """
        newest, self._newest = self._newest, step
        every, _ = STORAGE_SETTINGS.unpack(os.pread(self._fd, STORAGE_SETTINGS.size, STORAGE_OFFSET))
        if not every or newest is None or newest // every == step // every:
            return
        if self._marked():
            self.complain(
                f"the snapshot of step {step} is not written to storage, because the writing of an earlier one has not "
                "ended: raise spec.snapshots.storage.every",
                about="busy storage",
            )
            return
        _pwrite_bytes(self._fd, STORING.pack(1 + slot), STORING_OFFSET)

    def _marked(self) -> int:
        """1 + the slot that is being written to storage; 0: none."""
        return int(STORING.unpack(os.pread(self._fd, STORING.size, STORING_OFFSET))[0])

    def _free_slot(self) -> int:
        """Not the one with the newest snapshot, which the next round may restore. If the other one is being copied to
        another pod, or written to storage, it is whole, and the newest one is overwritten: no save waits for that. The
        storage comes first: an interrupted copy is sent again, and a step that is not stored is missing in all ranks.
        """
        if self._target is None:
            newest = [self._written(slot) for slot in range(SLOTS)]
            self._target = newest.index(min(newest))
        marked = self._marked()
        if marked in (1, 2):
            return 2 - marked
        (copied,) = COPIED.unpack(os.pread(self._fd, COPIED.size, COPIED_OFFSET))
        return 1 - self._target if copied == 1 + self._target else self._target

    def _written(self, slot: int) -> tuple[int, ...]:
        """Round and step of a slot's snapshot; () if it has none."""
        header = os.pread(self._fd, HEADER.size, self._content(slot) - PAGE_BYTES)
        fields = HEADER.unpack(header)
        return fields[1:5] if fields[0] == MAGIC and fields[-1] == crc32(header[:-8]) else ()

    def _clear(self, slot: int) -> None:
        _pwrite_bytes(self._fd, bytes(HEADER.size), self._content(slot) - PAGE_BYTES)

    def _content(self, slot: int) -> int:
        """The offset of a slot's content. Its header is in the page before."""
        return PAGE_BYTES + slot * (PAGE_BYTES + self._slot_bytes) + PAGE_BYTES

    def _map(self) -> mmap.mmap:
        if self._mapped is None:
            self._mapped = mmap.mmap(self._fd, self._content(SLOTS) - PAGE_BYTES)
        return self._mapped

    def _prepare(self, parts: Sequence[Part], at: int, size: int) -> bool:
        """Whether any part has prepared the memory, which maps its pages."""
        prepares = {part.prepare for part in parts if part.prepare is not None}
        for prepare in prepares:
            prepare(self._map(), at, size)
        return bool(prepares)

    def _populate(self, slot: int, size: int) -> None:
        if slot not in self._populated:
            self._populated.add(slot)
            with contextlib.suppress(OSError):  # an older kernel: page faults do it
                self._map().madvise(_MADV_POPULATE_WRITE, self._content(slot), size)


def whole_step(step: Any) -> Optional[int]:
    """As an int, also if it has a class of numpy, torch or jax; None if it is no whole number from 0 to MAX_STEP."""
    try:
        number = int(operator.index(step))
    except Exception:  # noqa: BLE001 - the training must not fail for this: a class of the script may raise any error
        return None
    return number if type(step) is not bool and 0 <= number <= MAX_STEP else None


def shown(value: Any) -> str:
    """A short text for a message. Python writes no number of thousands of digits."""
    kind, text = type(value), ""
    if kind is int and value.bit_length() > 63:
        return f"a number of {value.bit_length()} bits"
    with contextlib.suppress(Exception):  # as in whole_step
        text = repr(value)
    return text if 0 < len(text) <= _MOST_SHOWN else f"a {kind.__module__}.{kind.__qualname__}"


def _layout(start: int, parts: Sequence[Part]) -> tuple[list[int], int]:
    """The offsets of the arrays behind a structure of `start` bytes, and the end."""
    offsets = []
    for part in parts:
        start = -(-start // _ALIGNMENT) * _ALIGNMENT
        offsets.append(start)
        start += part.size
    return offsets, start


def _pwrite_bytes(fd: int, data: bytes, offset: int) -> None:
    while data:
        done = os.pwrite(fd, data, offset)
        data, offset = data[done:], offset + done


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"


def _log(text: str) -> None:
    with contextlib.suppress(Exception):  # the script may have closed stderr, or replaced it by an object of its own
        sys.stderr.write(f"understudy: {text}\n")
        sys.stderr.flush()


_found: Optional[SnapshotSlots] = None
_looked = False  # whether this process has looked for its memory


def slots_of_process() -> Optional[SnapshotSlots]:
    """The file of this process. If the inherited number belongs to another file by now, because a parent closed ours,
    the result is None.
    """
    global _found, _looked
    if not _looked:
        _looked = True
        try:
            fd = int(os.environ[ENV_SNAPSHOT_FD])
            epoch, term, number = map(int, os.environ[ENV_ROUND].split("."))
            if ORDER.unpack(os.pread(fd, ORDER.size, 0))[0] == MAGIC:
                _found = SnapshotSlots(fd, (epoch, term, number))
        except (OSError, ValueError, KeyError, OverflowError, struct.error):
            _found = None
    return _found


def load_in_process(unpack: Unpack) -> Optional[Any]:
    """As SnapshotSlots.load. A pod without memory for snapshots restores none, and then no other rank may restore one:
    the training would continue from a mixture of states. Raises SnapshotStorageError, too, if the others restore one.
    """
    slots = slots_of_process()
    if slots is not None:
        return slots.load(unpack)
    folder = os.environ.get(ENV_SNAPSHOT_STORAGE_PATH)
    if not folder:
        return None
    try:
        token = RoundToken(*map(int, os.environ[ENV_ROUND].split(".")))
        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError, TypeError):
        return None
    choice = agreed_choice(folder, token, rank, world_size, None, _log, has_memory=False)
    if choice.name:
        raise SnapshotStorageError(
            f"this pod has no memory for snapshots, so rank {rank} cannot restore {os.path.join(folder, choice.name)}, "
            "which the other ranks restore: the first lines of the pod's log have the reason"
        )
    return None


def reason() -> str:
    """Why load() returned None; "" if it returned a state."""
    slots = slots_of_process()
    return _NO_MEMORY if slots is None else slots.reason


def complain(text: str) -> None:
    """Write it to stderr, once per text."""
    slots = slots_of_process()
    if slots is not None:
        slots.complain(text)

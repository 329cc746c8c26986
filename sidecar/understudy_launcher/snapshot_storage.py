"""Writes snapshots to a folder that the trainer container has mounted: a process beside the launcher.

save() in a worker marks the slot of a snapshot that is to be stored (understudy_protocol/snapshot_slots.py): of each
`every` steps, the first one that was saved. This process writes the slot to a file, and clears the mark. Meanwhile all
saves go to the other slot, so the training waits for nothing.

Rules: the launcher never touches the folder, because storage may block without end. A file appears complete: it is
written under another name, and renamed after fsync. If the slot was overwritten meanwhile, the file is removed. A
failure is logged, once per reason, and the training continues. The process reports its counts to the launcher through a
pipe, in records of a fixed size. The process that has rank 0 removes older snapshots, once newer ones are complete, and
incomplete ones that stay so. Of the others, which may become complete, it keeps the newest only, because a rank that
cannot write leaves all of them incomplete. If the process ends, the launcher starts it again with the next round.
"""

import contextlib
import os
import shutil
import signal
import struct
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Callable, NoReturn, Optional

from understudy_launcher import forked, prctl
from understudy_protocol.launcher import SnapshotsStored
from understudy_protocol.snapshot_files import (
    HEADER,
    LONGEST_STORAGE_PATH,
    PAGE_BYTES,
    STORAGE_OFFSET,
    STORAGE_SETTINGS,
    STORING,
    STORING_OFFSET,
    Header,
    header_offset,
    read_header,
    slot_bytes_of,
)
from understudy_protocol.snapshot_storage import FAILED, StoredStep, is_complete, stored_steps

_POLL_S = 0.1
_CHUNK_BYTES = 4 << 20
#: So often the written pages go to the storage: else the kernel may keep gigabytes of the container's memory for them.
_SYNC_BYTES = 64 << 20
_NICE = 10
#: Other ranks may still write the newest incomplete snapshots. A rank writes one at a time, and skips steps meanwhile.
_MOST_INCOMPLETE = 8
_STDERR = 2
#: Written and failed snapshots, the newest complete step (-1: none), and when it was found to be complete.
_REPORT = struct.Struct("<3qd")
_MAX_REPORTS = 64  # that are read at once
#: So often rank 0 looks whether the other ranks have written their files, too.
_LOOK_S = 2.0


@dataclass(frozen=True)
class StorageSettings:
    path: str
    every: int  # steps
    keep: int  # complete snapshots


class SnapshotStorage:
    """files: the memory of the pod's ranks (snapshot_memory.py), by local rank. watch, unwatch: get the pipe with the
    reports.
    """

    def __init__(
        self,
        files: Mapping[int, int],
        settings: StorageSettings,
        watch: Callable[[int], None] = lambda pipe: None,
        unwatch: Callable[[int], None] = lambda pipe: None,
    ) -> None:
        self._files, self._settings, self._watch, self._unwatch = files, settings, watch, unwatch
        self.pid = 0  # of the process, while it runs
        self._pipe: Optional[int] = None
        self._before = self._stored = SnapshotsStored(0, 0)  # of ended processes, and of all
        self._write_settings(0)  # load() needs the folder, also if the process cannot be started

    def start(self) -> None:
        """Unless it runs. Raises OSError."""
        if self.pid:
            return
        dies_with_us = prctl.dies_with_parent()
        pipe, reports = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            pid = os.fork()
            if pid == 0:
                self._run(dies_with_us, reports)
        except OSError:
            os.close(pipe)
            raise
        finally:
            os.close(reports)
        self.pid, self._pipe = pid, pipe
        self._watch(pipe)
        self._write_settings(self._settings.every)

    def ended(self, pid: int) -> bool:
        """A child of the launcher has ended. Return whether it was this process: then no slot is marked any more."""
        if not self.pid or pid != self.pid:
            return False
        self.receive()
        self._close_pipe()
        self.pid, self._before = 0, self._stored
        self._write_settings(0)
        return True

    def receive(self) -> Optional[SnapshotsStored]:
        """The newest report of the process; None: there is no new one."""
        if self._pipe is None:
            return None
        try:
            data = os.read(self._pipe, _MAX_REPORTS * _REPORT.size)
        except BlockingIOError:
            return None
        if len(data) < _REPORT.size:
            self._close_pipe()
            return None
        written, failed, step, at = _REPORT.unpack_from(data, (len(data) // _REPORT.size - 1) * _REPORT.size)
        self._stored = replace(
            self._stored, written=self._before.written + written, failed=self._before.failed + failed
        )
        if step >= 0:
            self._stored = replace(self._stored, step=step, at=at)
        return self._stored

    def _close_pipe(self) -> None:
        if self._pipe is not None:
            self._unwatch(self._pipe)
            os.close(self._pipe)
            self._pipe = None

    def _write_settings(self, every: int) -> None:
        path = self._settings.path.encode()[:LONGEST_STORAGE_PATH]
        for file in self._files.values():
            os.pwrite(file, STORING.pack(0), STORING_OFFSET)
            os.pwrite(file, STORAGE_SETTINGS.pack(every, len(path)) + path, STORAGE_OFFSET)

    def _run(self, dies_with_us: Optional[Callable[[], None]], reports: int) -> NoReturn:
        """Runs in the fork."""
        try:
            forked.begin("storage", [*self._files.values(), reports], signal.SIG_DFL)
            if dies_with_us is not None:
                dies_with_us()
            with contextlib.suppress(OSError):
                os.nice(_NICE)
            writers = [SlotWriter(file, self._settings) for file in self._files.values()]
            reported, look_at = SnapshotsStored(0, 0), 0.0
            while True:
                for writer in writers:
                    writer.write_marked()
                if time.monotonic() >= look_at:
                    look_at = time.monotonic() + _LOOK_S
                    for writer in writers:
                        writer.look()
                stored = total(writer.stored for writer in writers)
                if stored != reported:
                    with contextlib.suppress(BlockingIOError):  # else the next report has it
                        os.write(reports, _REPORT.pack(stored.written, stored.failed, _step(stored), stored.at))
                        reported = stored
                time.sleep(_POLL_S)
        finally:
            os._exit(1)


def total(of_ranks: Iterable[SnapshotsStored]) -> SnapshotsStored:
    found = list(of_ranks)
    newest = max(found, key=_step)
    return SnapshotsStored(sum(x.written for x in found), sum(x.failed for x in found), newest.step, newest.at)


def _step(stored: SnapshotsStored) -> int:
    return -1 if stored.step is None else stored.step


class SlotWriter:
    """Writes the marked slots of one rank."""

    def __init__(self, file: int, settings: StorageSettings) -> None:
        self._file, self._settings = file, settings
        self._slot_bytes = slot_bytes_of(os.fstat(file).st_size)
        self._complaints: set[str] = set()
        self._incomplete: Optional[StoredStep] = None  # the newest one of rank 0, while files of other ranks may miss
        self.stored = SnapshotsStored(0, 0)

    def look(self) -> None:
        """Whether the newest snapshot is complete by now: other ranks may write it later than rank 0."""
        stored = self._incomplete
        try:
            if stored is not None and is_complete(self._settings.path, stored):
                self._incomplete = None
                self.stored = replace(self.stored, step=stored.saved.step, at=time.time())
                self._remove_abandoned()
                self._remove_older()
        except OSError as error:
            self._complain(f"{error.strerror or error}: {self._settings.path}")

    def write_marked(self) -> None:
        """Store the marked snapshot, if there is one. Logs errors."""
        (mark,) = STORING.unpack(os.pread(self._file, STORING.size, STORING_OFFSET))
        if not mark:
            return
        try:
            self._store(mark - 1)
        except OSError as error:
            self._fail(f"{error.strerror or error}: {self._settings.path}")
        finally:
            os.pwrite(self._file, STORING.pack(0), STORING_OFFSET)

    def _store(self, slot: int) -> None:
        at, began = header_offset(slot, self._slot_bytes), time.monotonic()
        data = os.pread(self._file, HEADER.size, at)
        header = read_header(data)
        if header is None or not 0 < header.size <= self._slot_bytes:
            return
        if header.rank == 0:
            with contextlib.suppress(OSError):  # the folder may be missing
                self._remove_abandoned()
        try:
            self._write_file(data, header, at, began)
        finally:
            if header.rank == 0:
                self._remove_older()

    def _write_file(self, data: bytes, header: Header, at: int, began: float) -> None:
        stored = StoredStep(header.saved, header.world_size)
        folder = os.path.join(self._settings.path, stored.name)
        os.makedirs(folder, exist_ok=True)
        temporary, path = os.path.join(folder, f".{header.rank}"), os.path.join(folder, str(header.rank))
        is_written = False
        try:
            with open(temporary, "wb", buffering=0) as file:
                self._copy(data, at, header.size, file.fileno())
            if os.pread(self._file, HEADER.size, at) != data:
                self._fail("the snapshot was overwritten while it was written")
                return
            os.replace(temporary, path)
            is_written = True
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            if not is_written:
                with contextlib.suppress(OSError), open(path + FAILED, "wb"):
                    pass
        _sync_folder(folder)
        _sync_folder(self._settings.path)
        took_s = time.monotonic() - began
        _log(f"wrote the snapshot of step {header.saved.step} of rank {header.rank} in {took_s:.1f} s: {path}")
        self.stored = replace(self.stored, written=self.stored.written + 1)
        if header.rank == 0:
            self._incomplete = stored
            self.look()

    def _copy(self, header: bytes, at: int, size: int, target: int) -> None:
        _write(target, header.ljust(PAGE_BYTES, b"\0"))
        position, end, synced = at + PAGE_BYTES, at + PAGE_BYTES + size, 0
        while position < end:
            chunk = os.pread(self._file, min(_CHUNK_BYTES, end - position), position)
            _write(target, chunk)
            position += len(chunk)
            if position - at - synced >= _SYNC_BYTES:
                os.fdatasync(target)
                with contextlib.suppress(OSError):
                    os.posix_fadvise(target, 0, 0, os.POSIX_FADV_DONTNEED)
                synced = position - at
        os.fsync(target)

    def _remove_abandoned(self) -> None:
        """The incomplete snapshots that stay so: a rank without its file has failed, or has begun a newer one, because
        each rank writes its steps in order. On a volume without room for them, no newer one could be completed.
        """
        folder = self._settings.path
        begun: set[tuple[int, str]] = set()  # world sizes and ranks
        for stored in stored_steps(folder):
            place = os.path.join(folder, stored.name)
            try:
                names = set(os.listdir(place))
            except OSError:  # removed meanwhile, or a file of this name
                continue
            missing = {str(rank) for rank in range(stored.world_size)} - names
            if any(rank + FAILED in names or (stored.world_size, rank) in begun for rank in missing):
                shutil.rmtree(place, ignore_errors=True)
            begun |= {(stored.world_size, name.lstrip(".").partition(".")[0]) for name in names}

    def _remove_older(self) -> None:
        folder = self._settings.path
        steps = stored_steps(folder)
        complete = [stored for stored in steps if is_complete(folder, stored)][: self._settings.keep]
        # an older one without all of its files stays so: each rank writes its steps in order
        outdated = [stored for stored in steps if complete and stored < complete[-1]]
        incomplete = [stored for stored in steps if stored not in complete and stored not in outdated]
        if too_many := incomplete[_MOST_INCOMPLETE:]:
            self._log_once("removed incomplete snapshots: other ranks have not written their files; see their logs")
        for stored in outdated + too_many:
            shutil.rmtree(os.path.join(folder, stored.name), ignore_errors=True)

    def _fail(self, why: str) -> None:
        self.stored = replace(self.stored, failed=self.stored.failed + 1)
        self._complain(why)

    def _complain(self, why: str) -> None:
        self._log_once(f"a snapshot was not written to storage (spec.snapshots.storage): {why}. The training continues")

    def _log_once(self, text: str) -> None:
        if text not in self._complaints and len(self._complaints) < 10:
            self._complaints.add(text)
            _log(text)


def _write(target: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(target, view) :]


def _sync_folder(path: str) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # some network file systems cannot
            os.fsync(folder)
    finally:
        os.close(folder)


def _log(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(_STDERR, f"understudy: {text}\n".encode())

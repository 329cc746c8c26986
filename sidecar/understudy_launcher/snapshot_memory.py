"""The memory for the snapshots of a pod's ranks: one file in memory for each local rank, which its workers inherit. And
for each rank of other pods whose copies the pod keeps, a file that only the sidecar writes and reads.

understudy_protocol/snapshot_files.py has the layout. Workers write the slots. The launcher writes only the order page:
for which round and rank the file is, what the round restores, and the folder on storage (snapshot_storage.py).

Rules: the launcher reads and writes with system calls and never maps a file. The sizes are sealed, so no worker can
change them. A process of its own touches the pages, because the first touch of a page takes far longer than a copy: it
only reads, so it cannot destroy data that a worker writes meanwhile. The memory counts as the trainer container's.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import signal
import socket
import struct
import time
from array import array
from collections.abc import Sequence
from typing import Callable, NoReturn, Optional

from understudy_launcher import forked, prctl
from understudy_launcher.snapshot_fence import Slots, SnapshotFence
from understudy_launcher.step_page import inherited_number
from understudy_protocol.launcher import StartWorkers
from understudy_protocol.snapshot_files import (
    HEADER,
    MAGIC,
    MEMORY,
    ORDER,
    PAGE_BYTES,
    PENDING,
    SLOTS,
    STORAGE,
    header_offset,
    kept_file_bytes,
    own_file_bytes,
    read_header,
)
from understudy_protocol.snapshots import RestoreChoice, SavedStep, SnapshotAge

NO_SLOT = NO_STEP = -1
_STATE_OFFSET = 8 * 8
_REASON_BYTES = 2000
_MFD_CLOEXEC, _MFD_ALLOW_SEALING = 1, 2
_F_ADD_SEALS, _SEAL_SIZE = 1033, 1 | 2 | 4  # no further seals, no smaller, no larger
_MAP_POPULATE = 0x8000
_PASS_S = 1.0


class SnapshotMemory:
    """Raises OSError if the kernel, libc or Python has no sealed files in memory.

    slot_bytes: the largest state of a rank. every: see `every` of the order page. copies: other pods whose ranks'
    copies this pod keeps.
    """

    def __init__(self, ranks: int, slot_bytes: int, every: int, copies: int = 0) -> None:
        self._slot_bytes = -(-slot_bytes // PAGE_BYTES) * PAGE_BYTES
        self._every, self._fence = every, SnapshotFence()
        self.files: dict[int, int] = {}  # by local rank
        for rank in range(ranks):
            self.files[rank] = _new_file(f"snapshots-{rank}", own_file_bytes(self._slot_bytes))
        size = kept_file_bytes(self._slot_bytes)
        self.kept = [_new_file(f"copies-{number}", size) for number in range(copies * ranks)]
        self.pid = 0  # of the process that touches the pages, while it runs
        self.is_allocated = False

    def allocate(self) -> None:
        """Start the process that touches all pages. Raises OSError."""
        dies_with_us = prctl.dies_with_parent()
        self.pid = os.fork()
        if self.pid == 0:
            self._touch(dies_with_us)

    def ended(self, pid: int, status: int) -> str:
        """A child of the launcher has ended. Return why the memory is not allocated; "" if it is, or if another child
        has ended.
        """
        if pid != self.pid:
            return ""
        self.pid, self.is_allocated = 0, status == 0
        return "" if status == 0 else "the memory for snapshots is allocated by the first saves, which take longer"

    def pass_files(self, path: str) -> None:
        """Pass all files to the sidecar at this socket. Raises OSError."""
        _pass(path, len(self.files), [*self.files.values(), *self.kept])

    def start(self, start: StartWorkers) -> tuple[SavedStep, ...]:
        """Write the orders of the round. Return the snapshots that each rank can restore in it."""
        for local_rank, file in self.files.items():
            token, rank = start.token, start.rank_offset + local_rank
            place = (token.epoch, token.term, token.round, rank, start.world_size)
            os.pwrite(file, ORDER.pack(MAGIC, self._slot_bytes, self._every, *place, PENDING, 0, 0, 0), 0)
        return self._fence.whole(start, self._slots())

    def choose(self, choice: RestoreChoice) -> None:
        """Write the choice into the orders of the round: load() in the workers waits for it."""
        slots = self._fence.choose(choice.saved, self._slots())
        for local_rank, file in self.files.items():
            reason, slot, state = choice.reason.encode(errors="replace")[:_REASON_BYTES], 0, STORAGE
            step = NO_STEP if choice.before_step is None else choice.before_step
            if choice.saved is not None:
                # No slot: load() has to fail then, because all other ranks restore the snapshot.
                slot, step, state = slots.get(local_rank, NO_SLOT), choice.saved.step, MEMORY
            os.pwrite(file, reason, ORDER.size)
            os.pwrite(file, struct.pack("<3q", slot, step, len(reason)), _STATE_OFFSET + 8)
            os.pwrite(file, struct.pack("<q", state), _STATE_OFFSET)  # last: then load() reads the other fields

    def newest(self) -> Optional[SnapshotAge]:
        """Of the snapshots that a next round could restore. Reads a header for each slot: no worker waits for that."""
        newest = self._fence.newest(self._slots())
        if newest is None:
            return None
        return SnapshotAge(newest.saved.step, max(0, time.time_ns() - newest.saved_ns) / 1e9)

    def _slots(self) -> Slots:
        at = [header_offset(slot, self._slot_bytes) for slot in range(SLOTS)]
        return {
            rank: [read_header(os.pread(file, HEADER.size, offset)) for offset in at]
            for rank, file in self.files.items()
        }

    def _touch(self, dies_with_us: Optional[Callable[[], None]]) -> NoReturn:
        """Runs in the fork."""
        code = 1
        try:
            files = [*self.files.values(), *self.kept]
            forked.begin("snapshots", files, signal.SIG_DFL)
            if dies_with_us is not None:
                dies_with_us()
            for file in files:
                flags = mmap.MAP_SHARED | _MAP_POPULATE
                mmap.mmap(file, os.fstat(file).st_size, flags=flags, prot=mmap.PROT_READ).close()
            code = 0
        finally:
            os._exit(code)


def pass_no_files(path: str) -> None:
    """Report to the sidecar at this socket that the pod has no memory for snapshots, so that it does not wait for it.
    Raises OSError.
    """
    _pass(path, 0, [])


def _pass(path: str, own: int, files: Sequence[int]) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_PASS_S)
        connection.connect(path)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", files))]
        connection.sendmsg([str(own).encode()], rights if files else [])


def _new_file(name: str, size: int) -> int:
    """A file in memory with a sealed size, under a high number. Raises OSError."""
    try:
        import ctypes  # some minimal builds of Python lack it
    except ImportError:
        raise OSError(errno.ENOSYS, "the container's Python has no ctypes") from None
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "memfd_create"):  # os.memfd_create is missing in a Python that was built for an old libc
        raise OSError(errno.ENOSYS, "the container's libc has no memfd_create (glibc 2.27 and musl 1.1.20 have it)")
    file = libc.memfd_create(name.encode(), _MFD_CLOEXEC | _MFD_ALLOW_SEALING)
    if file < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        os.ftruncate(file, size)
        fcntl.fcntl(file, _F_ADD_SEALS, _SEAL_SIZE)
        return inherited_number(file)
    except OSError:
        with contextlib.suppress(OSError):
            os.close(file)
        raise

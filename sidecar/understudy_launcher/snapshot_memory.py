"""The memory for the snapshots of a pod's ranks: one file in memory for each local rank, which its workers inherit.

understudy_torch/snapshot.py has the layout, and writes the slots. The launcher writes only the order page: for which
round and rank the file is, and what the round restores.

Rules: the launcher reads and writes with system calls and never maps a file. The sizes are sealed, so no worker can
change them. A process of its own touches the pages, because the first touch of a page takes far longer than a copy: it
only reads, so it cannot destroy what a worker writes meanwhile. The memory counts as the trainer container's.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import signal
import struct
from binascii import crc32  # a minimal build of Python may lack zlib
from typing import Callable, NoReturn, Optional

from understudy_launcher import forked, prctl
from understudy_launcher.snapshot_fence import Header, SnapshotFence
from understudy_launcher.step_page import inherited_number
from understudy_protocol.enums import RoundToken
from understudy_protocol.launcher import StartWorkers
from understudy_protocol.snapshots import RestoreChoice, SavedStep

PAGE_BYTES = 4096
SLOTS = 2
MAGIC = 0x75_6E_64_73_6E_61_70_31
#: MAGIC, bytes of a slot, every, epoch, term, round, rank, world size, state, slot, step, bytes of the reason
ORDER = struct.Struct("<12q")
#: MAGIC, epoch, term, round, step, rank, world size, bytes of the structure, bytes in all, the structure's CRC-32;
#: digest; the CRC-32 of all before
HEADER = struct.Struct("<10q32sq")
PENDING, STORAGE, MEMORY = 0, 1, 2  # the states of an order
NO_SLOT = -1
_STATE_OFFSET = 8 * 8
_REASON_BYTES = 2000
_MFD_CLOEXEC, _MFD_ALLOW_SEALING = 1, 2
_F_ADD_SEALS, _SEAL_SIZE = 1033, 1 | 2 | 4  # no further seals, no smaller, no larger
_MAP_POPULATE = 0x8000


class SnapshotMemory:
    """Raises OSError if the kernel, libc or Python has no sealed files in memory.

    slot_bytes: the largest state of a rank. every: see `every` of the order page.
    """

    def __init__(self, ranks: int, slot_bytes: int, every: int) -> None:
        self._slot_bytes = -(-slot_bytes // PAGE_BYTES) * PAGE_BYTES
        self._every, self._fence = every, SnapshotFence()
        self.files: dict[int, int] = {}  # by local rank
        for rank in range(ranks):
            self.files[rank] = _new_file(f"snapshots-{rank}", self._file_bytes)
        self.pid = 0  # of the process that touches the pages, while it runs

    @property
    def _file_bytes(self) -> int:
        return PAGE_BYTES + SLOTS * (PAGE_BYTES + self._slot_bytes)

    def allocate(self) -> None:
        """Start the process that touches all pages. Raises OSError."""
        dies_with_us = prctl.dies_with_parent()
        self.pid = os.fork()
        if self.pid == 0:
            self._touch(dies_with_us)

    def ended(self, pid: int, status: int) -> str:
        """A child of the launcher has ended. Return why the memory is not allocated; "": it is, or it was another."""
        if pid != self.pid:
            return ""
        self.pid = 0
        return "" if status == 0 else "the memory for snapshots is allocated by the first saves, which take longer"

    def start(self, start: StartWorkers) -> tuple[SavedStep, ...]:
        """Write the orders of the round. Return the snapshots that each rank can restore in it."""
        for local_rank, file in self.files.items():
            token, rank = start.token, start.rank_offset + local_rank
            place = (token.epoch, token.term, token.round, rank, start.world_size)
            os.pwrite(file, ORDER.pack(MAGIC, self._slot_bytes, self._every, *place, PENDING, 0, 0, 0), 0)
        slots = {rank: [self._header(file, slot) for slot in range(SLOTS)] for rank, file in self.files.items()}
        return self._fence.whole(start, slots)

    def choose(self, choice: RestoreChoice) -> None:
        """Write the choice into the orders of the round: load() in the workers waits for it."""
        slots = self._fence.choose(choice.saved)
        for local_rank, file in self.files.items():
            reason, slot, step, state = choice.reason.encode(errors="replace")[:_REASON_BYTES], 0, 0, STORAGE
            if choice.saved is not None:
                # No slot: load() has to fail then, because all other ranks restore the snapshot.
                slot, step, state = slots.get(local_rank, NO_SLOT), choice.saved.step, MEMORY
            os.pwrite(file, reason, ORDER.size)
            os.pwrite(file, struct.pack("<3q", slot, step, len(reason)), _STATE_OFFSET + 8)
            os.pwrite(file, struct.pack("<q", state), _STATE_OFFSET)  # last: load() reads the others once it is set

    def _header(self, file: int, slot: int) -> Optional[Header]:
        return read_header(os.pread(file, HEADER.size, PAGE_BYTES + slot * (PAGE_BYTES + self._slot_bytes)))

    def _touch(self, dies_with_us: Optional[Callable[[], None]]) -> NoReturn:
        """Runs in the fork."""
        code = 1
        try:
            files = list(self.files.values())
            forked.begin("snapshots", files, signal.SIG_DFL)
            if dies_with_us is not None:
                dies_with_us()
            for file in files:
                flags = mmap.MAP_SHARED | _MAP_POPULATE
                mmap.mmap(file, self._file_bytes, flags=flags, prot=mmap.PROT_READ).close()
            code = 0
        finally:
            os._exit(code)


def read_header(data: bytes) -> Optional[Header]:
    """None if the slot is empty, or was being written."""
    if len(data) != HEADER.size:
        return None
    magic, epoch, term, number, step, rank, world_size, _, _, _, digest, crc = HEADER.unpack(data)
    if magic != MAGIC or crc != crc32(data[:-8]):
        return None
    return Header(SavedStep(RoundToken(epoch, term, number), step), rank, world_size, digest)


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

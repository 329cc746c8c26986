"""The launcher's memory for snapshots, in the process for copies: files that are mapped, and the headers in them.

understudy_protocol/snapshot_files.py has the layout. The launcher passes the files, but any process of its container
may do so: a file counts only if its size is sealed and equals the size of the others.
"""

import fcntl
import mmap
import os
import stat
from collections.abc import Sequence

from understudy_protocol.snapshot_files import (
    COPIED,
    COPIED_OFFSET,
    HEADER,
    PAGE_BYTES,
    SLOTS,
    STORING,
    STORING_OFFSET,
    Header,
    header_offset,
    kept_file_bytes,
    kept_slot_bytes,
    own_file_bytes,
    read_header,
    slot_bytes_of,
)
from understudy_protocol.snapshots import SavedStep
from understudy_sidecar.membership.kept_copies import Slots

_F_GET_SEALS, _SEALED = 1034, 1 | 2 | 4  # no further seals, no smaller, no larger


class UnsuitableFiles(ValueError):
    """These files are no memory for snapshots. The text has the reason."""


class CopyFiles:
    """own: the files by local rank. kept: the same number of files for each pod whose copies are kept. Owns the
    descriptors.

    Raises UnsuitableFiles.
    """

    def __init__(self, own: Sequence[int], kept: Sequence[int]) -> None:
        self._own, self._kept = tuple(own), tuple(kept)
        self.sets = len(kept) // len(own) if own else 0
        self.slot_bytes = slot_bytes_of(_size(own[0])) if own else 0
        self._check()
        self.own = [mmap.mmap(fd, own_file_bytes(self.slot_bytes)) for fd in own]
        self.kept = [mmap.mmap(fd, kept_file_bytes(self.slot_bytes)) for fd in kept]
        for local_rank in range(len(own)):
            self.mark_copied(local_rank, None)  # by an earlier process

    def close(self) -> None:
        for fd in (*self._own, *self._kept):
            os.close(fd)  # maps that a thread still uses stay until it ends

    # The pod's own snapshots ----------------------------------------------------------------------------------------

    def own_header(self, local_rank: int, slot: int) -> Header | None:
        return read_header(os.pread(self._own[local_rank], HEADER.size, header_offset(slot, self.slot_bytes)))

    def own_headers(self) -> Slots:
        return {rank: [self.own_header(rank, slot) for slot in range(SLOTS)] for rank in range(len(self._own))}

    def own_header_bytes(self, local_rank: int, slot: int) -> bytes:
        return os.pread(self._own[local_rank], HEADER.size, header_offset(slot, self.slot_bytes))

    def write_own_header(self, local_rank: int, slot: int, header: bytes) -> None:
        os.pwrite(self._own[local_rank], header, header_offset(slot, self.slot_bytes))

    def own_content(self, local_rank: int, slot: int, size: int) -> memoryview:
        start = header_offset(slot, self.slot_bytes) + PAGE_BYTES
        return memoryview(self.own[local_rank])[start : start + size]

    def own_slot_for(self, local_rank: int, header: Header) -> tuple[int, SavedStep | None]:
        """The slot for a fetched snapshot: the slot of the same snapshot, else the oldest. Also the snapshot that this
        overwrites.
        """
        headers = [self.own_header(local_rank, slot) for slot in range(SLOTS)]
        for slot, x in enumerate(headers):
            if x is not None and (x.saved, x.rank, x.world_size) == (header.saved, header.rank, header.world_size):
                return slot, None
        ages = [(x is not None, None if x is None else x.saved) for x in headers]
        slot = ages.index(min(ages, key=lambda x: (x[0], x[1])))
        return slot, ages[slot][1]

    def mark_copied(self, local_rank: int, slot: int | None) -> None:
        """A save overwrites the other slot while this one is being copied."""
        os.pwrite(self._own[local_rank], COPIED.pack(0 if slot is None else 1 + slot), COPIED_OFFSET)

    def slot_being_stored(self, local_rank: int) -> int | None:
        """That is being written to storage."""
        (mark,) = STORING.unpack(os.pread(self._own[local_rank], STORING.size, STORING_OFFSET))
        return mark - 1 if mark in range(1, SLOTS + 1) else None

    # The copies for other pods --------------------------------------------------------------------------------------

    def kept_headers(self) -> Slots:
        return {
            file: [read_header(os.pread(fd, HEADER.size, self._kept_offset(slot))) for slot in range(SLOTS)]
            for file, fd in enumerate(self._kept)
        }

    def write_kept_header(self, file: int, slot: int, header: bytes) -> None:
        os.pwrite(self._kept[file], header, self._kept_offset(slot))

    def kept_record(self, file: int, slot: int, size: int) -> memoryview:
        start = self._kept_offset(slot) + PAGE_BYTES
        return memoryview(self.kept[file])[start : start + size]

    def kept_place(self, file: int, slot: int) -> tuple[int, int]:
        """The descriptor and the offset of a record."""
        return self._kept[file], self._kept_offset(slot) + PAGE_BYTES

    def _kept_offset(self, slot: int) -> int:
        return slot * kept_slot_bytes(self.slot_bytes)

    def _check(self) -> None:
        if not self._own or len(self._kept) % len(self._own) or self.slot_bytes <= 0 or self.slot_bytes % PAGE_BYTES:
            raise UnsuitableFiles(f"{len(self._own)} files with {self.slot_bytes} bytes for a slot")
        own, kept = own_file_bytes(self.slot_bytes), kept_file_bytes(self.slot_bytes)
        for fd, size in [*((fd, own) for fd in self._own), *((fd, kept) for fd in self._kept)]:
            if _size(fd) != size or fcntl.fcntl(fd, _F_GET_SEALS) & _SEALED != _SEALED:
                raise UnsuitableFiles(f"a file of {_size(fd)} bytes: expected {size}, sealed")


def _size(fd: int) -> int:
    """Raises UnsuitableFiles."""
    try:
        status = os.fstat(fd)
    except OSError as error:
        raise UnsuitableFiles(str(error)) from error
    if not stat.S_ISREG(status.st_mode):
        raise UnsuitableFiles("a file that is not in memory")
    return status.st_size

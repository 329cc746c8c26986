"""The layout of the files in memory that have the snapshots of a pod, and the copies that it keeps for others.

    a file of a local rank                            a file of copies of one rank of another pod
    ------  ----------------------------------------  ----------------------------------------------------------------
    page 0  the order, the storage, and two marks     page 0  the header of slot 0, as its worker wrote it
    page 1  the header of slot 0                      page 1  … the record of slot 0 (understudy_sidecar/copies)
    page 2  … the content of slot 0                   …       the same for slot 1
    …       the same for slot 1

snapshot_slots.py writes the slots of a local rank, in its worker. The header of a slot is written last, and cleared
first: a slot with a header is whole.
"""

import struct
from binascii import crc32  # a minimal build of Python may lack zlib
from dataclasses import dataclass
from typing import Optional

from understudy_protocol.enums import NO_ROUND, RoundToken
from understudy_protocol.snapshots import SavedStep

PAGE_BYTES = 4096
SLOTS = 2
MAGIC = 0x75_6E_64_73_6E_61_70_31
#: MAGIC, bytes of a slot, every, epoch, term, round, rank, world size, state, slot, step, bytes of the reason
ORDER = struct.Struct("<12q")
PENDING, STORAGE, MEMORY = 0, 1, 2  # the states of an order
#: MAGIC, epoch, term, round, step, rank, world size, bytes of the structure, bytes in all, the structure's CRC-32,
#: serial, time; digest; epoch, term and round of the fetch; the CRC-32 of all before
HEADER = struct.Struct("<12q32s3qq")
_FETCHED_FOR = struct.Struct("<3q")
_FETCHED_FOR_OFFSET = HEADER.size - 8 - _FETCHED_FOR.size
#: At the end of the page of the order: 1 + the slot that is being copied to another pod; 0: none.
COPIED = struct.Struct("<q")
COPIED_OFFSET = PAGE_BYTES - COPIED.size
#: Before it: 1 + the slot that is being written to storage; 0: none.
STORING = struct.Struct("<q")
STORING_OFFSET = COPIED_OFFSET - STORING.size
#: From STORAGE_OFFSET on: of how many steps one is stored (0: none is), the bytes of the folder's path, and the path.
STORAGE_SETTINGS = struct.Struct("<2q")
STORAGE_OFFSET = 2304  # behind the reason of the order
LONGEST_STORAGE_PATH = 1024
#: A record: a nonce, the encrypted header, and the content in encrypted chunks; a tag is added to each of them.
CHUNK_BYTES = 1 << 20
NONCE_BYTES = 32
TAG_BYTES = 16


@dataclass(frozen=True)
class Header:
    """A slot's header. digest: of its content, 32 bytes. size: bytes of its content.

    serial: the number of the save in its process, from 1 on: the same in all ranks. Calls that `every` skips do not
    count; calls that have stored nothing do. saved_ns: when the save ended, in Unix nanoseconds, by the clock of its
    pod. fetched_for: the round for which this pod has fetched it; NO_ROUND: a worker of this pod has saved it.
    """

    saved: SavedStep
    rank: int
    world_size: int
    digest: bytes
    size: int = 0
    serial: int = 0
    saved_ns: int = 0
    fetched_for: RoundToken = NO_ROUND


def read_header(data: bytes) -> Optional[Header]:
    """None if the slot is empty, or was being written."""
    if len(data) != HEADER.size:
        return None
    fields = HEADER.unpack(data)
    magic, epoch, term, number, step, rank, world_size, _, size, _, serial, saved_ns, digest, *fetched_for, crc = fields
    if magic != MAGIC or crc != crc32(data[:-8]):
        return None
    saved = SavedStep(RoundToken(epoch, term, number), step)
    return Header(saved, rank, world_size, digest, size, serial, saved_ns, RoundToken(*fetched_for))


def as_fetched(data: bytes, fetched_for: RoundToken) -> bytes:
    """The header of a copy, as a pod that has fetched it for this round writes it."""
    mark = _FETCHED_FOR.pack(fetched_for.epoch, fetched_for.term, fetched_for.round)
    marked = data[:_FETCHED_FOR_OFFSET] + mark
    return marked + struct.pack("<q", crc32(marked))


def own_file_bytes(slot_bytes: int) -> int:
    """slot_bytes: of the content of a slot, whole pages."""
    return PAGE_BYTES + SLOTS * (PAGE_BYTES + slot_bytes)


def slot_bytes_of(file_bytes: int) -> int:
    """Of a file of a local rank."""
    return (file_bytes - PAGE_BYTES) // SLOTS - PAGE_BYTES


def header_offset(slot: int, slot_bytes: int) -> int:
    """In a file of a local rank. The content begins a page later."""
    return PAGE_BYTES + slot * (PAGE_BYTES + slot_bytes)


def record_bytes(size: int) -> int:
    """Of the copy of a content of this size."""
    return NONCE_BYTES + HEADER.size + TAG_BYTES + size + TAG_BYTES * chunks(size)


def chunks(size: int) -> int:
    return -(-size // CHUNK_BYTES)


def kept_slot_bytes(slot_bytes: int) -> int:
    """Of a slot in a file of copies, its header page included; whole pages."""
    return PAGE_BYTES + -(-record_bytes(slot_bytes) // PAGE_BYTES) * PAGE_BYTES


def kept_file_bytes(slot_bytes: int) -> int:
    return SLOTS * kept_slot_bytes(slot_bytes)

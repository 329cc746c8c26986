"""Fetches the copy of a snapshot of this pod's ranks into the pod's own memory, before its workers load it.

Rules: the holders are tried in turn; if this pod keeps the copy itself, nothing is sent. For each rank, the content
goes into the slot with the older snapshot, and its header is written once all of it was opened with the key.
"""

import socket
from collections.abc import Callable

from understudy_protocol.copies import RequestCopy
from understudy_protocol.sessions import NotAuthentic
from understudy_protocol.snapshot_files import CHUNK_BYTES, HEADER, TAG_BYTES, record_bytes
from understudy_protocol.snapshots import CopyHolder
from understudy_sidecar import copy_commands as c
from understudy_sidecar.copy_files import CopyFiles
from understudy_sidecar.copy_keeping import Keeper
from understudy_sidecar.copy_records import HEAD_BYTES, Damaged, open_head, pieces
from understudy_sidecar.peer_calls import CallFailed, call

#: Fills a part of a record. Raises OSError and Damaged.
Read = Callable[[memoryview], None]


def fetch(files: CopyFiles, keeper: Keeper, setup: c.Setup, order: c.Fetch, world_size: int) -> str:
    """Return why no holder has a whole copy; "": it is in this pod's memory."""
    errors = []
    for holder in order.holders:
        try:
            if holder.pod_uid == setup.pod_uid:
                _fetch_own(files, keeper, setup, order, world_size)
            else:
                _fetch_from(holder, files, setup, order, world_size)
        except (OSError, CallFailed, Damaged, NotAuthentic) as error:
            errors.append(f"pod {holder.pod_uid}: {error}")
        else:
            return ""
    return "; ".join(errors) or "no pod keeps a copy"


def _fetch_own(files: CopyFiles, keeper: Keeper, setup: c.Setup, order: c.Fetch, world_size: int) -> None:
    found = keeper.find(order.group_rank, order.saved, world_size)
    if not found:
        raise Damaged("it has no whole copy")
    headers = files.kept_headers()
    for local_rank, (file, slot) in enumerate(found):
        header = headers[file][slot]
        record = files.kept_record(file, slot, record_bytes(0 if header is None else header.size))
        _store(files, setup, order, world_size, local_rank, _reader_of(record))


def _reader_of(record: memoryview) -> Read:
    at = 0

    def read(target: memoryview) -> None:
        nonlocal at
        if at + len(target) > len(record):
            raise Damaged("its record is too short")
        target[:] = record[at : at + len(target)]
        at += len(target)

    return read


def _fetch_from(holder: CopyHolder, files: CopyFiles, setup: c.Setup, order: c.Fetch, world_size: int) -> None:
    message = RequestCopy(order.group_rank, order.saved, world_size)
    with call(holder.ip, bytes.fromhex(setup.key), setup.job_uid, setup.pod_uid, message) as connection:
        for local_rank in range(setup.nproc):
            _store(files, setup, order, world_size, local_rank, lambda target: _read_from(connection, target))


def _read_from(connection: socket.socket, target: memoryview) -> None:
    done = 0
    while done < len(target):
        got = connection.recv_into(target[done:])
        if not got:
            raise Damaged("it has no whole copy")
        done += got


def _store(files: CopyFiles, setup: c.Setup, order: c.Fetch, world_size: int, local_rank: int, read: Read) -> None:
    """Read one record into the memory of this rank."""
    head = bytearray(HEAD_BYTES)
    read(memoryview(head))
    data, header, cipher = open_head(bytes.fromhex(setup.key), bytes(head), files.slot_bytes)
    rank = order.group_rank * setup.nproc + local_rank
    if (header.saved, header.rank, header.world_size) != (order.saved, rank, world_size):
        raise Damaged(f"it has step {header.saved.step} of rank {header.rank}, and not what was requested")
    slot = files.oldest_own_slot(local_rank)
    files.write_own_header(local_rank, slot, bytes(HEADER.size))
    content = files.own_content(local_rank, slot, header.size)
    sealed = memoryview(bytearray(CHUNK_BYTES + TAG_BYTES))
    for start, end, _ in pieces(header.size):
        chunk = sealed[: end - start + TAG_BYTES]
        read(chunk)
        cipher.open_into(chunk, content[start:end])
    files.write_own_header(local_rank, slot, data)

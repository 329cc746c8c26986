"""Fetches the copy of a snapshot of this pod's ranks into the pod's own memory, before its workers load it.

Rules: the holders are tried in turn; if this pod keeps the copy itself, nothing is sent. For each rank, the content
goes into the slot with the older snapshot. The header is written once the whole content was opened with the key. A
fetch that was ended writes nothing more: the workers of a newer round, or another fetch, may use the slot.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

from understudy_protocol.copies import RequestCopy
from understudy_protocol.sessions import NotAuthentic
from understudy_protocol.snapshot_files import CHUNK_BYTES, HEADER, TAG_BYTES, as_fetched, record_bytes
from understudy_protocol.snapshots import CopyHolder, SavedStep
from understudy_sidecar import copy_commands as c
from understudy_sidecar.copy_files import CopyFiles
from understudy_sidecar.copy_keeping import Keeper
from understudy_sidecar.copy_records import HEAD_BYTES, Damaged, open_head, pieces
from understudy_sidecar.peer_calls import CallFailed, call

#: Fills a part of a record. Raises OSError and Damaged.
Read = Callable[[memoryview], None]


class FetchEnded(Exception):
    """A fetch was ended."""


class Fetching:
    """One fetch. Its thread calls fetch(), and another thread calls end()."""

    def __init__(
        self,
        files: CopyFiles,
        keeper: Keeper,
        setup: c.Setup,
        order: c.Fetch,
        world_size: int,
        overwrites: Callable[[SavedStep], None],
    ) -> None:
        """overwrites: called before a snapshot of this pod is overwritten."""
        self._files, self._keeper, self._setup = files, keeper, setup
        self._order, self._world_size, self._overwrites = order, world_size, overwrites
        self._writes = threading.Lock()
        self._is_ended = False

    def end(self) -> None:
        """Nothing is written after it."""
        with self._writes:
            self._is_ended = True

    def fetch(self) -> str:
        """Return why no holder has a whole copy; "": it is in this pod's memory. Raises FetchEnded."""
        errors = []
        for holder in self._order.holders:
            try:
                if holder.pod_uid == self._setup.pod_uid:
                    self._fetch_own()
                else:
                    self._fetch_from(holder)
            except (OSError, CallFailed, Damaged, NotAuthentic) as error:
                errors.append(f"pod {holder.pod_uid}: {error}")
            else:
                return ""
        return "; ".join(errors) or "no pod keeps a copy"

    def _fetch_own(self) -> None:
        found = self._keeper.find(self._order.group_rank, self._order.saved, self._world_size)
        if not found:
            raise Damaged("it has no whole copy")
        headers = self._files.kept_headers()
        for local_rank, (file, slot) in enumerate(found):
            header = headers[file][slot]
            record = self._files.kept_record(file, slot, record_bytes(0 if header is None else header.size))
            self._store(local_rank, _reader_of(record))

    def _fetch_from(self, holder: CopyHolder) -> None:
        setup, message = self._setup, RequestCopy(self._order.group_rank, self._order.saved, self._world_size)
        with call(holder.ip, bytes.fromhex(setup.key), setup.job_uid, setup.pod_uid, message) as connection:
            for local_rank in range(setup.nproc):
                self._store(local_rank, lambda target: _read_from(connection, target))

    def _store(self, local_rank: int, read: Read) -> None:
        """Read one record into the memory of this rank."""
        files, order = self._files, self._order
        head = bytearray(HEAD_BYTES)
        read(memoryview(head))
        data, header, cipher = open_head(bytes.fromhex(self._setup.key), bytes(head), files.slot_bytes)
        rank = order.group_rank * self._setup.nproc + local_rank
        if (header.saved, header.rank, header.world_size) != (order.saved, rank, self._world_size):
            raise Damaged(f"it has step {header.saved.step} of rank {header.rank}, and not what was requested")
        with self._writing():
            slot, overwritten = files.own_slot_for(local_rank, header)
            if overwritten is not None:
                self._overwrites(overwritten)
            files.write_own_header(local_rank, slot, bytes(HEADER.size))
        content = files.own_content(local_rank, slot, header.size)
        sealed = memoryview(bytearray(CHUNK_BYTES + TAG_BYTES))
        for start, end, _ in pieces(header.size):
            chunk = sealed[: end - start + TAG_BYTES]
            read(chunk)
            with self._writing():
                cipher.open_into(chunk, content[start:end])
        with self._writing():
            files.write_own_header(local_rank, slot, as_fetched(data, order.token))

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        with self._writes:
            if self._is_ended:
                raise FetchEnded
            yield


def _reader_of(record: memoryview) -> Read:
    at = 0

    def read(target: memoryview) -> None:
        nonlocal at
        if at + len(target) > len(record):
            raise Damaged("its record is too short")
        target[:] = record[at : at + len(target)]
        at += len(target)

    return read


def _read_from(connection: socket.socket, target: memoryview) -> None:
    done = 0
    while done < len(target):
        got = connection.recv_into(target[done:])
        if not got:
            raise Damaged("it has no whole copy")
        done += got

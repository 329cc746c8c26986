"""Keeps copies for other pods: receives records into the launcher's memory, and serves them to a pod that restores.

Rules: a record is stored as it arrives, and each chunk is opened once to check it. The header of its slot is cleared
first and written last, if the plan is still the same then. A newer plan closes the connections of the older one, and a
newer connection of a pod closes its older one. A record is served with sendfile, because it is encrypted already, and
to at most MAX_SERVED connections at once.
"""

import contextlib
import os
import socket
import threading
from collections.abc import Callable

from understudy_protocol.sessions import Cipher, NotAuthentic
from understudy_protocol.snapshot_files import CHUNK_BYTES, HEADER, TAG_BYTES, Header, record_bytes
from understudy_protocol.snapshots import KeptSteps, SavedStep
from understudy_sidecar import copy_commands as c
from understudy_sidecar.copy_files import CopyFiles
from understudy_sidecar.copy_records import HEAD_BYTES, Damaged, open_head, pieces
from understudy_sidecar.membership.kept_copies import KeptCopies

#: A pod that requests a copy has to read it without a pause of this length.
STALL_S = 10.0
#: A pod keeps the copies of at most two others, so fewer pods than this call it at once.
MAX_SERVED = 16


class Keeper:
    """Called by several threads."""

    def __init__(self, key: bytes, nproc: int, log: Callable[[str], None]) -> None:
        self._key, self._nproc, self._log = key, nproc, log
        self._lock = threading.Lock()
        self._files: CopyFiles | None = None
        self._rules = KeptCopies(0, nproc)
        self._receiving: dict[str, socket.socket] = {}  # by the owner's uid
        self._served = threading.BoundedSemaphore(MAX_SERVED)
        self._writing: set[tuple[int, int]] = set()  # files and slots

    def use(self, files: CopyFiles) -> None:
        """The plan has to be repeated."""
        with self._lock:
            self._close_all()
            self._files, self._rules = files, KeptCopies(files.sets, self._nproc)

    def plan(self, plan: c.RoundCopyPlan) -> tuple[KeptSteps, ...]:
        """From now on no copy of an older round is stored. Return all that are kept."""
        with self._lock:
            if plan.token != self._rules.token:
                self._close_all()
            if self._files is None:
                return ()
            headers = self._files.kept_headers()
            self._rules.plan(plan.token, plan.plan, headers)
            return self._rules.kept(headers, plan.plan.world_size)

    def find(self, group_rank: int, saved: SavedStep, world_size: int) -> list[tuple[int, int]]:
        """File and slot of this copy, by local rank; empty if this pod does not have the whole copy."""
        with self._lock:
            if self._files is None:
                return []
            return self._rules.find(group_rank, saved, world_size, self._files.kept_headers())

    # Receiving ------------------------------------------------------------------------------------------------------

    def receive(self, order: c.Receive, connection: socket.socket) -> None:
        with self._lock:
            why_not = self._rules.rejection(order.token, order.group_rank, order.pod_uid)
            if not why_not:
                _shut_down(self._receiving.get(order.pod_uid))
                self._receiving[order.pod_uid] = connection
        try:
            if not why_not:
                connection.sendall(bytes.fromhex(order.greeting))
                while self._receive_record(order, connection):
                    pass
        except (OSError, Damaged, NotAuthentic) as error:
            self._log(f"the connection for copies of pod {order.pod_uid} ended: {error}")
        finally:
            with self._lock:
                if self._receiving.get(order.pod_uid) is connection:
                    del self._receiving[order.pod_uid]
            connection.close()

    def _receive_record(self, order: c.Receive, connection: socket.socket) -> bool:
        """False: the owner has closed the connection."""
        head = bytearray(HEAD_BYTES)
        if not _read_into(connection, memoryview(head), may_end=True):
            return False
        files = self._files
        if files is None:
            raise Damaged("this pod has no memory for copies")
        data, header, cipher = open_head(self._key, bytes(head), files.slot_bytes)
        place = self._begin(files, order, header)
        scratch = memoryview(bytearray(2 * (CHUNK_BYTES + TAG_BYTES)))
        if place is None:
            _receive_chunks(connection, header, cipher, None, scratch)
            return True
        try:
            record = files.kept_record(*place, record_bytes(header.size))
            record[:HEAD_BYTES] = head
            _receive_chunks(connection, header, cipher, record[HEAD_BYTES:], scratch)
            self._commit(files, order, place, data)
        finally:
            with self._lock:
                self._writing.discard(place)
        return True

    def _begin(self, files: CopyFiles, order: c.Receive, header: Header) -> tuple[int, int] | None:
        with self._lock:
            place = self._rules.place(order.group_rank, header, files.kept_headers())
            if files is not self._files or place is None or place in self._writing:
                return None
            self._writing.add(place)
            files.write_kept_header(*place, bytes(HEADER.size))
            return place

    def _commit(self, files: CopyFiles, order: c.Receive, place: tuple[int, int], data: bytes) -> None:
        with self._lock:
            if files is self._files and not self._rules.rejection(order.token, order.group_rank, order.pod_uid):
                files.write_kept_header(*place, data)

    def _close_all(self) -> None:
        for connection in self._receiving.values():
            _shut_down(connection)
        self._receiving.clear()

    # Serving --------------------------------------------------------------------------------------------------------

    def serve(self, order: c.Serve, connection: socket.socket) -> None:
        with connection:
            if self._served.acquire(blocking=False):
                try:
                    self._serve(order, connection)
                finally:
                    self._served.release()

    def _serve(self, order: c.Serve, connection: socket.socket) -> None:
        with self._lock:
            files = self._files
        found = self.find(order.group_rank, order.saved, order.world_size)
        with contextlib.suppress(OSError):  # the other pod notices that bytes are missing
            connection.settimeout(STALL_S)
            if files is None or not found:
                return
            connection.sendall(bytes.fromhex(order.greeting))
            headers = files.kept_headers()
            for file, slot in found:
                header = headers[file][slot]
                if header is None:
                    return
                _send_file(connection, *files.kept_place(file, slot), record_bytes(header.size))


def _shut_down(connection: socket.socket | None) -> None:
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def _receive_chunks(
    connection: socket.socket, header: Header, cipher: Cipher, stored: memoryview | None, scratch: memoryview
) -> None:
    """stored: the memory for the encrypted chunks; None: they are dropped. Raises NotAuthentic and OSError."""
    opened = scratch[CHUNK_BYTES + TAG_BYTES :]
    for start, end, at in pieces(header.size):
        length = end - start + TAG_BYTES
        sealed = scratch[:length] if stored is None else stored[at : at + length]
        _read_into(connection, sealed)
        cipher.open_into(sealed, opened[: end - start])


def _read_into(connection: socket.socket, target: memoryview, *, may_end: bool = False) -> bool:
    """Fill the target. False: the connection has ended before the first byte, which is no error. Raises OSError."""
    done = 0
    while done < len(target):
        got = connection.recv_into(target[done:])
        if not got:
            if may_end and not done:
                return False
            raise ConnectionError("it ended within a copy")
        done += got
    return True


def _send_file(connection: socket.socket, fd: int, offset: int, length: int) -> None:
    """Raises OSError."""
    with open(os.dup(fd), "rb") as file:
        file.seek(offset)
        connection.sendfile(file, offset, length)

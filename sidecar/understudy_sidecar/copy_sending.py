"""Sends the newest snapshots of a pod's ranks to the pods that keep its copies.

Rules: one snapshot at a time, and the one of the rank whose copies are oldest. While it is sent, its slot is marked, so
that a save overwrites the other slot and waits for nothing. If the header has changed before the last chunk, or if a
newer plan comes, the connection is closed: the other pod drops an incomplete record. Chunks of 1 MiB are encrypted
straight from the slot, and sent to all holders. A holder that cannot be reached is called again after RETRY_S. A flush
ends when nothing is left to send, and each holder has closed its connection: then it has stored what it has received.
"""

import socket
import threading
import time
from collections.abc import Callable

from understudy_protocol.copies import SendCopies
from understudy_protocol.enums import RoundToken
from understudy_protocol.snapshot_files import CHUNK_BYTES, SLOTS, TAG_BYTES, Header, read_header, record_bytes
from understudy_protocol.snapshots import CopyHolder, SavedStep
from understudy_sidecar import copy_commands as c
from understudy_sidecar.copy_files import CopyFiles
from understudy_sidecar.copy_records import pieces, seal_head
from understudy_sidecar.peer_calls import CallFailed, call

#: How soon a new snapshot is found: a look reads a header of each slot.
POLL_S = 0.02
RETRY_S = 1.0


class Sender:
    """`run` is the thread; the other methods are called by others."""

    def __init__(self, key: bytes, setup: c.Setup, say: Callable[[str], None], on_flushed: Callable[[], None]) -> None:
        self._key, self._setup, self._say, self._on_flushed = key, setup, say, on_flushed
        self._changed = threading.Condition()
        self._files: CopyFiles | None = None
        self._plan: c.Plan | None = None
        self._sent: dict[int, tuple[SavedStep, int]] = {}  # the newest and its serial, by local rank
        self._streams: dict[str, socket.socket] = {}  # by pod uid
        self._stream_plans: dict[str, RoundToken] = {}  # the round of each stream
        self._retry_at: dict[str, float] = {}
        self._is_flushing = False
        self._copied = self._skipped = self._failed = self._bytes = 0

    def use(self, files: CopyFiles) -> None:
        with self._changed:
            self._files = files
            self._changed.notify()

    def plan(self, plan: c.Plan) -> None:
        with self._changed:
            if self._plan is not None and plan.token != self._plan.token:
                self._sent.clear()
            self._plan = plan
            self._changed.notify()

    def flush(self) -> None:
        with self._changed:
            self._is_flushing = True
            self._changed.notify()

    def counts(self) -> c.Counts:
        return c.Counts(self._copied, self._skipped, self._failed, self._bytes)

    def run(self) -> None:
        while True:
            with self._changed:
                if not self._is_flushing:
                    self._changed.wait(POLL_S if self._may_send() else None)
                files, plan, is_flushing = self._files, self._plan, self._is_flushing
            if files is not None and plan is not None and plan.group_rank != c.NO_RANKS:
                self._send_newest(files, plan)
            if is_flushing and self._plan is plan:
                self._end_streams()

    def _end_streams(self) -> None:
        for uid, stream in self._streams.items():
            try:
                stream.shutdown(socket.SHUT_WR)
                stream.recv(1)  # it sends nothing, and closes the connection
            except OSError as error:
                self._fail(uid, f"the connection broke: {error}")
        self._close([*self._streams])
        with self._changed:
            self._is_flushing = False
        self._on_flushed()

    def _may_send(self) -> bool:
        return self._files is not None and self._plan is not None and bool(self._plan.plan.holders)

    def _send_newest(self, files: CopyFiles, plan: c.Plan) -> None:
        """Until there is nothing new."""
        while self._plan is plan and self._files is files:
            found = [x for x in (self._newest(files, plan, rank) for rank in range(self._setup.nproc)) if x is not None]
            streams = self._open_streams(plan) if found else []
            if not streams:
                return
            local_rank, slot, data = min(found, key=lambda x: self._serial_sent(x[0]))
            files.mark_copied(local_rank, slot)
            try:
                self._send(files, plan, streams, (local_rank, slot, data))
            finally:
                files.mark_copied(local_rank, None)

    def _serial_sent(self, local_rank: int) -> int:
        return self._sent[local_rank][1] if local_rank in self._sent else 0

    def _newest(self, files: CopyFiles, plan: c.Plan, local_rank: int) -> tuple[int, int, bytes] | None:
        """The slot of the newest snapshot of this round that was not sent, and its header."""
        newest: tuple[SavedStep, int, bytes] | None = None
        for slot in range(SLOTS):
            data = files.own_header_bytes(local_rank, slot)
            header = read_header(data)
            if header is None or header.saved.token != plan.token or not 0 < header.size <= files.slot_bytes:
                continue
            if newest is None or header.saved > newest[0]:
                newest = (header.saved, slot, data)
        if newest is None or (local_rank in self._sent and newest[0] <= self._sent[local_rank][0]):
            return None
        return local_rank, newest[1], newest[2]

    # One copy -------------------------------------------------------------------------------------------------------

    def _send(
        self, files: CopyFiles, plan: c.Plan, streams: list[tuple[str, socket.socket]], found: tuple[int, int, bytes]
    ) -> None:
        local_rank, slot, data = found
        header = read_header(data)
        if header is None or files.own_header_bytes(local_rank, slot) != data:
            return  # it was overwritten before it was marked
        head, cipher = seal_head(self._key, data)
        content = files.own_content(local_rank, slot, header.size)
        sealed = memoryview(bytearray(CHUNK_BYTES + TAG_BYTES))
        live = self._send_to(streams, memoryview(head))
        for start, end, _ in pieces(header.size):
            chunk = sealed[: end - start + TAG_BYTES]
            cipher.seal_into(content[start:end], chunk)
            is_last = end == header.size
            if self._plan is not plan or (is_last and files.own_header_bytes(local_rank, slot) != data):
                self._close([uid for uid, _ in live])
                return
            live = self._send_to(live, chunk)
        if live:
            self._on_sent(local_rank, header, len(live))

    def _on_sent(self, local_rank: int, header: Header, holders: int) -> None:
        self._copied += 1
        self._bytes += holders * record_bytes(header.size)
        self._skipped += max(0, header.serial - self._serial_sent(local_rank) - 1)
        self._sent[local_rank] = (header.saved, header.serial)

    def _send_to(self, streams: list[tuple[str, socket.socket]], data: memoryview) -> list[tuple[str, socket.socket]]:
        """Return the streams that are left."""
        live = []
        for uid, stream in streams:
            try:
                stream.sendall(data)
                live.append((uid, stream))
            except OSError as error:
                self._fail(uid, f"the connection broke: {error}")
                self._close([uid])
        return live

    # The holders ----------------------------------------------------------------------------------------------------

    def _open_streams(self, plan: c.Plan) -> list[tuple[str, socket.socket]]:
        wanted = {holder.pod_uid: holder for holder in plan.plan.holders}
        self._close([uid for uid in self._streams if uid not in wanted or self._stream_plans.get(uid) != plan.token])
        for uid, holder in wanted.items():
            if uid not in self._streams and time.monotonic() >= self._retry_at.get(uid, 0.0):
                self._call(plan, holder)
        return list(self._streams.items())

    def _call(self, plan: c.Plan, holder: CopyHolder) -> None:
        message = SendCopies(plan.token, plan.group_rank)
        try:
            stream = call(holder.ip, self._key, self._setup.job_uid, self._setup.pod_uid, message)
        except CallFailed as error:
            self._fail(holder.pod_uid, str(error))
            return
        self._streams[holder.pod_uid] = stream
        self._stream_plans[holder.pod_uid] = plan.token

    def _fail(self, uid: str, why: str) -> None:
        self._failed += 1
        self._retry_at[uid] = time.monotonic() + RETRY_S
        self._say(f"cannot send copies to pod {uid}: {why}")

    def _close(self, uids: list[str]) -> None:
        for uid in uids:
            stream = self._streams.pop(uid, None)
            if stream is not None:
                stream.close()

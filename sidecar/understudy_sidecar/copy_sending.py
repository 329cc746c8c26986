"""Sends the newest snapshots of a pod's ranks to the pods that keep its copies.

Rules: the snapshots of all ranks in turn, first of the rank whose copies are oldest. From the beginning of the turn,
their slots are marked, so that saves overwrite the other slots and wait for nothing. With a stride above 1, only the
saves that all pods copy are sent (copy_stride.py), and a slot stays marked until the next one of these is saved: if the
pod that keeps the copy is lost, this pod still has the snapshot. If the header has changed before the last chunk, or if
a newer plan with other holders comes, the connection is closed: the other pod drops an incomplete record. Chunks of
1 MiB are encrypted straight from the slot, and sent to all holders. A holder that cannot be reached is called again
after RETRY_S. If a round gets other holders, they get the newest snapshot again. A flush sends both slots: the drained
workers of other ranks may have ended one save earlier. It ends when nothing is left to send, and each holder has closed
its connection: then it has stored what it has received.
"""

import socket
import threading
import time
from collections.abc import Callable

from understudy_protocol.copies import SendCopies
from understudy_protocol.enums import NO_ROUND, RoundToken
from understudy_protocol.snapshot_files import CHUNK_BYTES, SLOTS, TAG_BYTES, Header, read_header, record_bytes
from understudy_protocol.snapshots import CopyHolder, SavedStep
from understudy_sidecar import copy_commands as c
from understudy_sidecar.copy_files import CopyFiles
from understudy_sidecar.copy_records import pieces, seal_head
from understudy_sidecar.membership.copy_stride import StrideNeed, all_have_saved, is_due
from understudy_sidecar.peer_calls import CallFailed, call

#: How soon a new snapshot is found: a look reads a header of each slot.
POLL_S = 0.02
RETRY_S = 1.0


class CopySender:
    """`run` is the thread; the other methods are called by others."""

    def __init__(
        self, key: bytes, setup: c.Setup, log: Callable[[str], None], on_flushed: Callable[[RoundToken], None]
    ) -> None:
        self._key, self._setup, self._log, self._on_flushed = key, setup, log, on_flushed
        self._changed = threading.Condition()
        self._files: CopyFiles | None = None
        self._plan: c.RoundCopyPlan | None = None
        self._holders: tuple[RoundToken, tuple[CopyHolder, ...]] = (NO_ROUND, ())  # the holders of the copies in _sent
        self._sent: dict[int, tuple[SavedStep, ...]] = {}  # by local rank: the newest ones, oldest first
        self._serials: dict[int, int] = {}  # of the newest snapshot of the round that was sent, by local rank
        self._streams: dict[str, socket.socket] = {}  # by pod uid
        self._stream_plans: dict[str, RoundToken] = {}  # the round of each stream
        self._retry_at: dict[str, float] = {}
        self._failures: dict[str, str] = {}  # by pod uid: the newest that was logged since the last copy to it
        self._flushing: RoundToken | None = None
        self._keeps_marks = False  # of snapshots that were sent
        self.need = StrideNeed()
        self._copied = self._skipped = self._failed = self._bytes = 0
        self._newest: tuple[SavedStep, float] | None = None  # that was copied from all ranks, and when
        self._at_holders = c.NO_COPY

    def use(self, files: CopyFiles) -> None:
        with self._changed:
            self._files = files
            self._changed.notify()

    def plan(self, plan: c.RoundCopyPlan) -> None:
        with self._changed:
            self._plan = plan
            self._changed.notify()

    def flush(self, token: RoundToken) -> None:
        with self._changed:
            self._flushing = token
            self._changed.notify()

    def counts(self) -> c.CopyCounts:
        step, at = (c.NO_STEP, 0.0) if self._newest is None else (self._newest[0].step, self._newest[1])
        return c.CopyCounts(self._copied, self._skipped, self._failed, self._bytes, step, at)

    def at_holders(self) -> c.Copied:
        plan = self._plan
        is_current = plan is not None and self._holders == (plan.token, plan.plan.holders)
        return self._at_holders if is_current else c.NO_COPY

    def run(self) -> None:
        while True:
            with self._changed:
                if self._flushing is None:
                    self._changed.wait(POLL_S if self._may_send() else None)
                files, plan, flushing = self._files, self._plan, self._flushing
            if files is not None and plan is not None and plan.group_rank != c.NO_RANKS:
                self._send_newest(files, plan, is_flush=flushing is not None)
            if flushing is not None and self._plan is plan:
                self._end_flush(flushing)

    def _end_flush(self, token: RoundToken) -> None:
        for uid, stream in self._streams.items():
            try:
                stream.shutdown(socket.SHUT_WR)
                stream.recv(1)  # it sends nothing, and closes the connection
            except OSError as error:
                self._fail(uid, f"the connection broke: {error}")
        self._close([*self._streams])
        with self._changed:
            if self._flushing == token:
                self._flushing = None
        self._on_flushed(token)

    def _may_send(self) -> bool:
        return self._files is not None and self._plan is not None and bool(self._plan.plan.holders)

    def _send_newest(self, files: CopyFiles, plan: c.RoundCopyPlan, *, is_flush: bool) -> None:
        """Until there is nothing new."""
        self._begin(files, plan)
        while self._plan is plan and self._files is files:
            ranks = range(self._setup.nproc)
            found = [x for x in (self._unsent(files, plan, rank, is_flush=is_flush) for rank in ranks) if x is not None]
            if not self._may_begin(plan, found, is_flush=is_flush) or not self._open_streams(plan):
                return
            for local_rank, slot, _ in found:
                files.mark_copied(local_rank, slot)
            saves: list[int] = []
            try:
                for local_rank, slot, data in sorted(found, key=lambda x: self._serials.get(x[0], 0)):
                    if streams := list(self._streams.items()):
                        saves += self._send(files, plan, streams, (local_rank, slot, data))
            finally:
                if plan.plan.stride == 1 or is_flush:
                    self._unmark(files)
            if saves:
                self.need.on_copied(max(saves))

    def _may_begin(self, plan: c.RoundCopyPlan, found: list[tuple[int, int, bytes]], *, is_flush: bool) -> bool:
        serials = {rank: header.serial for rank, _, data in found if (header := read_header(data)) is not None}
        if plan.plan.stride == 1 or is_flush:
            return bool(serials)
        return all_have_saved(serials, self._serials, self._setup.nproc)

    def _unmark(self, files: CopyFiles) -> None:
        for local_rank in range(self._setup.nproc):
            files.mark_copied(local_rank, None)

    def _begin(self, files: CopyFiles, plan: c.RoundCopyPlan) -> None:
        holders = (plan.token, plan.plan.holders)
        if self._keeps_marks and (plan.token != self._holders[0] or plan.plan.stride == 1 or not plan.plan.holders):
            self._unmark(files)
        self._keeps_marks = plan.plan.stride > 1
        if holders != self._holders:
            self._sent.clear()
            self._at_holders = c.NO_COPY
        if plan.token != self._holders[0]:
            self._serials.clear()
        self._holders = holders

    def _unsent(
        self, files: CopyFiles, plan: c.RoundCopyPlan, local_rank: int, *, is_flush: bool
    ) -> tuple[int, int, bytes] | None:
        """The slot of the newest snapshot of this round, unless it was sent, and its header. In a flush also the slot
        of the other snapshot. While a slot is written to storage, saves overwrite the other one, so that is not sent.
        All ranks store the same steps, so that snapshot is sent with each stride.
        """
        found: list[tuple[SavedStep, int, bytes]] = []
        stored = None if is_flush else files.slot_being_stored(local_rank)
        stride, serial = plan.plan.stride if stored is None and not is_flush else 1, self._serials.get(local_rank, 0)
        for slot in range(SLOTS) if stored is None else (stored,):
            data = files.own_header_bytes(local_rank, slot)
            header = read_header(data)
            if header is None or header.saved.token != plan.token or not 0 < header.size <= files.slot_bytes:
                continue
            if is_due(header.serial, stride, serial):
                found.append((header.saved, slot, data))
        sent = self._sent.get(local_rank, ())
        for saved, slot, data in sorted(found, reverse=True):
            if saved not in sent and (is_flush or not sent or saved > sent[-1]):
                return local_rank, slot, data
        return None

    # One copy -------------------------------------------------------------------------------------------------------

    def _send(
        self,
        files: CopyFiles,
        plan: c.RoundCopyPlan,
        streams: list[tuple[str, socket.socket]],
        found: tuple[int, int, bytes],
    ) -> list[int]:
        """Returns how many saves have ended meanwhile; nothing if no holder has got the copy."""
        local_rank, slot, data = found
        header = read_header(data)
        if header is None or files.own_header_bytes(local_rank, slot) != data:
            return []  # it was overwritten before it was marked
        head, cipher = seal_head(self._key, data)
        content = files.own_content(local_rank, slot, header.size)
        sealed = memoryview(bytearray(CHUNK_BYTES + TAG_BYTES))
        live = self._send_to(streams, memoryview(head))
        for start, end, _ in pieces(header.size):
            chunk = sealed[: end - start + TAG_BYTES]
            cipher.seal_into(content[start:end], chunk)
            is_last = end == header.size
            if not self._is_current(plan) or (is_last and files.own_header_bytes(local_rank, slot) != data):
                self._close([uid for uid, _ in live])
                return []
            live = self._send_to(live, chunk)
        if not live:
            return []
        for uid, _ in live:
            self._failures.pop(uid, None)
        self._on_sent(local_rank, header, len(live))
        slots = [files.own_header(local_rank, slot) for slot in range(SLOTS)]
        serials = [x.serial for x in slots if x is not None and x.saved.token == plan.token]
        return [max(serials, default=0) - header.serial]

    def _is_current(self, plan: c.RoundCopyPlan) -> bool:
        """A plan that has only another stride does not interrupt a copy."""
        newest = self._plan
        return newest is not None and (newest.token, newest.plan.holders) == (plan.token, plan.plan.holders)

    def _on_sent(self, local_rank: int, header: Header, holders: int) -> None:
        self._copied += 1
        self._bytes += holders * record_bytes(header.size)
        serial = self._serials.get(local_rank, 0)
        self._skipped += max(0, header.serial - serial - 1)
        self._serials[local_rank] = max(header.serial, serial)
        self._sent[local_rank] = tuple(sorted((*self._sent.get(local_rank, ()), header.saved)))[-SLOTS:]
        if len(self._sent) == self._setup.nproc:
            of_all = set.intersection(*map(set, self._sent.values()))
            if of_all and (self._newest is None or max(of_all) != self._newest[0]):
                self._newest = max(of_all), time.time()
            if header.saved in of_all and header.saved > self._at_holders.saved:
                self._at_holders = c.Copied(header.saved, header.saved_ns / 1e9)

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

    def _open_streams(self, plan: c.RoundCopyPlan) -> list[tuple[str, socket.socket]]:
        wanted = {holder.pod_uid: holder for holder in plan.plan.holders}
        self._close([uid for uid in self._streams if uid not in wanted or self._stream_plans.get(uid) != plan.token])
        for uid, holder in wanted.items():
            if uid not in self._streams and time.monotonic() >= self._retry_at.get(uid, 0.0):
                self._call(plan, holder)
        return list(self._streams.items())

    def _call(self, plan: c.RoundCopyPlan, holder: CopyHolder) -> None:
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
        if self._failures.get(uid) != why:  # a pod may need minutes until it has allocated its memory
            self._failures[uid] = why
            self._log(f"cannot send copies to pod {uid}: {why}")

    def _close(self, uids: list[str]) -> None:
        for uid in uids:
            stream = self._streams.pop(uid, None)
            if stream is not None:
                stream.close()

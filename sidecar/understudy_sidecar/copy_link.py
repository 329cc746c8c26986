"""The sidecar's edge to its process for copies (copy_process.py): starts it, and passes it plans, files and
connections.

Rules: the launcher passes its memory once it is allocated, over a socket in the shared folder, or reports that it has
none. Of connections to this socket that have passed nothing, only the newest stays. This process keeps the files, and
passes them to a process for copies that replaces one that has ended. The sidecar checks a pod that calls about copies
against the plan (kept_copies.py). Then it duplicates the connection for the process, and only the process uses the
connection from then on. If the process ends during a fetch or a flush, the fetch or flush has failed, and the fetch may
have overwritten any snapshot.
"""

import asyncio
import contextlib
import logging
import os
import socket
import sys
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from understudy_protocol import shared_socket, wire
from understudy_protocol.copies import PeerAnswer, RequestCopy, SendCopies
from understudy_protocol.enums import NO_ROUND, RoundToken
from understudy_protocol.snapshots import CopyPlan, SavedStep
from understudy_sidecar import copy_commands as c
from understudy_sidecar.copy_process import MAX_FILES, PACKET_BYTES
from understudy_sidecar.link import Link
from understudy_sidecar.membership.events import (
    CopiesFlushed,
    CopiesPlanned,
    CopyEvent,
    CopyFetched,
    CopyOverwrites,
    CopyStrideNeeded,
    FetchCopy,
    FlushCopies,
    PlanCopies,
    SnapshotCopied,
)
from understudy_sidecar.membership.kept_copies import rejection

RESTART_AFTER_S = 1.0
#: If the process takes longer to answer a plan, it hangs.
PLAN_S = 5.0
_LISTEN_BACKLOG = 4
_FILES_LINE_BYTES = 256
_KNOWN = {cls.__name__: cls for cls in c.TO_SIDECAR}
log = logging.getLogger(__name__)


@dataclass
class _Process:
    control: socket.socket
    process: asyncio.subprocess.Process
    is_ready: bool = False  # it has imported its modules, which takes a while on a busy machine


class CopyLink:
    """handle gets the events for the member."""

    def __init__(self, setup: c.Setup, handle: Callable[[CopyEvent], None]) -> None:
        self._setup, self._handle = setup, handle
        self._plan = c.RoundCopyPlan(NO_ROUND, c.NO_RANKS, CopyPlan(0))
        self._plan_until: asyncio.TimerHandle | None = None  # while the process has not answered it
        self._fetching: FetchCopy | None = None  # not answered yet
        self._flushing: RoundToken | None = None  # not answered yet
        self._files: tuple[int, list[int]] = (0, [])  # the number of the pod's own files, and all files
        self._has_no_memory = False  # the launcher has none, and will have none
        self._process: _Process | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._listener: socket.socket | None = None
        self._passing: socket.socket | None = None  # the newest connection to it, while it has passed nothing
        self._before = self._counts = c.CopyCounts(0, 0, 0, 0)  # of ended processes, and of the one that runs

    async def start(self, path: Path) -> None:
        self._listener = shared_socket.bound(path)
        self._listener.listen(_LISTEN_BACKLOG)
        asyncio.get_running_loop().add_reader(self._listener, self._accept, self._listener)
        self._keeping = asyncio.create_task(self._keep(), name="copies")

    async def close(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
        self._end_passing()
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)

    # Effects of the member ------------------------------------------------------------------------------------------

    def do(self, effect: PlanCopies | FetchCopy | FlushCopies) -> None:
        match effect:
            case PlanCopies(token, group_rank, plan):
                self._plan = c.RoundCopyPlan(token, c.NO_RANKS if group_rank is None else group_rank, plan)
                self._on_planned()
                if self._fetching is not None and self._fetching.token < token:
                    self._fetching = None
                self._plan_until = asyncio.get_running_loop().call_later(PLAN_S, self._on_late_plan)
                if self._process is None or not self._process.is_ready:
                    asyncio.get_running_loop().call_soon(self._answer_plan)
                self._send(self._plan)
            case FetchCopy():
                self._fetching = effect
                if self._process is None:
                    asyncio.get_running_loop().call_soon(self._fail_fetch, ())
                else:
                    self._send(c.Fetch(effect.token, effect.group_rank, effect.saved, effect.holders))
            case FlushCopies(token):
                self._flushing = token
                if self._process is None or not self._files[1]:
                    asyncio.get_running_loop().call_soon(self._end_flush)
                else:
                    self._send(c.Flush(token))

    # Calls of other pods --------------------------------------------------------------------------------------------

    def on_peer(self, link: Link, pod_uid: str, message: SendCopies | RequestCopy) -> None:
        error = "this pod's process for copies is being restarted" if self._process is None else ""
        error = error or ("" if self._files[1] else "this pod has no memory for snapshots yet")
        match message:
            case SendCopies(token, group_rank):
                error = error or rejection(self._plan.token, self._plan.plan, token, group_rank, pod_uid)
        if error:
            link.send(PeerAnswer(error))
            link.hangup()
            return
        greeting = link.sealed(PeerAnswer()).hex()
        order: c.Receive | c.Serve
        match message:
            case SendCopies(token, group_rank):
                order = c.Receive(token, group_rank, pod_uid, greeting)
            case RequestCopy(group_rank, saved, world_size):
                order = c.Serve(group_rank, saved, world_size, greeting)
        with link.taken_over() as fd:
            self._send(order, [fd])

    @property
    def is_ready(self) -> bool:
        """Whether the process runs, and has the launcher's memory."""
        return self._process is not None and self._process.is_ready and bool(self._files[1])

    def kill_process(self) -> None:
        """It is started again."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.process.kill()

    # Metrics --------------------------------------------------------------------------------------------------------

    @property
    def counts(self) -> c.CopyCounts:
        before, now = self._before, self._counts
        return c.CopyCounts(
            before.copied + now.copied,
            before.skipped + now.skipped,
            before.failed + now.failed,
            before.copied_bytes + now.copied_bytes,
            *((before.step, before.at) if now.step == c.NO_STEP else (now.step, now.at)),
        )

    # The process ----------------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        while True:
            with contextlib.suppress(OSError):
                await self._run()
            self._fail_fetch(None)
            self._end_flush()
            await asyncio.sleep(RESTART_AFTER_S)

    async def _run(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        with ours, theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "understudy_sidecar.copy_process",
                str(theirs.fileno()),
                pass_fds=[theirs.fileno()],
            )
            theirs.close()
            self._process = _Process(ours, process)
            ended = asyncio.create_task(process.wait(), name="the end of the process for copies")
            loop.add_reader(ours, self._on_readable, ours)
            try:
                self._send(self._setup)
                self._send_files()
                if self._plan.token != NO_ROUND:
                    self._send(self._plan)
                code = await asyncio.shield(ended)
                log.warning("the process for copies ended with exit code %s: it is restarted", code)
            finally:
                loop.remove_reader(ours)
                self._process = None
                self._before, self._counts = self.counts, c.CopyCounts(0, 0, 0, 0)
                self._answer_plan(None)
                if process.returncode is None:
                    process.kill()
                    await ended

    def _send(self, message: object, fds: list[int] | None = None) -> None:
        if self._process is None:
            return
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else []
        try:
            self._process.control.sendmsg([wire.encode(message).encode()], rights)
        except OSError as error:  # it has ended, or does not read
            log.warning("the process for copies does not read its socket (%s): it is restarted", error)
            self.kill_process()

    def _on_readable(self, control: socket.socket) -> None:
        for message in _messages(control):
            match message:
                case c.Ready() if self._process is not None:
                    self._process.is_ready = True
                case c.Planned(token, kept, overwritten, fetched):
                    if token == self._plan.token:
                        self._on_planned()
                    self._handle(CopiesPlanned(token, kept, overwritten, fetched))
                case c.Overwrites(saved):
                    self._handle(CopyOverwrites(saved))
                case c.Fetched(token, saved, error, overwritten):
                    if self._fetching is not None and (self._fetching.token, self._fetching.saved) == (token, saved):
                        self._fetching = None
                    self._handle(CopyFetched(token, saved, error, overwritten))
                case c.Flushed(token) if token == self._flushing:
                    self._end_flush()
                case c.CopyCounts():
                    self._counts = replace(message)
                case c.Copied() | c.StrideNeeded():
                    self._handle(_event_of(message))
                case c.LogLine(text):
                    log.info("%s", text)

    def _on_planned(self) -> None:
        if self._plan_until is not None:
            self._plan_until.cancel()
            self._plan_until = None

    def _on_late_plan(self) -> None:
        """The workers of a round must not wait for a process that hangs."""
        log.error("the process for copies has not answered within %g s: it is restarted", PLAN_S)
        self.kill_process()
        self._answer_plan(None)

    def _answer_plan(self, overwritten: tuple[SavedStep, ...] | None = ()) -> None:
        """Answer in place of the process, which has ended or is being killed: so no copy of an older round arrives."""
        if self._plan_until is not None:
            self._on_planned()
            self._handle(CopiesPlanned(self._plan.token, (), overwritten))

    def _end_flush(self) -> None:
        if self._flushing is not None:
            token, self._flushing = self._flushing, None
            self._handle(CopiesFlushed(token))

    def _fail_fetch(self, overwritten: tuple[SavedStep, ...] | None) -> None:
        fetch, self._fetching = self._fetching, None
        if fetch is not None:
            self._handle(CopyFetched(fetch.token, fetch.saved, "the process for copies has ended", overwritten))

    # The launcher's memory ------------------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            connection.setblocking(False)
            self._end_passing()
            self._passing = connection
            asyncio.get_running_loop().add_reader(connection, self._on_files, connection)

    def _end_passing(self) -> None:
        if self._passing is not None:
            asyncio.get_running_loop().remove_reader(self._passing)
            self._passing.close()
            self._passing = None

    def _on_files(self, connection: socket.socket) -> None:
        """One message with all files."""
        fds = array("i")
        try:
            ancillary_bytes = socket.CMSG_LEN(MAX_FILES * fds.itemsize)
            data, ancillary, _, _ = connection.recvmsg(_FILES_LINE_BYTES, ancillary_bytes, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            return
        finally:
            self._end_passing()
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
        if data == b"0" and not self._files[1]:
            self._has_no_memory = True
            self._send_files()
        self.take_files(int(data) if data.isdigit() and len(data) < 6 else 0, list(fds))

    def take_files(self, own: int, fds: list[int]) -> None:
        """own: how many of them are for the pod's own ranks. A launcher may pass the same files again."""
        if not 0 < own <= len(fds) or _inodes(fds) == _inodes(self._files[1]):
            for fd in fds:
                os.close(fd)
            return
        for fd in self._files[1]:
            os.close(fd)
        self._files = own, fds
        self._send_files()

    def _send_files(self) -> None:
        own, fds = self._files
        if fds:
            self._send(c.Files(own, len(fds) - own), fds)
        elif self._has_no_memory:
            self._send(c.NoFiles())


def _event_of(message: c.Copied | c.StrideNeeded) -> SnapshotCopied | CopyStrideNeeded:
    if isinstance(message, c.Copied):
        return SnapshotCopied(message.saved, message.saved_at)
    return CopyStrideNeeded(message.stride)


def _messages(control: socket.socket) -> Iterator[object]:
    while True:
        try:
            data = control.recv(PACKET_BYTES)
        except OSError:
            return
        if not data:
            return
        yield wire.decode(data, _KNOWN)


def _inodes(fds: list[int]) -> list[tuple[int, int]]:
    return [(status.st_dev, status.st_ino) for status in map(os.fstat, fds)]

"""The process for copies of a sidecar: sends snapshots to other pods, keeps theirs, and fetches.

`python -m understudy_sidecar.copy_process FD`, with the sidecar's socket. It is a process of its own, because a sidecar
may coordinate thousands of members while gigabytes are encrypted here. The main thread handles the sidecar's messages.
One thread sends. Each fetch and each connection of another pod has a thread.

Rules: membership/kept_copies.py decides which copies are kept, and where. A plan is answered when no copy of an older
round can arrive any more. A copy counts once its header is written. The header is written last, after the whole copy
was opened with the key. The newest snapshot is copied; those that were saved meanwhile are skipped. In a new pod, the
launcher still allocates the memory when the first fetch is ordered: the fetch waits for it, because the copy may be the
only one of its snapshot. The process ends with its sidecar.
"""

import contextlib
import os
import socket
import sys
import threading
import time
from array import array

from understudy_protocol import wire
from understudy_protocol.snapshots import SavedStep
from understudy_sidecar import copy_commands as c
from understudy_sidecar.copy_fetching import FetchEnded, Fetching
from understudy_sidecar.copy_files import CopyFiles, UnsuitableFiles
from understudy_sidecar.copy_keeping import Keeper
from understudy_sidecar.copy_sending import CopySender
from understudy_sidecar.membership.kept_copies import fetched_steps
from understudy_sidecar.tcp import watch_peer

PACKET_BYTES = 1 << 18
MAX_FILES = 250  # the kernel passes at most 253 with a message
#: A pod has two snapshots of each rank, and no worker saves before its round has its choice.
MAX_OVERWRITTEN = 64
COUNTS_EVERY_S = 0.5
_KNOWN = {cls.__name__: cls for cls in c.TO_PROCESS}


class CopyProcess:
    def __init__(self, control: socket.socket, setup: c.Setup) -> None:
        self._control, self._setup = control, setup
        self._key = bytes.fromhex(setup.key)
        self._lock = threading.Lock()  # for the control socket's writes
        self._files: CopyFiles | None = None
        self._plan: c.RoundCopyPlan | None = None
        self._keeper = Keeper(self._key, setup.nproc, self.log)
        self._sender = CopySender(self._key, setup, self.log, lambda token: self._send(c.Flushed(token)))
        self._counts = c.CopyCounts(0, 0, 0, 0)
        self._copied = c.NO_COPY  # the reported one
        self._stride: int | None = None  # the reported one
        self._fetching: Fetching | None = None  # the newest fetch
        self._waiting: c.Fetch | None = None  # the newest fetch, until there is memory for it
        self._why_no_files = ""  # why there will be no memory
        self._overwritten: list[SavedStep] = []

    def run(self) -> None:
        """Until the sidecar ends."""
        self._send(c.Ready())
        threading.Thread(target=self._sender.run, name="send", daemon=True).start()
        threading.Thread(target=self._report, name="report", daemon=True).start()
        while (received := receive(self._control)) is not None:
            self._handle(*received)

    def log(self, text: str) -> None:
        self._send(c.LogLine(text))

    def _handle(self, message: object, fds: list[int]) -> None:
        match message:
            case c.Files(own, kept) if len(fds) == own + kept:
                self._take_files(fds[:own], fds[own:])
            case c.Files():
                _close(fds)
                self._on_no_files("this process has not got all files of the memory for snapshots")
            case c.NoFiles():
                self._on_no_files("this pod has no memory for snapshots")
            case c.RoundCopyPlan():
                self._on_plan(message)
            case c.Fetch():
                self._on_fetch(message)
            case c.Flush(token):
                self._sender.flush(token)
            case c.Receive() if fds:
                _in_thread(self._keeper.receive, message, _connection(fds[0]))
            case c.Serve() if fds:
                _in_thread(self._keeper.serve, message, _connection(fds[0]))
            case _:
                _close(fds)

    def _take_files(self, own: list[int], kept: list[int]) -> None:
        try:
            if len(own) != self._setup.nproc:
                raise UnsuitableFiles(f"{len(own)} files for {self._setup.nproc} workers")
            self._files = CopyFiles(own, kept)
        except (UnsuitableFiles, OSError) as error:
            _close([*own, *kept])
            self.log(f"ignored the memory for snapshots that a process of the trainer container has passed: {error}")
            self._on_no_files(f"this pod has no memory for snapshots: {error}")
            return
        self._keeper.use(self._files)
        self._sender.use(self._files)
        if self._plan is not None:
            self._keeper.plan(self._plan)
        if self._waiting is not None:
            self._on_fetch(self._waiting)

    def _on_no_files(self, why: str) -> None:
        self._why_no_files = why
        if self._waiting is not None:
            self._on_fetch(self._waiting)

    def _on_plan(self, plan: c.RoundCopyPlan) -> None:
        if self._plan is not None and plan.token > self._plan.token:
            self._end_fetch()
        self._plan = plan
        kept = self._keeper.plan(plan)
        self._sender.plan(plan)
        own = {} if self._files is None else self._files.own_headers()
        fetched = fetched_steps(own, plan.group_rank, self._setup.nproc, plan.plan.world_size)
        self._send(c.Planned(plan.token, kept, tuple(self._overwritten), fetched))

    def _on_fetch(self, order: c.Fetch) -> None:
        self._end_fetch()
        world_size = 0 if self._plan is None else self._plan.plan.world_size
        if self._files is None:
            if self._why_no_files:
                self._send(c.Fetched(order.token, order.saved, self._why_no_files, ()))
                return
            self._waiting = order
            self.log(f"the fetch of step {order.saved.step} waits until the launcher has allocated its memory")
            return
        self._fetching = Fetching(self._files, self._keeper, self._setup, order, world_size, self._on_overwritten)
        threading.Thread(target=self._fetch, args=(self._fetching, order), name="fetch", daemon=True).start()

    def _end_fetch(self) -> None:
        self._waiting = None
        if self._fetching is not None:
            self._fetching.end()
            self._fetching = None

    def _on_overwritten(self, saved: SavedStep) -> None:
        self._overwritten = [*self._overwritten[1 - MAX_OVERWRITTEN :], saved]
        self._send(c.Overwrites(saved))

    def _fetch(self, fetching: Fetching, order: c.Fetch) -> None:
        with contextlib.suppress(FetchEnded):
            error = fetching.fetch()
            if not error:
                self._overwritten = [x for x in self._overwritten if x != order.saved]
            self._send(c.Fetched(order.token, order.saved, error, tuple(self._overwritten)))

    def _report(self) -> None:
        while True:
            time.sleep(COUNTS_EVERY_S)
            counts = self._sender.counts()
            if counts != self._counts:
                self._counts = counts
                self._send(counts)
            copied = self._sender.at_holders()
            if copied != self._copied:
                self._copied = copied
                self._send(copied)
            stride = self._sender.need.stride
            if stride is not None and stride != self._stride:
                self._stride = stride
                self._send(c.StrideNeeded(stride))

    def _send(self, message: object) -> None:
        with self._lock, contextlib.suppress(OSError):  # the sidecar has ended, and this process ends too
            self._control.sendall(wire.encode(message).encode())


def receive(control: socket.socket) -> tuple[object, list[int]] | None:
    """The next message of the sidecar and the files that came with it; None: the sidecar has ended."""
    ancillary_bytes = socket.CMSG_LEN(MAX_FILES * array("i").itemsize)
    try:
        data, ancillary, _, _ = control.recvmsg(PACKET_BYTES, ancillary_bytes, socket.MSG_CMSG_CLOEXEC)
    except OSError:
        return None
    fds = array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    return (wire.decode(data, _KNOWN), list(fds)) if data else None


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _in_thread(work: object, message: object, connection: socket.socket) -> None:
    threading.Thread(target=work, args=(message, connection), daemon=True).start()  # type: ignore[arg-type]


def _connection(fd: int) -> socket.socket:
    connection = socket.socket(fileno=fd)
    connection.setblocking(True)
    watch_peer(connection)
    return connection


def main(arguments: list[str]) -> int:
    control = socket.socket(fileno=int(arguments[0]))
    control.setblocking(True)
    received = receive(control)
    if received is None or not isinstance(received[0], c.Setup):
        return 1
    CopyProcess(control, received[0]).run()
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    os._exit(code)  # threads may wait for other pods

"""The process `logs` writes the container's log, with a prefix before each line of the workers.

The launcher forks it at its start and sends it the read ends of the workers' pipes (SCM_RIGHTS), each in a packet
`STREAM PREFIX`, where STREAM is 1 (stdout) or 2 (stderr); a second file in the packet gets a copy of the bytes. If
nothing reads the log, this process blocks and then, once their pipes are full, the workers block, as without
Understudy. The launcher never blocks: its own lines take the same way, and are dropped when the pipe is full.

A stream that torchrun redirects goes to its file without this process; one that it tees goes through this process to
the file and, with torchrun's prefix, to the log.

Rules: output is not lost when its writer ends. A launcher that exits waits at most FLUSH_WITHIN_S until all output is
in the log; it does not wait for a process that has left its worker's group and keeps a pipe open. The launcher keeps
copies of the newest round's read ends: if the process `logs` is killed, a new one continues with them, at most GIVE_UP
times. A stream that is a terminal is not redirected, because programs behave differently on a terminal.
"""

import array
import contextlib
import os
import select
import socket
from dataclasses import dataclass
from typing import Callable, Optional

from understudy_launcher import log_writer
from understudy_launcher.torchrun_call import NO_FILES, Stream, WorkerOutput

FLUSH_WITHIN_S = 1.0
GIVE_UP = 3
STDOUT, STDERR = 1, 2


@dataclass(frozen=True)
class Outputs:
    """The write ends for a process's stdout and stderr. -1: inherited from the launcher."""

    stdout: int = -1
    stderr: int = -1

    def close(self) -> None:
        for fd in (self.stdout, self.stderr):
            if fd >= 0:
                os.close(fd)


INHERITED = Outputs()


@dataclass(frozen=True)
class _Source:
    stream: int
    prefix: str
    read_end: int
    copy: int = -1  # a file that gets the same bytes


class Logs:
    """The launcher's side. Without `start`, all outputs are inherited."""

    def __init__(self) -> None:
        self.pid = 0  # of the process `logs`; 0: it does not run
        self._control: Optional[socket.socket] = None
        self._own_end = -1  # the write end for the launcher's own lines
        self._own: list[_Source] = []
        self._sources: list[_Source] = []
        self._is_lost = 0
        self._watch: Callable[[int], None] = lambda fd: None
        self._unwatch: Callable[[int], None] = lambda fd: None

    def start(self) -> None:
        """Start the process, or replace it by one that writes to the launcher's present stdout and stderr."""
        self.finish()
        read_end, self._own_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._own = [_Source(STDERR, "", read_end)]
        self._fork()
        self._watched()

    def watch(self, watch: Callable[[int], None], unwatch: Callable[[int], None]) -> None:
        """watch: gets the descriptor that becomes readable when the process ends, now and after each start."""
        self._unwatch = unwatch
        self._watch = watch
        self._watched()

    def _watched(self) -> None:
        if self._control is not None:
            self._watch(self._control.fileno())

    def revive(self) -> None:
        """The process has ended: start another one with the same pipes."""
        self._hang_up(self._unwatch)
        self._is_lost += 1
        if self._is_lost > GIVE_UP:
            self._give_up("the process that adds rank prefixes to logs ended too often")
            return
        try:
            self._fork()
        except OSError as error:
            self._give_up(f"the process that adds rank prefixes to logs ended and cannot be restarted ({error})")
            return
        self._watched()
        self.write_line("the process that adds rank prefixes to logs ended and was restarted")

    def _give_up(self, why: str) -> None:
        self._drop([*self._own, *self._sources])
        os.close(self._own_end)
        self._own, self._sources, self._own_end = [], [], -1
        self.write_line(f"{why}: this round's remaining lines are lost, and later rounds log without a prefix")

    def new_round(self) -> None:
        """No process of the previous round is left. Its remaining output is still read."""
        self._drop(self._sources)
        self._sources = []

    def outputs(self, prefix: str, output: WorkerOutput = NO_FILES) -> Outputs:
        """Pipes or files for one process. The caller closes them once that process has them.

        prefix: before each line of a stream that torchrun neither redirects nor tees; "": it has no pipe. Raises
        OSError if a file cannot be opened.
        """
        stdout = self._target(STDOUT, prefix, output.stdout)
        try:
            return Outputs(stdout, self._target(STDERR, prefix, output.stderr))
        except OSError:
            Outputs(stdout).close()
            raise

    def _target(self, stream: int, prefix: str, wanted: Stream) -> int:
        if not wanted.path:
            return -1 if self._control is None or not prefix or os.isatty(stream) else self._pipe(stream, prefix)
        file = os.open(wanted.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        if wanted.tees and self._control is not None:
            return self._pipe(stream, wanted.prefix, file)
        return file

    def write_line(self, text: str) -> None:
        """Write a line of the launcher itself, in one write, so that no other line mixes with it."""
        line = f"understudy launcher: {text}\n".encode(errors="backslashreplace")
        with contextlib.suppress(OSError):  # the log has no reader, or is full; the workers matter more
            os.write(STDERR if self._own_end < 0 else self._own_end, line)

    def finish(self) -> None:
        """Flush all output so far into the log, and end the process. The launcher writes its own lines itself then."""
        if self._control is None:
            return
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        gone = select.poll()
        gone.register(self._control, select.POLLIN)
        gone.poll(FLUSH_WITHIN_S * 1000)
        self._hang_up(self._unwatch)
        self._drop([*self._own, *self._sources])
        os.close(self._own_end)
        self._own, self._sources, self._own_end = [], [], -1

    def _pipe(self, stream: int, prefix: str, copy: int = -1) -> int:
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read_end, False)
        source = _Source(stream, prefix, read_end, copy)
        if not self._hand_over(source):
            self._drop([source])
            os.close(write_end)
            self.write_line(
                "the process that adds rank prefixes to logs does not read: this round logs without a prefix"
            )
            return -1
        self._sources.append(source)
        return write_end

    def _hand_over(self, source: _Source) -> bool:
        assert self._control is not None
        fds = [source.read_end] if source.copy < 0 else [source.read_end, source.copy]
        files = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        try:
            self._control.sendmsg([f"{source.stream}{source.prefix}".encode()], files, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            pass  # the process has ended: the next one gets the pipe
        return True

    def _fork(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            log_writer.become(theirs.fileno())
        theirs.close()
        self._control = ours
        for source in (*self._own, *self._sources):
            self._hand_over(source)

    def _hang_up(self, unwatch: Callable[[int], None]) -> None:
        if self._control is not None:
            unwatch(self._control.fileno())
            self._control.close()
            self._control = None
            self.pid = 0

    @staticmethod
    def _drop(sources: "list[_Source]") -> None:
        for source in sources:
            os.close(source.read_end)
            if source.copy >= 0:
                os.close(source.copy)

"""Who writes the container's log: a process `logs`, which puts a prefix before each line of the workers'.

The launcher forks it at its start and hands it the read ends of the workers' pipes (SCM_RIGHTS), each in a packet
`STREAM PREFIX`, where STREAM is 1 (stdout) or 2 (stderr). So a log that nobody reads holds up this process and, once
their pipes are full, the workers, as it always did, but never the launcher: whose own lines come this way too, and are
dropped where there is no room.

Rules: what was written is not lost with its writer. When the launcher exits it waits for it to be in the log, at most
FLUSH_WITHIN_S; a process that has left its worker's group and keeps a pipe open is not waited for. The launcher keeps
copies of the newest round's read ends: if that process is killed, another one goes on with them, GIVE_UP times. A
stream that is a terminal is left as it is, for programs behave otherwise on one.
"""

import array
import contextlib
import os
import select
import socket
from dataclasses import dataclass
from typing import Callable, Optional

from understudy_launcher import log_writer

FLUSH_WITHIN_S = 1.0
GIVE_UP = 3
STDOUT, STDERR = 1, 2


@dataclass(frozen=True)
class Outputs:
    """The write ends that a process is to have as its stdout and stderr. -1: what the launcher has."""

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


class Logs:
    """The launcher's side. Before `start`, and where that was never called, everything is inherited."""

    def __init__(self) -> None:
        self.pid = 0  # of the process; 0: there is none
        self._control: Optional[socket.socket] = None
        self._own_end = -1  # of the launcher's own lines
        self._own: list[_Source] = []
        self._sources: list[_Source] = []
        self._is_lost = 0
        self._watch: Callable[[int], None] = lambda fd: None

    def start(self) -> None:
        read_end, self._own_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._own = [_Source(STDERR, "", read_end)]
        self._fork()

    def watch(self, watch: Callable[[int], None]) -> None:
        """watch: hears of the descriptor that is readable when the process has gone, now and after each revival."""
        self._watch = watch
        if self._control is not None:
            watch(self._control.fileno())

    def revive(self, unwatch: Callable[[int], None]) -> None:
        """It has gone: start another one, with all that it had read from."""
        self._hang_up(unwatch)
        self._is_lost += 1
        if self._is_lost > GIVE_UP:
            self._give_up("the process that adds rank prefixes to logs ended too often")
            return
        try:
            self._fork()
        except OSError as error:
            self._give_up(f"the process that adds rank prefixes to logs ended and cannot be restarted ({error})")
            return
        self.watch(self._watch)
        self.write_line("the process that adds rank prefixes to logs ended and was restarted")

    def _give_up(self, why: str) -> None:
        self._drop([*self._own, *self._sources])
        os.close(self._own_end)
        self._own, self._sources, self._own_end = [], [], -1
        self.write_line(f"{why}: this round's remaining lines are lost, and later rounds log without a prefix")

    def new_round(self) -> None:
        """Nothing is left of the former round's workers; what they have left in their pipes is read all the same."""
        self._drop(self._sources)
        self._sources = []

    def outputs(self, prefix: str) -> Outputs:
        """Pipes for a process of its own, to be closed once that has them."""
        if self._control is None:
            return INHERITED
        ends = {}
        for stream in (STDOUT, STDERR):
            ends[stream] = -1 if os.isatty(stream) else self._pipe(stream, prefix)
        return Outputs(ends[STDOUT], ends[STDERR])

    def write_line(self, text: str) -> None:
        """A line of the launcher's own, in one write, so that no other line falls into it."""
        line = f"understudy launcher: {text}\n".encode(errors="backslashreplace")
        with contextlib.suppress(OSError):  # nobody reads it any more, or the log is full; the workers matter more
            os.write(STDERR if self._own_end < 0 else self._own_end, line)

    def finish(self) -> None:
        """Have all that was written so far be in the log. The last thing that a launcher does."""
        if self._control is None:
            return
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        gone = select.poll()
        gone.register(self._control, select.POLLIN)
        gone.poll(FLUSH_WITHIN_S * 1000)

    def _pipe(self, stream: int, prefix: str) -> int:
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read_end, False)
        source = _Source(stream, prefix, read_end)
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
        files = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [source.read_end]))]
        try:
            self._control.sendmsg([f"{source.stream}{source.prefix}".encode()], files, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            pass  # it has gone: the next one gets it
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

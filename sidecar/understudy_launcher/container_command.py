"""The container's command as a child of the launcher, and the torchrun that it calls.

The command runs as the user wrote it: it may prepare data, set variables and call torchrun anywhere. That torchrun
passes its job over a unix socket (understudy_torchrun/hand_over.py), and waits. The launcher then runs the workers, and
when the job has ended, torchrun exits, and the command continues.

Rules: the first call counts. Each further one is rejected, because a job has one training. A caller may send anything,
so the number of callers and the size of a message are limited, and wire.py checks the types. If the caller ends, its
job has to end.
"""

import array
import contextlib
import os
import signal
import socket
import struct
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Callable, Optional, Union

from understudy_launcher import prctl
from understudy_launcher.process_table import Handle
from understudy_protocol import shared_socket, wire
from understudy_protocol.torchrun import LINE_BYTES, EndTorchrun, Proceed, RunStock, RunWorkers

USAGE = 64
_TYPES = {cls.__name__: cls for cls in (RunWorkers, RunStock)}
_CHUNK = 1 << 16
_MOST_CALLERS = 16
_STDOUT, _STDERR = 1, 2
_SECOND = (
    "understudy: the command of this container calls torchrun a second time, but a job has one training. Run the "
    "second one as a job of its own. If one of them only tests the pod, start it with `env -u "
    "UNDERSTUDY_TORCHRUN_SOCKET torchrun --standalone …`"
)


@dataclass(frozen=True)
class Called:
    """A torchrun has passed its job."""

    call: Union[RunWorkers, RunStock]


@dataclass(frozen=True)
class CallerEnded:
    """The torchrun that has passed its job has ended before the job."""


@dataclass
class _Caller:
    connection: socket.socket
    pid: int
    process: Handle
    uid: int
    unread: bytes = b""
    streams: "tuple[int, ...]" = ()  # its stdout and stderr


class ContainerCommand:
    """`watch` and `unwatch` get the sockets to select for reading."""

    def __init__(
        self,
        words: Sequence[str],
        path: str,
        watch: Callable[[int], None],
        unwatch: Callable[[int], None],
        log: Callable[[str], None],
    ) -> None:
        """path: of the unix socket."""
        self._words, self._path = list(words), path
        self._watch, self._unwatch, self._log = watch, unwatch, log
        self._listener: Optional[socket.socket] = None
        self._callers: dict[int, _Caller] = {}  # by file descriptor
        self._accepted: Optional[_Caller] = None
        self._own_streams: tuple[int, ...] = ()  # copies of the launcher's
        self._before_exec = prctl.dies_with_parent()
        self.pid = 0
        self.code: Optional[int] = None  # once it has ended: as in a shell

    def start(self, env: Mapping[str, str]) -> str:
        """Return why it cannot be started, or ""."""
        try:
            self._listen()
            process = subprocess.Popen(self._words, env=dict(env), preexec_fn=self._before_its_exec)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            return f"cannot start {self._words[0]!r}: {error}"
        process.returncode = 0  # processes.reap() reaps it, not Popen
        self.pid = process.pid
        return ""

    def ended(self, status: int) -> None:
        """It was reaped."""
        code = os.waitstatus_to_exitcode(status)
        self.code = code if code >= 0 else 128 - code

    def on_ready(self, fd: int) -> list[Union[Called, CallerEnded]]:
        """A socket is readable."""
        if self._listener is not None and fd == self._listener.fileno():
            self._accept()
            return []
        caller = self._callers.get(fd)
        if caller is None:
            return []
        try:
            chunk = self._receive(caller)
        except BlockingIOError:
            return []
        except OSError:
            chunk = b""
        if not chunk:
            self._forget(caller)
            return [CallerEnded()] if caller is self._accepted else []
        if caller is self._accepted:
            return []  # the protocol allows no message after the call
        caller.unread += chunk
        return self._read(caller)

    def end_torchrun(self, code: int) -> None:
        """Let the torchrun that has passed its job exit with this code. The launcher writes to its own log again."""
        if self._accepted is not None:
            self._answer(self._accepted, EndTorchrun(code))
        for number, copy in zip((_STDOUT, _STDERR), self._own_streams):
            os.dup2(copy, number)
            os.close(copy)
        self._own_streams = ()

    def signal_torchrun(self, number: signal.Signals) -> None:
        """Signal the accepted torchrun, or the command if there is none."""
        if self._accepted is None:
            self.signal(number)
            return
        with contextlib.suppress(PermissionError):
            self._accepted.process.send(number)

    def signal(self, number: signal.Signals) -> None:
        """Signal the command and all processes of its group."""
        if self.pid and self.code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def take_streams(self) -> None:
        """Write to the stdout and stderr of the accepted torchrun from now on, as its workers do."""
        if self._accepted is not None and len(self._accepted.streams) == 2 and not self._own_streams:
            self._own_streams = tuple(os.dup(number) for number in (_STDOUT, _STDERR))
            for number, fd in zip((_STDOUT, _STDERR), self._accepted.streams):
                os.dup2(fd, number)
            self._close_streams(self._accepted)

    def _before_its_exec(self) -> None:
        os.setpgid(0, 0)
        if self._before_exec is not None:
            self._before_exec()

    def _listen(self) -> None:
        self._listener = shared_socket.bound(self._path)
        self._listener.listen()
        self._watch(self._listener.fileno())

    def _accept(self) -> None:
        assert self._listener is not None
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            pid, uid, _ = struct.unpack("3i", credentials)
            if len(self._callers) >= _MOST_CALLERS:
                connection.close()
                return
            self._callers[connection.fileno()] = _Caller(connection, pid, Handle(pid), uid)
            self._watch(connection.fileno())

    def _receive(self, caller: _Caller) -> bytes:
        numbers = array.array("i")
        space = socket.CMSG_LEN(2 * numbers.itemsize)
        chunk, ancillary, _, _ = caller.connection.recvmsg(_CHUNK, space, socket.MSG_CMSG_CLOEXEC)
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
        if numbers:
            self._close_streams(caller)
            caller.streams = tuple(numbers)
        return chunk

    def _read(self, caller: _Caller) -> list[Union[Called, CallerEnded]]:
        if b"\n" not in caller.unread and len(caller.unread) <= LINE_BYTES:
            return []
        try:
            call = wire.decode(caller.unread[:LINE_BYTES].partition(b"\n")[0], _TYPES)
        except wire.WireError as error:
            call = wire.Unknown(str(error))
        caller.unread = b""
        why_not = self._refusal(caller, call)
        if why_not:
            self._log(f"rejected a call of torchrun, pid={caller.pid}: {why_not}")
            self._answer(caller, EndTorchrun(USAGE, why_not))
            return []
        self._accepted = caller
        self._answer(caller, Proceed())
        return [Called(call)]

    def _refusal(self, caller: _Caller, call: object) -> str:
        if isinstance(call, wire.Unknown):
            return f"understudy: the launcher cannot read this call of torchrun: {call.type}"
        if self._accepted is not None:
            return _SECOND
        if caller.uid != os.getuid() and not isinstance(call, RunStock):
            return f"understudy: torchrun runs as user {caller.uid}, and the launcher as {os.getuid()}: this is a bug"
        return ""

    def _answer(self, caller: _Caller, answer: Union[Proceed, EndTorchrun]) -> None:
        with contextlib.suppress(OSError):  # it has ended; a few bytes always fit
            caller.connection.sendall(f"{wire.encode(answer)}\n".encode())

    def _forget(self, caller: _Caller) -> None:
        fd = caller.connection.fileno()
        self._unwatch(fd)
        del self._callers[fd]
        caller.connection.close()
        self._close_streams(caller)
        if caller is not self._accepted:
            caller.process.close()

    @staticmethod
    def _close_streams(caller: _Caller) -> None:
        for fd in caller.streams:
            os.close(fd)
        caller.streams = ()

"""A launcher as the trainer's image runs it, and a sidecar that the test plays."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from understudy_protocol import launcher as messages
from understudy_protocol import pod, wire
from understudy_protocol.enums import RoundToken
from understudy_protocol.launcher import LauncherHello, StartWorkers

#: The Python of the trainer's image. `make pythons` runs the tests with each supported version.
TRAINER_PYTHON = os.environ.get("UNDERSTUDY_TRAINER_PYTHON", sys.executable)
LIMIT_S = 20.0  # for work that is short but may be slow on a busy machine
KNOWN = wire.message_types(messages)
Message = TypeVar("Message")
Value = TypeVar("Value")


def wait_for(condition: Callable[[], Value], what: str | Callable[[], str], limit_s: float = LIMIT_S) -> Value:
    """The first true value of the condition. what: the name of the condition, or a function that describes the state,
    for the error.
    """
    end = time.monotonic() + limit_s
    while not (value := condition()):
        if time.monotonic() >= end:
            raise AssertionError(f"not within {limit_s} s: {what if isinstance(what, str) else what()}")
        time.sleep(0.01)
    return value


def round_(number: int, rank_offset: int = 0, world_size: int = 4, master_port: int = 4711) -> StartWorkers:
    return StartWorkers(RoundToken(0, 1, number), 0, 2, rank_offset, world_size, "10.0.0.1", master_port)


class FakeSidecar:
    """The server of the unix socket, with one connection at a time."""

    def __init__(self, folder: Path, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._path = folder / pod.LAUNCHER_SOCKET
        self._server: socket.socket | None = None
        self._connection: socket.socket | None = None
        self._unread = b""
        self.heard: list[Any] = []

    def listen(self) -> None:
        self._server = socket.socket(socket.AF_UNIX)
        self._server.settimeout(self._limit_s)
        self._server.bind(str(self._path))
        self._server.listen()

    def accept(self) -> LauncherHello:
        """Disconnect, and accept the launcher's next connection. Return its hello."""
        if self._connection is not None:
            self._connection.close()
        return self.accept_beside()

    def accept_beside(self) -> LauncherHello:
        """Accept the launcher's next connection, which the launcher opens by itself. Return its hello."""
        assert self._server is not None
        old = self._connection
        self._unread = b""
        self._connection, _ = self._server.accept()
        self._connection.settimeout(self._limit_s)
        if old is not None:
            old.close()
        return self.expect(LauncherHello)

    def send(self, *sent: Any) -> None:
        self.send_lines(*[wire.encode(message) for message in sent])

    def send_with(self, message: Any, fd: int) -> None:
        """Send a message with a file."""
        assert self._connection is not None
        socket.send_fds(self._connection, [f"{wire.encode(message)}\n".encode()], [fd])

    def send_lines(self, *lines: str) -> None:
        assert self._connection is not None
        self._connection.sendall("".join(f"{line}\n" for line in lines).encode())

    def expect(self, kind: type[Message]) -> Message:
        """The next message of this kind. Others are skipped, and are in `heard`."""
        while not isinstance(message := self.read(), kind):
            pass
        return message

    def expect_both(self, one: type[Message], other: type[Value]) -> tuple[Message, Value]:
        """The next message of each kind, in any order."""
        while True:
            message = self.read()
            if isinstance(message, one):
                return message, self.expect(other)
            if isinstance(message, other):
                return self.expect(one), message

    def read(self) -> Any:
        assert self._connection is not None
        while b"\n" not in self._unread:
            chunk = self._connection.recv(65536)
            assert chunk, "the launcher closed the connection"
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        self.heard.append(wire.decode(line, KNOWN))
        return self.heard[-1]

    def is_connected(self) -> bool:
        """Whether the launcher's end of the connection is open. All its messages must have been read before."""
        assert self._connection is not None
        self._connection.setblocking(False)
        try:
            return self._connection.recv(1, socket.MSG_PEEK) != b""
        except BlockingIOError:
            return True
        finally:
            self._connection.settimeout(self._limit_s)

    def crash(self) -> None:
        """End without a message, and leave a stale socket."""
        for open_socket in (self._connection, self._server):
            if open_socket is not None:
                open_socket.close()
        self._connection = self._server = None
        self._unread = b""

    def restart(self) -> LauncherHello:
        self.crash()
        self._path.unlink()
        self.listen()
        return self.accept()


class Launched:
    """A launcher's process, its output in files, and its sidecar."""

    def __init__(
        self, command: Sequence[str], folder: Path, env: Mapping[str, str], cwd: Path, limit_s: float = LIMIT_S
    ) -> None:
        self.folder = folder
        self.limit_s = limit_s
        self.sidecar = FakeSidecar(folder, limit_s)
        self._out, self._err = folder / "out", folder / "err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(list(command), stdout=out, stderr=err, env=env, cwd=cwd)

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def wait_until(self, condition: Callable[[], Value], what: str | Callable[[], str]) -> Value:
        """As wait_for, with this launcher's limit."""
        return wait_for(condition, what, self.limit_s)

    def logs(self, text: str) -> None:
        """Wait until the text is in the log, which another process writes."""
        self.wait_until(lambda: text in self.err, f"the words {text!r}")

    def prints(self, text: str) -> None:
        """Wait until its workers have printed exactly this. Another process writes it, perhaps after the report of
        their ends.
        """
        self.wait_until(lambda: self.out == text, lambda: f"{text!r} on stdout; it is {self.out!r}")

    def wait(self) -> int:
        return self.process.wait(self.limit_s)

    def join(self) -> LauncherHello:
        self.sidecar.listen()
        try:
            return self.sidecar.accept()
        except TimeoutError as error:
            raise AssertionError(f"no launcher has connected; exit code {self.process.poll()}:\n{self.err}") from error

    def path(self, name: str) -> Path:
        """A file of the test, for its workers' output."""
        return self.folder / name

    def pids(self, name: str, count: int) -> list[int]:
        """The process ids that workers wrote to a file, one per line; waits for `count` of them."""

        def complete() -> list[int]:
            lines = self.path(name).read_text().splitlines() if self.path(name).exists() else []
            return [int(line) for line in lines] if len(lines) >= count else []

        return self.wait_until(complete, lambda: f"{count} process ids in {name}; the launcher's output:\n{self.err}")

    def end(self) -> None:
        """Leave no process behind, whatever the test did.

        Stop the launcher before the kill: processes that fork meanwhile stay below it, and are found.
        """
        self.sidecar.crash()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGSTOP)
            wait_for(self._descendants_end, f"no descendant of the launcher is left; its output:\n{self.err}")
            self.process.kill()
            self.process.wait()

    def _descendants_end(self) -> bool:
        """Kill them. Return whether none was left."""
        left = [pid for pid in _descendants(self.process.pid) if alive(pid)]
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    return _state(pid) not in ("Z", "X", "")


def children(pid: int) -> list[int]:
    """Except the process that writes the launcher's logs."""
    return [child for child in _all_children(pid) if name_of(child) != "logs"]


def logs_of(pid: int) -> list[int]:
    return [child for child in _all_children(pid) if name_of(child) == "logs" and alive(child)]


def name_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _all_children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _descendants(pid: int) -> list[int]:
    return [found for child in _all_children(pid) for found in (child, *_descendants(child))]


def zombies(pid: int) -> list[int]:
    return [child for child in children(pid) if _state(child) == "Z"]


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def plain_environment() -> dict[str, str]:
    """This process's environment without variables that would affect the launcher."""
    dropped = ("PYTHON", "UNDERSTUDY", "COV")
    return {name: value for name, value in os.environ.items() if not name.startswith(dropped)}

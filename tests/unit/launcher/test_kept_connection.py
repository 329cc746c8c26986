"""A sidecar's connection to its coordinator, with real processes: the kernel ends it only when both the sidecar and the
launcher have ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.launcher.fake_sidecar import LIMIT_S, Launched, alive, wait_for
from understudy_protocol import pod

Launch = Callable[..., Launched]
ESTABLISHED = 1
AT_ONCE_S = 5.0
SLEEPS = ("/bin/sh", "-c", 'echo $$ >> "$HERE/pids"; exec sleep 600')


class Coordinator:
    """The coordinator that the sidecars connect to. It reads nothing until the test asks."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(LIMIT_S)
        self.port: int = self._listening.getsockname()[1]
        self.calls: list[socket.socket] = []

    def accept(self) -> socket.socket:
        call, _ = self._listening.accept()
        call.setblocking(False)
        self.calls.append(call)
        return call

    def close(self) -> None:
        for open_socket in (*self.calls, self._listening):
            open_socket.close()


class Sidecar:
    """A process of `holding_sidecar`."""

    def __init__(self, launched: Launched, coordinator: Coordinator, number: int) -> None:
        path, port = str(launched.folder / pod.LAUNCHER_SOCKET), str(coordinator.port)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.unit.launcher.holding_sidecar", path, port, str(number)],
            cwd=Path(__file__).parents[3],
            env={**os.environ, "PYTHONPATH": "sidecar:."},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.inode = self.process.stdout.readline().strip()
        assert self.inode, "it did not start"

    def do(self, command: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def has_open(pid: int, inode: str) -> bool:
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since the folder was listed
            if os.readlink(fd) == f"socket:[{inode}]":
                return True
    return False


def state(call: socket.socket) -> int:
    return call.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]


def goes_on(call: socket.socket) -> bool:
    """Whether neither FIN nor RST has arrived."""
    try:
        return state(call) == ESTABLISHED and call.recv(1) != b""
    except BlockingIOError:
        return True


def acknowledged(call: socket.socket) -> bool:
    return fcntl.ioctl(call, termios.TIOCOUTQ, b"\0" * 4) == b"\0" * 4


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    listening = Coordinator()
    yield listening
    listening.close()


@pytest.fixture
def launched(launch: Launch) -> Launched:
    return launch(*SLEEPS)


Start = Callable[[int], tuple[Sidecar, socket.socket]]


@pytest.fixture
def start(launched: Launched, coordinator: Coordinator) -> Iterator[Start]:
    """Starts or restarts the sidecar. Returns it, and the coordinator's end of the connection that is kept."""
    started: list[Sidecar] = []

    def one(number: int) -> tuple[Sidecar, socket.socket]:
        started.append(Sidecar(launched, coordinator, number))
        call = coordinator.accept()
        inode = started[-1].inode
        wait_for(lambda: has_open(launched.process.pid, inode), "the launcher's copy of the connection")
        return started[-1], call

    yield one
    for sidecar in started:
        sidecar.kill()


def test_a_sidecars_crash_does_not_end_the_connection_and_the_end_of_both_does_at_once(
    launched: Launched, start: Start
) -> None:
    sidecar, call = start(0)
    (worker,) = launched.pids("pids", 1)
    assert not has_open(worker, sidecar.inode), "a worker that was started later has no copy"
    sidecar.kill()
    wait_for(lambda: "lost the connection to the sidecar" in launched.err, "the launcher's notice of the crash")
    assert goes_on(call)
    assert alive(worker)
    launched.process.kill()
    before = time.monotonic()
    wait_for(lambda: not goes_on(call), "the end of the connection")
    assert time.monotonic() - before < AT_ONCE_S


def test_the_launchers_end_alone_does_not_end_the_connection(launched: Launched, start: Start) -> None:
    sidecar, call = start(0)
    launched.process.kill()
    launched.wait()
    assert goes_on(call)
    sidecar.kill()
    wait_for(lambda: not goes_on(call), "the end of the connection")


def test_the_kernel_acknowledges_data_for_a_dead_sidecar_until_its_successor_connects(
    launched: Launched, start: Start
) -> None:
    sidecar, call = start(0)
    sidecar.kill()
    call.send(b"a heartbeat")
    wait_for(lambda: acknowledged(call), "the kernel's acknowledgement")
    assert goes_on(call)
    _, newer = start(1)
    wait_for(lambda: not goes_on(call), "the end of the old connection")
    assert goes_on(newer)


def test_a_sidecar_that_disconnects_lets_the_launcher_drop_the_copy(launched: Launched, start: Start) -> None:
    sidecar, call = start(0)
    sidecar.do("close")
    assert goes_on(call), "the copy keeps it open"
    sidecar.do("drop")
    wait_for(lambda: not goes_on(call), "the end of the connection")
    assert not has_open(launched.process.pid, sidecar.inode)

"""The sidecar's end of the unix socket: which connection is the launcher's, and a socket that is sent exactly with its
line.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from understudy_protocol import launcher as messages
from understudy_protocol import wire
from understudy_protocol.enums import NO_ROUND, WorkersState
from understudy_protocol.launcher import (
    DropSocket,
    HoldSocket,
    LauncherHello,
    NextPort,
    StopWorkers,
    Terminating,
    WorkersFinished,
)
from understudy_sidecar.launcher_link import LauncherLink

UNSENT_BYTES = 1024 * 1024

KNOWN = wire.message_types(messages)
LIMIT_S = 10.0
LONG = StopWorkers("x" * 10_000)


def hello(pid: int = 1) -> LauncherHello:
    return LauncherHello(pid, NO_ROUND, None, WorkersState.IDLE, 4000)


async def until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, f"not within {LIMIT_S:g} s: {what}"
        await asyncio.sleep(0.005)


class Heard:
    """The sidecar behind the link."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self.link = LauncherLink(
            lambda hello: self.events.append(("up", hello.pid)),
            self.events.append,
            lambda: self.events.append("down"),
        )


class Launcher:
    """A launcher that a test simulates; the lines that it has read are in `taken`."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.setblocking(False)
        self.socket.connect(str(path))
        self._unread = b""
        self.taken: list[object] = []

    def send(self, *sent: object) -> None:
        self.socket.send("".join(wire.encode(message) + "\n" for message in sent).encode())

    def read(self) -> tuple[list[object], list[int]] | None:
        """The result of one read: the lines that are complete now, and the file descriptors; None at the end."""
        try:
            chunk, fds, _, _ = socket.recv_fds(self.socket, 1 << 20, 8)
        except BlockingIOError:
            return [], []
        if not chunk:
            return None
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        whole = [wire.decode(line, KNOWN) for line in lines]
        self.taken += whole
        return whole, fds

    async def expect(self, kind: type[object]) -> list[tuple[object, list[int]]]:
        """All reads up to the one whose last line is of this kind: (last line, descriptors) of each."""
        reads: list[tuple[object, list[int]]] = []

        def come() -> bool:
            read = self.read()
            assert read is not None, "the sidecar hung up"
            if read[0]:
                reads.append((read[0][-1], read[1]))
            return bool(reads) and isinstance(reads[-1][0], kind)

        await until(come, f"a {kind.__name__}")
        return reads

    def at_its_end(self) -> bool:
        with contextlib.suppress(ConnectionResetError):
            return self.read() is None
        return True

    def close(self) -> None:
        self.socket.close()


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="understudy-") as folder:
        yield Path(folder) / "sidecar.sock"


Connect = Callable[[], Launcher]


@pytest.fixture
async def connect(heard: Heard, path: Path) -> AsyncIterator[Connect]:
    """Connects launchers, which have not sent a message yet."""
    server = await heard.link.listen(path)
    connected: list[Launcher] = []

    def one() -> Launcher:
        connected.append(Launcher(path))
        return connected[-1]

    yield one
    server.close()
    for launcher in connected:
        launcher.close()
    if heard.events:
        await until(lambda: heard.events[-1] == "down", "the end of the connection")


@pytest.fixture
async def launcher(heard: Heard, connect: Connect) -> Launcher:
    """A launcher that is connected, and has sent its hello."""
    connected = connect()
    connected.send(hello())
    await until(lambda: heard.events, "the hello")
    assert heard.events.pop() == ("up", 1)
    return connected


@pytest.fixture
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The sidecar's connection to its coordinator, and the coordinator's end of it."""
    mine, theirs = socket.socketpair()
    with mine, theirs:
        theirs.setblocking(False)
        yield mine, theirs


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def waits_to_write() -> int:
    """For how many of this process's files an epoll waits to write, according to the kernel."""
    found = 0
    for info in Path("/proc/self/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):
            waited = [line.split() for line in info.read_text().splitlines() if line.startswith("tfd:")]
            found += sum(bool(int(words[words.index("events:") + 1], 16) & select.EPOLLOUT) for words in waited)
    return found


def leave_stale_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def same(fd: int, other: socket.socket) -> bool:
    return os.fstat(fd).st_ino == os.fstat(other.fileno()).st_ino


# Which connection is the launcher's -----------------------------------------------------------------------------------


async def test_messages_go_both_ways_in_their_order(heard: Heard, launcher: Launcher) -> None:
    launcher.send(NextPort(1), NextPort(2), Terminating(3.0))
    await until(lambda: len(heard.events) == 3, "three messages")
    assert heard.events == [NextPort(1), NextPort(2), Terminating(3.0)]
    heard.link.send(StopWorkers("a"))
    heard.link.send(StopWorkers("b"))
    heard.link.send(DropSocket())
    await launcher.expect(DropSocket)
    assert launcher.taken == [StopWorkers("a"), StopWorkers("b"), DropSocket()]


@pytest.mark.attack("C4", "a process of the pod that sends garbage to its sidecar's socket", before="refused, too")
async def test_a_process_that_does_not_send_hello_first_is_no_launcher(
    heard: Heard, launcher: Launcher, connect: Connect
) -> None:
    stranger = connect()
    stranger.send(NextPort(666))
    await until(stranger.at_its_end, "the end of the stranger's connection")
    assert heard.events == []


GARBAGE = {
    "noise": os.urandom(64).replace(b"\n", b".") + b"\n",
    "no-object": b"[]\n",
    "deep": b"[" * 60_000 + b"\n",
    "endless-line": b"x" * (1 << 17),
    "another-message": wire.encode(StopWorkers("a")).encode() + b"\n",
    "wrong-field": b'{"type":"LauncherHello","pid":"x"}\n',
}


@pytest.mark.attack("C4", "a process of the pod that sends garbage to its sidecar's socket", before="refused, too")
@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
async def test_garbage_ends_the_connection_that_sent_it_and_no_other(
    heard: Heard, launcher: Launcher, connect: Connect, garbage: bytes
) -> None:
    # given the pod's launcher, and another process of its container
    stranger = connect()
    # when that process sends garbage
    with contextlib.suppress(BlockingIOError):
        stranger.socket.send(garbage)
    await until(stranger.at_its_end, "the end of the stranger's connection")
    # then the sidecar has heard nothing, and talks to the launcher as before
    launcher.send(NextPort(1))
    await until(lambda: heard.events, "the launcher's message")
    assert heard.events == [NextPort(1)]
    heard.link.send(StopWorkers("a"))
    await launcher.expect(StopWorkers)


@pytest.mark.attack(
    "C4", "a process of the pod that opens connections without end", before="each took two files of the sidecar"
)
async def test_of_connections_without_a_hello_only_the_newest_64_stay(
    heard: Heard, launcher: Launcher, connect: Connect
) -> None:
    strangers = []
    # when a process opens 300 connections and sends nothing
    for _ in range(300):
        strangers.append(connect())
        await asyncio.sleep(0)
    # then the sidecar closes all but the newest ones
    await until(lambda: sum(x.at_its_end() for x in strangers) == 236, "the end of 236 connections")
    assert [x.at_its_end() for x in strangers[-64:]] == [False] * 64
    # and talks to the launcher as before, and to a newer one
    heard.link.send(StopWorkers("a"))
    await launcher.expect(StopWorkers)
    newer = connect()
    newer.send(hello(2))
    await until(lambda: heard.events == [("up", 2)], "the newer one's hello")


async def test_a_process_that_poses_as_the_launcher_takes_its_place(
    heard: Heard, launcher: Launcher, connect: Connect
) -> None:
    """Every process of the trainer container may report for the workers, and end the job with success."""
    stranger = connect()
    stranger.send(hello(666), WorkersFinished(NO_ROUND))
    await until(lambda: len(heard.events) == 2, "the stranger's messages")
    assert heard.events == [("up", 666), WorkersFinished(NO_ROUND)]
    await until(launcher.at_its_end, "the end of the launcher's connection")


async def test_a_newer_launcher_takes_over_without_a_gap(heard: Heard, launcher: Launcher, connect: Connect) -> None:
    newer = connect()
    newer.send(hello(2))
    await until(launcher.at_its_end, "the end of the older connection")
    newer.send(NextPort(5))
    await until(lambda: len(heard.events) == 2, "the newer one's messages")
    assert heard.events == [("up", 2), NextPort(5)], "no down: there was always one"


async def test_messages_of_a_replaced_launcher_are_ignored(
    heard: Heard, launcher: Launcher, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """The older one sends its hello just after the newer one, before it can know of that."""
    caplog.set_level(logging.INFO)
    newer = connect()
    newer.socket.send(b'{"type":"Unheard"}\n')
    await until(lambda: "unknown type Unheard" in caplog.text, "the newer one's connection")
    newer.send(hello(2))
    launcher.send(hello(1))
    newer.send(NextPort(5))
    await until(lambda: NextPort(5) in heard.events, "the newer one's message")
    assert heard.events == [("up", 2), NextPort(5)]


async def test_a_stale_socket_is_replaced_and_any_user_may_connect(heard: Heard, path: Path) -> None:
    leave_stale_socket(path)
    async with await heard.link.listen(path):
        assert mode(path) == 0o666
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(str(path))


async def test_the_last_messages_of_a_launcher_arrive_although_it_reads_no_more(
    heard: Heard, launcher: Launcher
) -> None:
    launcher.send(NextPort(1), Terminating(3.0))
    launcher.close()
    heard.link.send(StopWorkers("too late"))
    await until(lambda: "down" in heard.events, "its end")
    assert heard.events == [NextPort(1), Terminating(3.0), "down"]


async def test_nothing_is_sent_while_there_is_no_launcher(heard: Heard, connection: tuple[socket.socket, ...]) -> None:
    before = open_fds()
    heard.link.send(StopWorkers("nobody hears it"))
    heard.link.hold_socket(connection[0].fileno())
    heard.link.drop_socket()
    assert open_fds() == before


# A socket with its line -----------------------------------------------------------------------------------------------


async def test_a_socket_comes_with_its_line(
    heard: Heard, launcher: Launcher, connection: tuple[socket.socket, socket.socket]
) -> None:
    mine, _ = connection
    before = open_fds()
    heard.link.hold_socket(mine.fileno())
    ((_, (fd,)),) = await launcher.expect(HoldSocket)
    assert same(fd, mine)
    os.close(fd)
    assert open_fds() == before
    assert mine.fileno() >= 0, "the caller's is the caller's"


async def test_a_socket_stays_with_its_line_when_the_launcher_reads_late(
    heard: Heard, launcher: Launcher, connection: tuple[socket.socket, socket.socket]
) -> None:
    """Lines wait before it and after it, and the caller has closed its own socket by then."""
    before = open_fds()
    for _ in range(50):
        heard.link.send(LONG)
    mine = connection[0].dup()
    heard.link.hold_socket(mine.fileno())
    mine.close()
    heard.link.send(LONG)
    heard.link.drop_socket()
    assert open_fds() > before, "some wait: else this tests nothing"
    reads = await launcher.expect(DropSocket)
    with_socket = [(line, fds) for line, fds in reads if fds]
    ((line, (fd,)),) = with_socket
    assert line == HoldSocket(), "the last line of the read that brought it"
    assert same(fd, connection[0])
    os.close(fd)
    await until(lambda: open_fds() == before, "the close of the outbox's copy")


async def test_a_kept_connection_ends_when_the_last_copy_is_closed(
    heard: Heard, launcher: Launcher, connection: tuple[socket.socket, socket.socket]
) -> None:
    mine, theirs = connection
    heard.link.hold_socket(mine.fileno())
    mine.close()
    ((_, (fd,)),) = await launcher.expect(HoldSocket)
    with pytest.raises(BlockingIOError):
        theirs.recv(1)
    os.close(fd)
    assert theirs.recv(1) == b""


async def test_a_sidecar_that_has_just_started_does_not_drop_the_socket_of_the_last_process(
    heard: Heard, launcher: Launcher
) -> None:
    heard.link.drop_socket()
    heard.link.send(StopWorkers("the end of the test"))
    await launcher.expect(StopWorkers)
    assert launcher.taken == [StopWorkers("the end of the test")]


async def test_a_socket_to_drop_while_no_launcher_was_connected_is_dropped_when_one_is_back(
    heard: Heard, launcher: Launcher, connect: Connect, connection: tuple[socket.socket, socket.socket]
) -> None:
    heard.link.hold_socket(connection[0].fileno())
    ((_, (fd,)),) = await launcher.expect(HoldSocket)
    os.close(fd)
    launcher.close()
    await until(lambda: heard.events == ["down"], "its end")
    heard.link.drop_socket()
    back = connect()
    back.send(hello(2))
    await until(lambda: heard.events[-1] == ("up", 2), "its return")
    heard.link.drop_socket()
    heard.link.drop_socket()
    heard.link.send(StopWorkers("the end of the test"))
    await back.expect(StopWorkers)
    assert back.taken == [DropSocket(), StopWorkers("the end of the test")], "once"


async def test_a_socket_that_a_launcher_never_read_is_closed_with_its_connection(
    heard: Heard, launcher: Launcher, connection: tuple[socket.socket, socket.socket]
) -> None:
    before = open_fds()
    for _ in range(50):
        heard.link.send(LONG)
    heard.link.hold_socket(connection[0].fileno())
    assert open_fds() == before + 1
    launcher.close()
    await until(lambda: "down" in heard.events, "its end")
    await until(lambda: open_fds() == before - 3, "the close of the copy, of both ends and of the outbox's")


async def test_a_line_that_the_socket_takes_in_parts_arrives_whole(heard: Heard, launcher: Launcher) -> None:
    long = StopWorkers("x" * (UNSENT_BYTES // 2))
    heard.link.send(long)
    heard.link.send(DropSocket())
    await launcher.expect(DropSocket)
    assert launcher.taken == [long, DropSocket()]


async def test_the_loop_waits_for_the_launcher_only_while_something_is_unsent(heard: Heard, launcher: Launcher) -> None:
    assert waits_to_write() == 0
    for _ in range(50):
        heard.link.send(LONG)
    await until(lambda: waits_to_write() == 1, "the wait")
    heard.link.send(DropSocket())
    await launcher.expect(DropSocket)
    await until(lambda: waits_to_write() == 0, "the end of the wait: else it is a busy loop")


async def test_a_launcher_that_does_not_read_is_disconnected(heard: Heard, launcher: Launcher) -> None:
    for _ in range(2 * UNSENT_BYTES // 10_000):
        heard.link.send(LONG)
    await until(lambda: "down" in heard.events, "its end")
    await until(launcher.at_its_end, "the end of its connection")

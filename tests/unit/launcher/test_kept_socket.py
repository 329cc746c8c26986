"""The copy of the sidecar's connection: kept, closed, and never leaked, whatever the sidecar sends with it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from tests.unit.launcher.linked import Linked
from understudy_launcher.events import Connected
from understudy_protocol import wire
from understudy_protocol.launcher import DropSocket, HoldSocket, StopWorkers

HOLD = wire.encode(HoldSocket()).encode() + b"\n"
DROP = wire.encode(DropSocket()).encode() + b"\n"
STOP = wire.encode(StopWorkers("a")).encode() + b"\n"


class Connection:
    """A sidecar's connection to its coordinator. Once passed on, `mine` is closed, so only the copy keeps it open."""

    def __init__(self) -> None:
        self.mine, self.theirs = socket.socketpair()
        self.theirs.setblocking(False)

    def passed(self, link: Linked, line: bytes = HOLD) -> None:
        socket.send_fds(link.other, [line], [self.mine.fileno()])
        self.mine.close()

    @property
    def is_open(self) -> bool:
        try:
            return self.theirs.recv(1) != b""
        except BlockingIOError:
            return True


@pytest.fixture
def connection() -> Iterator[Connection]:
    made = Connection()
    yield made
    made.mine.close()
    made.theirs.close()


def open_fds() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/fd")}


def ino(fd: int) -> int:
    try:
        return os.fstat(fd).st_ino
    except OSError:  # the descriptor of the listing itself
        return -1


def test_a_kept_socket_stays_open_until_it_is_dropped(linked: Linked, connection: Connection) -> None:
    connection.passed(linked)
    assert linked.link.receive(1.0) == [], "no order for the supervisor"
    assert connection.is_open
    linked.other.sendall(DROP)
    assert linked.link.receive(1.0) == []
    assert not connection.is_open


def test_a_newer_socket_replaces_the_older_one(linked: Linked, connection: Connection) -> None:
    connection.passed(linked)
    linked.link.receive(1.0)
    newer = Connection()
    newer.passed(linked)
    linked.link.receive(1.0)
    assert (connection.is_open, newer.is_open) == (False, True)
    linked.other.sendall(DROP)
    linked.link.receive(1.0)
    newer.theirs.close()


def test_a_kept_socket_outlives_the_sidecars_connection(
    linked: Linked, server: socket.socket, connection: Connection
) -> None:
    connection.passed(linked)
    linked.link.receive(1.0)
    linked.other.close()
    linked.link.receive(2.0)
    assert linked.link.socket is None
    assert linked.link.connect(3.0) == [Connected()]
    assert connection.is_open
    linked.other = server.accept()[0]
    linked.other.sendall(DROP)
    linked.link.receive(4.0)
    assert not connection.is_open


def test_a_kept_socket_is_closed_in_children_and_never_read(linked: Linked, connection: Connection) -> None:
    file = os.fstat(connection.mine.fileno()).st_ino
    connection.passed(linked)
    linked.link.receive(1.0)
    (kept,) = [fd for fd in open_fds() if ino(fd) == file]
    assert not os.get_inheritable(kept)
    connection.theirs.send(b"a heartbeat")
    linked.other.sendall(STOP)
    linked.link.receive(1.0)
    with socket.socket(fileno=os.dup(kept)) as copy:
        assert copy.recv(100) == b"a heartbeat"
    linked.other.sendall(DROP)
    linked.link.receive(1.0)


def test_orders_around_a_hold_socket_message_arrive_as_they_were_sent(linked: Linked, connection: Connection) -> None:
    linked.other.sendall(STOP)
    connection.passed(linked)
    linked.other.sendall(STOP)
    received = linked.link.receive(1.0) + linked.link.receive(1.0)
    assert received == [StopWorkers("a"), StopWorkers("a")]
    assert connection.is_open
    linked.other.sendall(DROP)
    linked.link.receive(1.0)


def test_a_hold_socket_message_without_a_socket_is_logged(linked: Linked, connection: Connection) -> None:
    connection.passed(linked)
    linked.link.receive(1.0)
    linked.other.sendall(HOLD + STOP)
    assert linked.link.receive(1.0) == [StopWorkers("a")]
    assert not connection.is_open, "the sidecar has another connection by now"
    assert "sent a HoldSocket without a socket" in linked.log[-1]


@pytest.mark.parametrize("line", [STOP, DROP, b"no message\n", b"\n"])
def test_a_socket_without_a_hold_socket_message_is_closed(linked: Linked, connection: Connection, line: bytes) -> None:
    before = open_fds()
    connection.passed(linked, line)
    linked.link.receive(1.0)
    assert not connection.is_open
    assert "sent a socket without a HoldSocket" in linked.log[-1]
    assert open_fds() <= before


def test_a_socket_whose_line_is_cut_waits_for_the_rest(linked: Linked, connection: Connection) -> None:
    connection.passed(linked, HOLD[:10])
    linked.link.receive(1.0)
    linked.other.sendall(HOLD[10:])
    linked.link.receive(1.0)
    assert connection.is_open
    linked.other.sendall(DROP)
    linked.link.receive(1.0)
    assert not connection.is_open


def test_a_socket_whose_line_never_ends_is_closed_with_the_connection(linked: Linked, connection: Connection) -> None:
    connection.passed(linked, HOLD[:10])
    linked.link.receive(1.0)
    assert connection.is_open
    linked.other.close()
    linked.link.receive(1.0)
    assert not connection.is_open


def test_sockets_without_end_on_one_line_are_not_collected(linked: Linked) -> None:
    before = open_fds()
    for _ in range(20):
        spare = Connection()
        spare.passed(linked, b"x")
        linked.link.receive(1.0)
        spare.theirs.close()
    assert len(open_fds()) == len(before) + 1


def test_one_of_several_sockets_on_a_line_is_kept(linked: Linked, connection: Connection) -> None:
    more = [Connection() for _ in range(5)]
    socket.send_fds(linked.other, [HOLD], [each.mine.fileno() for each in (connection, *more)])
    for each in (connection, *more):
        each.mine.close()
    linked.link.receive(1.0)
    assert connection.is_open
    assert not any(each.is_open for each in more)
    linked.other.sendall(DROP)
    linked.link.receive(1.0)
    for each in more:
        each.theirs.close()

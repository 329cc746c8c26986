"""The launcher's end of the socket, with real sockets and the test's own clock."""

from __future__ import annotations

import socket

from tests.unit.launcher.linked import Linked
from understudy_launcher.events import Connected
from understudy_launcher.sidecar_link import SidecarLink
from understudy_protocol import wire
from understudy_protocol.launcher import NextPort, StopWorkers

BUFFER_LIMIT = 1 << 20
COMPLAIN_AFTER_S = 10.0
RETRY_FROM_S = 0.05
RETRY_TO_S = 1.0


def _unheard(_: object) -> None:
    pass


def test_attempts_become_rarer_up_to_a_second_and_one_line_is_logged_after_ten(path: str) -> None:
    log: list[str] = []
    link = SidecarLink(path, log.append, _unheard, 0.0)
    now, gaps = 0.0, []
    while now < 3 * COMPLAIN_AFTER_S:
        assert link.connect(now) == []
        assert bool(log) is (now >= COMPLAIN_AFTER_S)
        due = link.deadline()
        assert due is not None
        gaps.append(round(due - now, 3))
        now = due
    assert gaps[:6] == [RETRY_FROM_S, 0.1, 0.2, 0.4, 0.8, RETRY_TO_S]
    assert set(gaps[6:]) == {RETRY_TO_S}
    assert len(log) == 1
    assert log[0].startswith(f"no sidecar at {path} for 1")
    assert log[0].endswith("s (No such file or directory); retrying")


def test_nothing_is_tried_before_it_is_due(path: str, server: socket.socket) -> None:
    link = SidecarLink(path, _unheard, _unheard, 5.0)
    assert link.connect(4.9) == []
    assert link.connect(5.0) == [Connected()]
    assert link.deadline() is None
    assert link.socket is not None
    link.socket.close()


def test_a_stale_socket_is_an_absent_sidecar(path: str, server: socket.socket) -> None:
    server.close()
    link = SidecarLink(path, _unheard, _unheard, 0.0)
    assert link.connect(0.0) == []
    assert link.deadline() == RETRY_FROM_S


def test_messages_arrive_whole_however_they_are_split(linked: Linked) -> None:
    text = (wire.encode(StopWorkers("a")) + "\n" + wire.encode(StopWorkers("b")) + "\n").encode()
    received = []
    for part in (text[:10], text[10:70], text[70:]):
        linked.other.sendall(part)
        received += linked.link.receive(1.0)
    assert received == [StopWorkers("a"), StopWorkers("b")]
    assert linked.link.receive(1.0) == []


def test_the_launcher_reconnects_after_the_end_of_the_connection(linked: Linked, server: socket.socket) -> None:
    linked.other.close()
    assert linked.link.receive(7.0) == []
    assert linked.link.socket is None
    assert linked.link.deadline() == 7.0 + RETRY_FROM_S
    linked.link.send(NextPort(1), 7.0)
    assert linked.link.connect(7.1) == [Connected()]
    assert not linked.link.wants_to_write(), "messages sent in between are not repeated"


def test_a_write_that_fails_ends_the_connection(linked: Linked) -> None:
    linked.other.close()
    linked.link.send(NextPort(1), 1.0)
    assert linked.link.socket is None
    assert "writing failed" in linked.log[-1]


def test_a_socket_is_unregistered_before_it_is_closed(linked: Linked) -> None:
    """A worker's pipe may get its number next, so the selector must no longer have it."""
    assert linked.link.socket is not None
    number = linked.link.socket.fileno()
    linked.other.close()
    linked.link.receive(1.0)
    assert linked.closing == [number]


def test_data_that_the_socket_does_not_accept_is_sent_later(linked: Linked) -> None:
    while not linked.link.wants_to_write():
        linked.link.send(NextPort(12345), 1.0)
    received = b""
    while linked.link.wants_to_write():
        received += linked.other.recv(1 << 20)
        linked.link.flush(1.0)
    linked.link.send(NextPort(1), 1.0)
    while not received.endswith(wire.encode(NextPort(1)).encode() + b"\n"):
        received += linked.other.recv(1 << 20)
    lines = received.splitlines()
    assert set(lines[:-1]) == {wire.encode(NextPort(12345)).encode()}


def test_a_sidecar_that_never_reads_is_disconnected(linked: Linked) -> None:
    message = StopWorkers("x" * 10_000)
    for _ in range(BUFFER_LIMIT // 5_000):
        linked.link.send(message, 1.0)
    assert linked.link.socket is None
    assert "it does not read" in "".join(linked.log)


def test_a_sidecar_that_sends_an_endless_line_is_disconnected(linked: Linked) -> None:
    linked.other.setblocking(False)
    for _ in range(BUFFER_LIMIT // 10_000):
        linked.other.send(b"x" * 20_000)
        linked.link.receive(1.0)
        if linked.link.socket is None:
            break
    assert "it sent a line of more than 1048576 bytes" in linked.log[-1]

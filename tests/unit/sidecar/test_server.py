"""The server over real connections: which callers it accepts, which messages reach its handler, and how connections
end.
"""

from __future__ import annotations

import array
import asyncio
import fcntl
import socket
import struct
import termios
import time
from collections.abc import Callable

import pytest

from tests.unit.sidecar.recording_handler import (
    JOB,
    KEY,
    OTHER_KEY,
    WELCOME,
    RecordingHandler,
    SealedCaller,
    ServedSidecar,
    caller,
    closed_by_server,
    is_accepted,
    join,
    serving,
    until,
)
from tests.unit.sidecar.silent_network import HERE, cable, may_lay_cables
from understudy_protocol import membership as m
from understudy_protocol import wire
from understudy_protocol.enums import NO_ROUND, CloseReason
from understudy_protocol.handshake import Role
from understudy_protocol.observer import Appoint, Observe, Refused
from understudy_sidecar.link import Link
from understudy_sidecar.tcp import Counters, MachineCheck

TAG_BYTES = 16
MEMBER_BYTES = 64 * 1024

# Which callers it accepts


async def test_a_member_that_knows_the_key_is_answered(served: ServedSidecar) -> None:
    async with served.calling() as link:
        await link.send_text(join())
        assert await link.receive() == WELCOME
    assert [type(x) for x in served.handler.messages] == [m.Join]


async def test_an_observer_that_knows_the_key_is_answered(served: ServedSidecar) -> None:
    async with served.calling(caller(Role.OBSERVER, called=served.host)) as link:
        await link.send(Observe())
        await link.send(Appoint(1, 4, {"InPlace": 2}))
        await until(lambda: len(served.handler.observer_messages) == 2)
        served.handler.observers[0].send(Refused("this sidecar is not the coordinator"))
        assert await link.receive() == Refused("this sidecar is not the coordinator")
    await until(lambda: served.handler.observers_gone)
    assert served.handler.observer_messages == [Observe(), Appoint(1, 4, {"InPlace": 2})]
    assert served.handler.links == []


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize(("key", "job"), [(OTHER_KEY, JOB), (KEY, "another")], ids=["key", "job"])
async def test_a_caller_with_another_key_or_job_is_refused(
    served: ServedSidecar, role: Role, key: bytes, job: str
) -> None:
    async with served.upgraded() as link:
        assert not await is_accepted(link, caller(role, key, job))
    assert unvisited(served.handler)


def unvisited(handler: RecordingHandler) -> bool:
    return not (
        handler.links or handler.messages or handler.dropped_links or handler.observers or handler.observer_messages
    )


# Which messages reach the handler


async def test_a_message_of_an_unknown_type_is_dropped(served: ServedSidecar) -> None:
    async with served.member() as link:
        await link.send_text('{"v":2,"type":"FromTheFuture","x":1}')
        await link.send(m.Port(4001))
        await until(lambda: m.Port(4001) in served.handler.messages)
    assert [type(x) for x in served.handler.messages] == [m.Join, m.Port]


async def test_a_member_cannot_send_messages_of_an_observer(served: ServedSidecar) -> None:
    async with served.member() as link:
        await link.send(Appoint(7, -1, {}))
        await link.send(m.Port(4001))
        await until(lambda: m.Port(4001) in served.handler.messages)
    assert served.handler.observer_messages == []
    assert len(served.handler.messages) == 2


async def test_the_longest_message_of_a_member_arrives(served: ServedSidecar) -> None:
    empty = wire.encode(m.Gone(""))
    async with served.member() as link:
        await link.send(m.Gone("x" * (MEMBER_BYTES - TAG_BYTES - len(empty))))
        await until(lambda: len(served.handler.messages) == 2)


async def test_an_observers_message_may_be_as_long_as_ten_thousand_nodes_need(served: ServedSidecar) -> None:
    async with served.calling(caller(Role.OBSERVER, called=served.host)) as link:
        await link.send(Appoint(1, 0, {"x" * (3 << 20): 1}))
        await until(lambda: served.handler.observer_messages)


async def test_an_error_in_the_handler_ends_the_connection_that_caused_it_and_no_other(served: ServedSidecar) -> None:
    received = served.handler.on_message

    def fragile(link: object, message: object) -> None:
        if message == m.Port(666):
            raise RuntimeError("a bug")
        received(link, message)  # type: ignore[arg-type]

    served.handler.on_message = fragile  # type: ignore[method-assign]
    async with served.member() as healthy, served.member() as failing:
        await failing.send(m.Port(666))
        assert await closed_by_server(failing)
        await healthy.send(m.Port(1))
        await until(lambda: m.Port(1) in served.handler.messages)
        assert served.handler.dropped_links == [False]


async def test_closing_the_server_sends_all_queued_messages_first(served: ServedSidecar) -> None:
    async with served.member() as link:
        served.handler.links[0].transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        served.handler.links[0].send(m.Close(CloseReason.SUCCEEDED, "x" * (3 << 20)))
        closing = asyncio.create_task(served.server.close(2.0))
        assert isinstance(await link.receive(), m.Close)
        assert await closed_by_server(link)
        await closing
    assert served.handler.dropped_links == [False]
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((served.host, served.port))


# Keepalives


@pytest.mark.parametrize("role", [Role.MEMBER, Role.OBSERVER])
async def test_an_empty_message_is_answered_with_an_empty_one(served: ServedSidecar, role: Role) -> None:
    async with served.calling(caller(role, called=served.host)) as link:
        await link.send_text("")
        assert await link.receive_text() == b""
        await link.send_text("")
        assert await link.receive_text() == b""
    assert served.handler.messages == []
    assert served.handler.observer_messages == []


# How connections end


def abort(link: SealedCaller) -> None:
    """FIN, without a close frame: as a killed process leaves it."""
    link.transport.abort()


def reset(link: SealedCaller) -> None:
    """RST: the answer of a kernel that does not know the connection any more."""
    linger = struct.pack("ii", 1, 0)
    link.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    abort(link)


@pytest.mark.parametrize("end", [abort, reset])
async def test_a_peer_whose_kernel_ends_the_connection_was_not_silent(
    served: ServedSidecar, end: Callable[[SealedCaller], None]
) -> None:
    async with served.member() as link:
        end(link)
        await until(lambda: served.handler.dropped_links)
    assert served.handler.dropped_links == [False]


async def test_a_peer_that_sends_a_close_frame_was_not_silent(served: ServedSidecar) -> None:
    async with served.member():
        pass
    await until(lambda: served.handler.dropped_links)
    assert served.handler.dropped_links == [False]


@pytest.mark.skipif(not may_lay_cables(), reason="no right to make a network namespace")
@pytest.mark.parametrize("talks", [False, True], ids=["at rest", "while it is sent to"])
async def test_a_peer_behind_a_pulled_cable_was_silent(talks: bool) -> None:
    """Takes the 3 s of the kernel's limits (see tcp.py): keepalive on an idle connection, TCP_USER_TIMEOUT on a busy
    one.
    """
    with cable() as far:
        async with serving(HERE) as served:
            async with served.calling(make_socket=lambda _: nonblocking(far.socket())) as link:
                await link.send_text(join())
                await link.receive()
                await until(lambda: all_acknowledged(served.handler.links[0]))
                far.pull()
                if talks:
                    served.handler.links[0].send(m.Heartbeat(1, NO_ROUND))
                await until(lambda: served.handler.dropped_links, limit_s=8.0)
                abort(link)
            assert served.handler.dropped_links == [True]


@pytest.mark.skipif(not may_lay_cables(), reason="no right to make a network namespace")
async def test_a_machine_behind_a_pulled_cable_is_unreachable_before_its_connection_ends() -> None:
    with cable() as far:
        async with (
            serving(HERE) as served,
            served.calling(make_socket=lambda _: nonblocking(far.socket())) as link,
        ):
            await link.send_text(join())
            await link.receive()
            near = served.handler.links[0]
            await until(lambda: all_acknowledged(near))
            far.pull()
            # given a keepalive without an answer, after a second
            await until(lambda: seen_by_kernel(near).probes == 1, limit_s=3.0)
            # when a message and its repetition get none either
            near.send(m.Heartbeat(1, NO_ROUND))
            check = MachineCheck(seen_by_kernel(near), time.monotonic(), 3)
            assert not check.is_unreachable(seen_by_kernel(near), time.monotonic())
            await until(lambda: check.is_unreachable(seen_by_kernel(near), time.monotonic()), limit_s=3.0)
            seen = seen_by_kernel(near)
            assert (seen.in_flight, seen.probes, max(seen.timeouts, seen.retransmitted)) == (True, 1, 1)
            assert served.handler.dropped_links == []
            abort(link)


async def test_a_process_that_reads_nothing_is_on_a_machine_that_acknowledges_packets(served: ServedSidecar) -> None:
    async with served.calling() as link:
        await link.send_text(join())
        await link.receive()
        near = served.handler.links[0]
        sent = seen_by_kernel(near).sent
        near.send(m.Heartbeat(1, NO_ROUND))
        await until(lambda: seen_by_kernel(near).sent == sent + 1 and not seen_by_kernel(near).in_flight)


def seen_by_kernel(link: Link) -> Counters:
    seen = link.counters()
    assert seen is not None
    return seen


def all_acknowledged(link: Link) -> bool:
    """Whether the peer's kernel has acknowledged all sent bytes."""
    unacknowledged = array.array("i", [0])
    fcntl.ioctl(link.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, unacknowledged)
    return unacknowledged[0] == 0


def nonblocking(made: socket.socket) -> socket.socket:
    made.setblocking(False)
    return made

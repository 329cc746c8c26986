"""Attacks of a relay between a real member and a real coordinator. The relay knows no key, and sees each packet."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import pytest
from aiohttp import web

from tests.sealed_socket import receive_hello, seal
from tests.unit.sidecar.calling import Calls, answering, at, dialing
from tests.unit.sidecar.recording_handler import (
    JOB,
    KEY,
    KNOWN,
    MEMBER_POD,
    SERVER_POD,
    WELCOME,
    ServedSidecar,
    begin,
    caller,
    ended,
    until,
    warnings,
)
from tests.unit.sidecar.relay import Frame, Relay, To, relayed
from understudy_protocol import membership as m
from understudy_protocol import wire
from understudy_protocol.enums import NO_ROUND, CloseReason
from understudy_protocol.frames import Opcode, frame
from understudy_protocol.handshake import HandshakeCalled, Role
from understudy_protocol.pod import MEMBERSHIP_PATH
from understudy_sidecar.client import Address

CLOSE = m.Close(CloseReason.FAILED, "by the relay")
GONE = m.Gone("by the relay")


@dataclass
class Joined:
    """A member that has joined its coordinator through a relay."""

    served: ServedSidecar
    calls: Calls
    relay: Relay

    def send(self, to: To, number: int) -> None:
        """A message in that direction."""
        if to is To.SIDECAR:
            self.calls.client.send(m.Port(number))
        else:
            self.served.handler.links[-1].send(m.Heartbeat(number, NO_ROUND))

    def received(self, to: To) -> list[int]:
        """The numbers that arrived, after the first message of each side."""
        if to is To.SIDECAR:
            return [x.master_port for x in self.served.handler.messages if isinstance(x, m.Port)]
        return [x.number for x in self.calls.messages if isinstance(x, m.Heartbeat)]

    async def until_ended(self) -> None:
        await until(lambda: self.calls.downs and self.served.handler.dropped_links)

    def assert_nothing_was_believed(self) -> None:
        """Neither side has received a message that the other side did not send."""
        assert [type(x) for x in self.served.handler.messages if not isinstance(x, m.Port)] == [m.Join]
        assert [x for x in self.calls.messages if not isinstance(x, m.Heartbeat)] == [WELCOME]


@asynccontextmanager
async def joined(served: ServedSidecar) -> AsyncIterator[Joined]:
    async with relayed(at(served)) as relay, dialing(relay.address) as calls:
        await until(lambda: calls.messages == [WELCOME])
        yield Joined(served, calls, relay)


@pytest.mark.parametrize("to", To)
async def test_a_relay_that_forwards_everything_changes_nothing(served: ServedSidecar, to: To) -> None:
    async with joined(served) as it:
        it.send(to, 1)
        it.send(to, 2)
        await until(lambda: it.received(to) == [1, 2])
        assert (it.calls.downs, served.handler.dropped_links) == (0, [])


@pytest.mark.attack("C1", "a relay that reads messages", before="it read all of them")
async def test_a_relay_reads_no_message(served: ServedSidecar) -> None:
    async with joined(served) as it:
        # when each side sends a message
        it.calls.client.send(m.Gone("a secret of the member"))
        served.handler.links[0].send(m.Close(CloseReason.FAILED, "a secret of the coordinator"))
        await until(lambda: m.Gone("a secret of the member") in served.handler.messages and len(it.calls.messages) == 2)
        # then the relay sees a Hello and an Answer, and after these nothing that it can decrypt
        kinds = [[opcode for opcode, _ in frames] for frames in it.relay.seen.values()]
        assert kinds == [[Opcode.TEXT, *3 * [Opcode.BINARY]], [Opcode.TEXT, *2 * [Opcode.BINARY]]]
        seen = b"".join(payload for frames in it.relay.seen.values() for _, payload in frames)
        for text in (KEY, KEY.hex().encode(), b"secret", b'type":"Join', MEMBER_POD.encode(), SERVER_POD.encode()):
            assert text not in seen
        # but it sees the length of each message, which has a tag of 16 bytes
        (*_, gone) = it.relay.seen[To.SIDECAR]
        assert len(gone[1]) - 16 == len(wire.encode(m.Gone("a secret of the member")))


@pytest.mark.attack("C1", "a relay that adds a message", before="it was heard as the other side's")
@pytest.mark.parametrize("opcode", [Opcode.TEXT, Opcode.BINARY], ids=["text", "binary"])
@pytest.mark.parametrize(("to", "message"), [(To.SIDECAR, GONE), (To.CALLER, CLOSE)], ids=["to-sidecar", "to-caller"])
async def test_a_message_that_a_relay_adds_ends_the_connection_and_is_ignored(
    served: ServedSidecar, to: To, message: object, opcode: Opcode
) -> None:
    async with joined(served) as it:
        it.relay.send(to, opcode, wire.encode(message).encode())
        await it.until_ended()
        it.assert_nothing_was_believed()


@pytest.mark.attack("C1", "a relay that adds a message before the session", before="it was heard as the other side's")
async def test_a_message_that_a_relay_adds_after_the_answer_is_ignored(served: ServedSidecar) -> None:
    async with relayed(at(served)) as relay:

        def add(to: To, each: Frame) -> list[Frame]:
            added = [(int(Opcode.TEXT), wire.encode(CLOSE).encode())] if to is To.CALLER else []
            return [each, *added]

        relay.pass_on = add
        async with dialing(relay.address) as calls:
            await until(lambda: calls.downs)
            assert calls.messages == []


def changed(sealed: bytes) -> bytes:
    return sealed[:-1] + bytes([sealed[-1] ^ 1])


#: Frames that a relay sends instead of two messages, one test each.
Arrange = Callable[[bytes, bytes], list[bytes]]
ARRANGED: dict[str, tuple[Arrange, list[int]]] = {
    "changed": (lambda first, second: [changed(first), second], []),
    "repeated": (lambda first, second: [first, first, second], [1]),
    "reordered": (lambda first, second: [second, first], []),
    "left-out": (lambda first, second: [second], []),
    "cut": (lambda first, second: [first[:-1], second], []),
    "joined": (lambda first, second: [first + second], []),
}


@pytest.mark.attack("C1", "a relay that changes, repeats, reorders or drops messages", before="none was noticed")
@pytest.mark.parametrize(("arrange", "before_it"), ARRANGED.values(), ids=ARRANGED)
@pytest.mark.parametrize("to", To)
async def test_messages_that_a_relay_rearranges_end_the_connection_and_are_ignored(
    served: ServedSidecar, to: To, arrange: Arrange, before_it: list[int]
) -> None:
    async with joined(served) as it:
        # given a relay that waits for two messages in one direction
        waiting: list[bytes] = []

        def pass_on(direction: To, each: Frame) -> list[Frame]:
            if direction is not to or each[0] != Opcode.BINARY:
                return [each]
            waiting.append(each[1])
            return [(Opcode.BINARY, x) for x in arrange(*waiting)] if len(waiting) == 2 else []

        it.relay.pass_on = pass_on
        # when it forwards them in another way
        it.send(to, 1)
        it.send(to, 2)
        await it.until_ended()
        # then the connection ends at the first frame that is not the next message
        assert it.received(to) == before_it
        it.assert_nothing_was_believed()


@pytest.mark.attack("C1", "a relay that sends a side its own message back", before="it was heard as the other side's")
@pytest.mark.parametrize("to", To)
async def test_a_message_that_a_relay_sends_back_ends_the_connection_and_is_ignored(
    served: ServedSidecar, to: To
) -> None:
    async with joined(served) as it:
        it.relay.pass_on = lambda *_: []
        before = len(it.relay.seen[to])
        it.send(to, 1)
        await until(lambda: len(it.relay.seen[to]) > before)
        it.relay.send(to.back, *it.relay.seen[to][-1])
        await it.until_ended()
        assert (it.received(To.SIDECAR), it.received(To.CALLER)) == ([], [])
        it.assert_nothing_was_believed()


@pytest.mark.attack("C1", "a relay at the address of another pod", before="the coordinator took it for the member")
async def test_a_relay_at_the_address_of_another_pod_is_refused(
    served: ServedSidecar, caplog: pytest.LogCaptureFixture
) -> None:
    # given a relay at an address that a pod of the job has left, and that a member calls
    async with relayed(at(served), host="127.0.0.2") as relay, dialing(relay.address) as calls:
        # when the relay forwards the handshake to the coordinator, at another address
        await until(lambda: warnings(caplog))
        # then the coordinator refuses the handshake
        assert warnings(caplog) == ["127.0.0.1 was rejected: it called address '127.0.0.2', which is not this pod's"]
        assert calls.ups == []
    assert served.handler.links == []


async def test_a_relay_at_the_address_of_a_service_chooses_the_pod_that_answers(served: ServedSidecar) -> None:
    # given a relay at an address that a member calls as a Service
    async with (
        relayed(at(served), host="127.0.0.2") as relay,
        dialing(relay.address._replace(is_pod=False)) as calls,
    ):
        # when the relay forwards the call to a coordinator of its choice
        await until(lambda: calls.ups and served.handler.links)
        # then the coordinator accepts it
        assert (len(calls.ups), len(served.handler.links)) == (1, 1)


class Holder:
    """An attacker between two members that knows the key. It ends both sessions, and changes messages."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self.read: list[object] = []

    async def serve(self, link: web.WebSocketResponse) -> None:
        as_sidecar = HandshakeCalled(KEY, Role.MEMBER, JOB, SERVER_POD, "127.0.0.1")
        from_member = await seal(link, as_sidecar, await receive_hello(link))
        async with aiohttp.ClientSession() as http, http.ws_connect(self._url) as to_coordinator:
            forged = await begin(to_coordinator, caller(called="127.0.0.1"))
            assert forged is not None
            while text := await from_member.receive():
                message = wire.decode(text, KNOWN)
                self.read.append(message)
                await forged.send(m.Port(666) if isinstance(message, m.Port) else message)

    @property
    def _url(self) -> str:
        return f"http://{self._address.host}:{self._address.port}{MEMBERSHIP_PATH}"


async def test_a_relay_that_knows_the_key_reads_and_changes_messages_of_two_members(served: ServedSidecar) -> None:
    """A limit that docs/explanation/security.md states."""
    holder = Holder(at(served))
    async with answering(holder.serve) as address, dialing(address) as calls:
        # when a member sends a message
        await until(lambda: calls.ups)
        calls.client.send(m.Port(1))
        # then the attacker has read it, and the coordinator receives another one
        await until(lambda: m.Port(666) in served.handler.messages)
        assert [type(x) for x in holder.read] == [m.Join, m.Port]
        assert [type(x) for x in served.handler.messages] == [m.Join, m.Port]


@pytest.mark.attack("C1", "sends a recorded session again", before="refused, too")
async def test_a_recorded_session_opens_no_session(served: ServedSidecar) -> None:
    # given all bytes that a member has sent in its session
    async with joined(served) as it:
        it.send(To.SIDECAR, 1)
        await until(lambda: it.received(To.SIDECAR) == [1])
        recorded = it.relay.received[To.SIDECAR]
    await until(lambda: served.handler.dropped_links)
    # when another caller sends them again
    with served.dialed() as sock:
        sock.sendall(recorded)
        answered = await ended(sock)
    # then the sidecar answers the Hello, and refuses the rest
    assert answered.startswith(b"HTTP/1.1 101 ")
    assert b"it does not know the job's key" in answered
    assert len(served.handler.links) == 1
    assert [type(x) for x in served.handler.messages] == [m.Join, m.Port]


async def test_recorded_answers_do_not_deceive_a_member(
    served: ServedSidecar, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    # given all frames that a coordinator has sent in a session
    async with joined(served) as it:
        recorded = list(it.relay.seen[To.CALLER])
    async with relayed(at(served)) as relay:
        # when a member calls, and gets the same frames
        relay.pass_on = lambda to, each: [each] if to is To.SIDECAR else recorded
        async with dialing(relay.address) as calls:
            # then it refuses the first one
            await until(lambda: any("does not know the job's key" in text for text in caplog.messages))
            assert (calls.ups, calls.messages) == ([], [])


@pytest.mark.attack(
    "C4",
    "a trainer that writes to the socket of its sidecar, which its launcher holds",
    before="it was heard as a member",
)
@pytest.mark.parametrize("opcode", [Opcode.TEXT, Opcode.BINARY], ids=["text", "binary"])
async def test_bytes_that_a_trainer_writes_to_its_sidecars_socket_end_the_connection(
    served: ServedSidecar, opcode: Opcode
) -> None:
    async with dialing(at(served)) as calls:
        await until(lambda: calls.messages == [WELCOME])
        # given the duplicate of the member's socket in its launcher
        with socket.socket(fileno=os.dup(calls.sockets[0] or 0)) as duplicate:
            # when the trainer writes a message there
            duplicate.send(frame(opcode, wire.encode(GONE).encode(), masked=True))
            # then the coordinator hangs up, and has not received the message
            await until(lambda: calls.downs and served.handler.dropped_links)
        assert [type(x) for x in served.handler.messages] == [m.Join]


@pytest.mark.attack("C1", "a relay that keeps a dead peer alive by PINGs and PONGs", before="PINGs were answered")
@pytest.mark.parametrize("to", To)
async def test_pings_and_pongs_are_neither_reported_nor_answered(served: ServedSidecar, to: To) -> None:
    async with joined(served) as it:
        # given a relay that forwards nothing, as if one side had stopped
        it.relay.pass_on = lambda *_: []
        before = (list(served.handler.messages), list(it.calls.messages), len(it.relay.seen[to.back]))
        # when it sends control frames as if from that side
        for _ in range(100):
            it.relay.send(to, Opcode.PING, b"there?")
            it.relay.send(to, Opcode.PONG, b"there?")
        it.relay.send(to, Opcode.CLOSE, b"")
        await it.until_ended()
        # then neither side received a message, and only the close frame was answered
        assert (served.handler.messages, it.calls.messages) == before[:2]
        assert [opcode for opcode, _ in it.relay.seen[to.back][before[2] :]] == [Opcode.CLOSE]

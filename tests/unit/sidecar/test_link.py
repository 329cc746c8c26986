"""One connection: the order of messages, its timeouts, encryption, and that the peer learns of its end."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.unit.sidecar.recording_handler import until
from understudy_protocol import wire
from understudy_protocol.frames import CloseCode, Opcode, ProtocolError, close_frame, frame
from understudy_protocol.membership import Port
from understudy_protocol.sessions import Session, SharedKeyCalled, SharedKeyCaller
from understudy_sidecar import link as link_module
from understudy_sidecar.link import Link

UNSENT_BYTES = 1 << 20

HEAD = b"HEAD\r\n\r\n"


class Recorder(Link):
    """A server's link that records the messages of its peer, and sends each number back."""

    def __init__(self) -> None:
        super().__init__(1, masks=False)
        self.heads: list[bytes] = []
        self.texts: list[bytes] = []
        self.wrongs: list[str] = []
        self.ends: list[bool] = []

    def on_head(self, head: bytes) -> None:
        self.heads.append(head)
        self.peer_proved(1 << 16)

    def on_text(self, text: bytes) -> None:
        self.texts.append(text)
        if text.isdigit():
            self.send_encoded(text)
        elif text == b"hang up":
            self.hangup()

    def on_protocol_error(self, error: ProtocolError | wire.WireError) -> None:
        self.wrongs.append(str(error))

    def on_ended(self, silent: bool) -> None:
        self.ends.append(silent)


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Recorder, socket.socket]]:
    """A link, and the bare socket of its peer, which has sent its head."""
    link = Recorder()
    server = await asyncio.get_running_loop().create_server(lambda: link, "127.0.0.1", 0)
    peer = socket.create_connection(server.sockets[0].getsockname())
    peer.setblocking(False)
    peer.sendall(HEAD)
    await until(lambda: link.heads)
    try:
        yield link, peer
    finally:
        peer.close()
        link.cut()
        server.close()
        await asyncio.sleep(0)


async def all_of(peer: socket.socket, limit_s: float = 5.0) -> bytes:
    """Everything up to the end of the connection."""
    loop, received = asyncio.get_running_loop(), bytearray()
    async with asyncio.timeout(limit_s):
        while data := await loop.sock_recv(peer, 1 << 20):
            received += data
    return bytes(received)


def masked(text: bytes) -> bytes:
    return frame(Opcode.TEXT, text, masked=True)


def with_session(link: Link) -> Session:
    """Gives the link a session; returns its peer's."""
    caller, called = SharedKeyCaller(bytes(32), b""), SharedKeyCalled(bytes(32), b"")
    answer, session = called.read(caller.opening(b"")).answer(b"")
    link.seal_with(session)
    return caller.finish(answer)[1]


def sealed(session: Session, text: bytes) -> bytes:
    return frame(Opcode.BINARY, session.seal(text), masked=True)


GOODBYE = close_frame(CloseCode.NORMAL, "", masked=False)
UNREADABLE = "a message cannot be opened with the session's key"


async def test_messages_before_a_hangup_are_sent_and_none_after_it() -> None:
    async with connected() as (link, peer):
        link.send(Port(1))
        link.send_encoded(b"x" * (3 << 20))
        link.hangup()
        link.send(Port(2))
        port = frame(Opcode.TEXT, wire.encode(Port(1)).encode(), masked=False)
        assert await all_of(peer) == port + frame(Opcode.TEXT, b"x" * (3 << 20), masked=False) + GOODBYE


async def test_messages_after_a_hangup_are_ignored() -> None:
    async with connected() as (link, peer):
        link.hangup()
        peer.sendall(masked(b"late"))
        await all_of(peer)
        peer.close()
        await until(lambda: link.ends)
        assert link.texts == []


async def test_messages_that_arrived_with_the_cause_of_a_hangup_are_ignored() -> None:
    async with connected() as (link, peer):
        peer.sendall(masked(b"hang up") + masked(b"late"))
        assert await all_of(peer) == GOODBYE
        assert link.texts == [b"hang up"]


async def test_answers_to_messages_that_arrive_together_are_sent_together_and_in_order() -> None:
    async with connected() as (link, peer):
        peer.sendall(b"".join(masked(str(number).encode()) for number in range(100)))
        await until(lambda: link.unsent() == 0)
        received = b""
        while len(received) < 390:
            received += await asyncio.get_running_loop().sock_recv(peer, 1000)
        assert received == b"".join(frame(Opcode.TEXT, str(n).encode(), masked=False) for n in range(100))


async def test_a_peer_that_does_not_end_its_side_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "HANGUP_S", 0.1)
    async with connected() as (link, _peer):
        link.hangup()
        assert not link.has_ended()
        await until(lambda: link.ends)
        assert link.has_ended()


async def test_a_hangup_reaches_the_peer_though_another_process_has_the_socket() -> None:
    """The launcher has it. A close alone would send no FIN."""
    async with connected() as (link, peer):
        transport = link._transport
        assert transport is not None
        duplicate = os.dup(transport.get_extra_info("socket").fileno())
        try:
            link.hangup()
            assert await all_of(peer) == GOODBYE
        finally:
            os.close(duplicate)


async def test_flushed_waits_until_all_is_read() -> None:
    async with connected() as (link, peer):
        link.send_encoded(b"x" * (3 << 20))
        flushed = asyncio.create_task(link.flushed(5.0))
        for _ in range(16):  # some bytes
            assert await asyncio.get_running_loop().sock_recv(peer, 1 << 16)
        assert not flushed.done()
        await all_of(peer)
        peer.close()
        await flushed
        assert link.has_ended()
        await link.flushed(5.0)  # returns at once for a connection that has ended


async def test_flushed_waits_no_longer_than_its_limit() -> None:
    async with connected() as (link, _peer):
        link.send_encoded(b"x" * (16 << 20))
        async with asyncio.timeout(30):
            await link.flushed(0.1)
        assert not link.has_ended()


async def test_one_long_message_does_not_disconnect_the_peer_and_as_much_again_does() -> None:
    """Only unsent bytes count: the leader snapshot of a standby coordinator may be longer than the limit."""
    async with connected() as (link, peer):
        link.send_encoded(b"x" * (16 << 20))
        assert await asyncio.get_running_loop().sock_recv(peer, 1000)  # the message is being written
        assert link.unsent() > UNSENT_BYTES
        link.send_encoded(b"x" * (16 << 20))
        assert link.ends == []
        link.send(Port(1))
        await until(lambda: link.ends)
        assert link.unsent() == 0
        link.send(Port(2))  # sends nothing on a connection that has ended


async def test_a_message_may_follow_at_once_on_one_that_is_longer_than_the_limit() -> None:
    async with connected() as (link, peer):
        # given a socket whose kernel takes as little at once as that of a new connection to another machine
        link.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        reading = asyncio.create_task(all_of(peer))
        # when a leader snapshot of 10,000 members is sent, and a short message with it
        link.send_encoded(b"x" * 2_400_000)
        assert link.unsent() > UNSENT_BYTES
        link.send(Port(1))
        link.hangup()
        # then the peer gets both
        port = frame(Opcode.TEXT, wire.encode(Port(1)).encode(), masked=False)
        assert (await reading).endswith(b"x" + port + GOODBYE)


async def test_a_reader_that_keeps_up_stays_connected() -> None:
    async with connected() as (link, peer):
        reading = asyncio.create_task(all_of(peer))
        for _ in range(300):
            link.send_encoded(b"x" * 60_000)
            await until(lambda: link.unsent() < UNSENT_BYTES)
        link.hangup()
        assert len(await reading) > 300 * 60_000


@pytest.mark.parametrize("size", [1, 7, 100_000], ids=["bytes", "pieces", "whole"])
async def test_messages_are_whole_and_in_order_in_whatever_pieces_they_arrive(size: int) -> None:
    sent = [str(number).encode() * number for number in range(1, 40)]
    stream = b"".join(masked(text) for text in sent)
    async with connected() as (link, peer):
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(stream), size):
            await asyncio.get_running_loop().sock_sendall(peer, stream[start : start + size])
        await until(lambda: len(link.texts) == len(sent))
        assert link.texts == sent


async def test_pings_and_pongs_are_ignored() -> None:
    async with connected() as (link, peer):
        peer.sendall(frame(Opcode.PONG, b"unasked", masked=True) + frame(Opcode.PING, b"there?", masked=True))
        peer.sendall(masked(b"1"))
        assert await asyncio.get_running_loop().sock_recv(peer, 100) == frame(Opcode.TEXT, b"1", masked=False)
        assert link.texts == [b"1"]
        assert link.ends == []


async def test_messages_are_encrypted_both_ways_once_there_is_a_session() -> None:
    async with connected() as (link, peer):
        peers = with_session(link)
        peer.sendall(sealed(peers, b"in") + sealed(peers, b""))
        await until(lambda: link.texts == [b"in", b""])
        link.send_encoded(b"out")
        link.send_encoded(b"and again")
        link.hangup()
        received = await all_of(peer)
        assert peers.open(received[2:21]) == b"out"
        assert peers.open(received[23:48]) == b"and again"
        assert received[48:] == GOODBYE, "a close frame is not encrypted"


@pytest.mark.parametrize("size", [1, 7, 100_000], ids=["bytes", "pieces", "whole"])
async def test_encrypted_messages_are_whole_and_in_order_in_whatever_pieces_they_arrive(size: int) -> None:
    sent = [str(number).encode() * number for number in range(1, 40)]
    async with connected() as (link, peer):
        peers = with_session(link)
        stream = b"".join(sealed(peers, text) for text in sent)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(stream), size):
            await asyncio.get_running_loop().sock_sendall(peer, stream[start : start + size])
        await until(lambda: len(link.texts) == len(sent))
        assert link.texts == sent


@pytest.mark.parametrize(
    ("not_of_the_session", "wrong"),
    [
        (masked(b"not encrypted"), "expected a binary frame, got a text one"),
        (frame(Opcode.BINARY, b"not encrypted either", masked=True), UNREADABLE),
        (frame(Opcode.BINARY, b"", masked=True), UNREADABLE),
    ],
    ids=["text", "binary", "empty"],
)
async def test_a_message_that_is_not_encrypted_ends_a_connection_with_a_session(
    not_of_the_session: bytes, wrong: str
) -> None:
    async with connected() as (link, peer):
        peers = with_session(link)
        peer.sendall(sealed(peers, b"good") + not_of_the_session + sealed(peers, b"never heard"))
        await all_of(peer)
        assert link.wrongs == [wrong]
        assert link.texts == [b"good"]


async def test_a_close_frame_is_answered_with_one() -> None:
    async with connected() as (link, peer):
        peer.sendall(close_frame(CloseCode.NORMAL, "bye", masked=True))
        assert await all_of(peer) == GOODBYE
        peer.close()
        await until(lambda: link.ends == [False])


async def test_an_error_is_sent_to_the_peer_and_logged_once() -> None:
    async with connected() as (link, peer):
        peer.sendall(masked(b"good") + frame(Opcode.BINARY, b"bad", masked=True) + masked(b"never heard"))
        assert b"expected a text frame" in await all_of(peer)
        assert link.wrongs == ["expected a text frame, got a binary one"]
        assert link.texts == [b"good"]


async def test_a_close_frame_has_no_reason_if_an_encrypted_message_cannot_be_decoded() -> None:
    async with connected() as (link, peer):
        # given a session in which the peer sends invalid JSON
        link.on_text = lambda text: wire.decode(text, {})  # type: ignore[method-assign]
        peer.sendall(sealed(with_session(link), b"a secret"))
        # then the close frame, which is not encrypted, has no reason
        assert await all_of(peer) == close_frame(CloseCode.POLICY, "", masked=False)
        assert ["a secret" in wrong for wrong in link.wrongs] == [True]


async def test_an_end_is_reported_once() -> None:
    async with connected() as (link, peer):
        link.hangup()
        link.hangup()
        peer.close()
        await until(lambda: link.ends)
        link.cut()
        link.hangup()
        assert link.ends == [False]

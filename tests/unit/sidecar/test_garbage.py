"""Bytes that no well-behaved caller sends, with and without the key, end the caller's connection and are logged once.

During each attack a healthy member is connected, and the server has to answer it before, after and (if the attack takes
long) meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from pathlib import Path

import pytest

from tests.unit.sidecar.recording_handler import (
    HEAD,
    HELLO,
    JOB,
    HealthyMember,
    ServedSidecar,
    closed_by_server,
    ended,
    text_frame,
    until,
    warnings,
)
from understudy_protocol import membership as m
from understudy_protocol import wire
from understudy_protocol.enums import CloseReason
from understudy_protocol.frames import Opcode, frame
from understudy_protocol.handshake import Hello, Role
from understudy_sidecar import link as link_module

TAG_BYTES = 16
UNSENT_BYTES = 1 << 20
MEMBER_BYTES = 64 * 1024

MEBIBYTE = 1 << 20
pytestmark = pytest.mark.usefixtures("healthy")


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


# Bytes that are no WebSocket


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (HEAD.replace(b"/v1/membership", b"/"), b"404"),
        (HEAD.replace(b"GET", b"POST"), b"405"),
        (HEAD.replace(b"Upgrade: websocket", b"Upgrade: h2c"), b"426"),
        (HEAD.replace(b"Version: 13", b"Version: 8"), b"426"),
        (HEAD.replace(b"HTTP/1.1", b"HTTP/1.0"), b"400"),
        (b"GET /v1/membership HTTP/1.1\r\nHost: x\r\n\r\n", b"426"),
        (HEAD.replace(b"Key: ", b"Key: !"), b"400"),
        (os.urandom(64).replace(b"\r\n", b"..") + b"\r\n\r\n", b"400"),
    ],
    ids=["path", "method", "protocol", "version", "http", "no-upgrade", "key", "garbage"],
)
async def test_another_request_is_answered_in_http(served: ServedSidecar, head: bytes, status: bytes) -> None:
    with served.dialed() as sock:
        sock.sendall(head)
        assert (await ended(sock)).startswith(b"HTTP/1.1 " + status + b" ")


async def test_a_head_without_an_end_is_not_kept(served: ServedSidecar) -> None:
    with served.dialed() as sock:
        sock.sendall(b"GET /v1/membership HTTP/1.1\r\nX: " + b"x" * 1024)
        await ended(sock)
    await until(lambda: len(served.server.callers) == 1)


# Too long


async def test_a_frame_of_100_megabytes_is_refused_by_its_header(served: ServedSidecar) -> None:
    claim = b"\x82\xff" + (100_000_000).to_bytes(8, "big") + b"mask"
    async with served.member() as link:
        link.transport.write(claim)
        assert await closed_by_server(link)  # before any byte of the body was sent
    await until(lambda: served.handler.dropped_links)


async def test_a_hundred_megabytes_that_are_sent_nevertheless_are_not_kept(
    served: ServedSidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "HANGUP_S", 0.5)
    loop = asyncio.get_running_loop()
    before = resident_bytes()
    body = bytes(MEBIBYTE)
    with served.dialed() as sock:
        with contextlib.suppress(ConnectionError):
            await loop.sock_sendall(sock, HEAD + b"\x81\xff" + (100_000_000).to_bytes(8, "big") + b"mask")
            for _ in range(95):
                await loop.sock_sendall(sock, body)
        await until(lambda: len(served.server.callers) == 1)
    assert resident_bytes() - before < 8 * MEBIBYTE


def unfinished(whole: bytes) -> bytes:
    """The frame of a message that continues."""
    return bytes([whole[0] & 0x7F]) + whole[1:]


async def test_before_the_proof_a_message_is_short(served: ServedSidecar) -> None:
    async with served.upgraded() as link:
        await link.send_str(wire.encode(Hello(Role.MEMBER, JOB, "A" * 1024)))
        assert await closed_by_server(link)


# Garbage, with and without the key

FRAMES = {
    "not-json": b"no json",
    "not-utf-8": b"\xff\xfe",
    "no-object": b"[]",
    "no-type": b"{}",
    "deep": b"[" * 1000,
    "deep-in-a-field": b'{"type":"Port","master_port":' + b"[" * 400 + b"]" * 400 + b"}",
    "field-missing": b'{"type":"Ack"}',
    "field-wrong": b'{"type":"Port","master_port":"x"}',
    "half-a-character": b'{"type":"Gone","reason":"\\ud800"}',
    "half-a-character-in-a-hello": b'{"type":"Hello","role":"member","job_uid":"job-uid","noise":"\\ud800"}',
    "no-base64-in-a-hello": b'{"type":"Hello","role":"member","job_uid":"job-uid","noise":"\xc3\xa9"}',
    "no-handshake-in-a-hello": b'{"type":"Hello","role":"member","job_uid":"job-uid","noise":"AAAA"}',
    "infinite": b'{"type":"Leaving","reason":"","grace_s":1e999}',
    "huge": b'{"type":"Leaving","reason":"","grace_s":1' + b"0" * 400 + b"}",
}
BYTES = {
    "binary": frame(Opcode.BINARY, b"x", masked=True),
    "empty-binary": frame(Opcode.BINARY, b"", masked=True),
    "well-made-message": text_frame(m.Port(1)),
    "not-masked": frame(Opcode.TEXT, b"{}", masked=False),
    "reserved-bits": bytes([0xF1]) + text_frame(m.Port(1))[1:],
    "unknown-opcode": frame(3, b"", masked=True),
    "unknown-control": frame(11, b"", masked=True),
    "long-ping": frame(Opcode.PING, b"x" * 126, masked=True),
    "ping-in-fragments": unfinished(frame(Opcode.PING, b"", masked=True)),
    "empty-fragment": unfinished(frame(Opcode.TEXT, b"", masked=True)),
    "goes-on-without-a-start": frame(0, b"", masked=True),
    "starts-twice": unfinished(frame(Opcode.TEXT, b"{", masked=True)) * 2,
    "no-frames": b"\x9b" * 300,
    **{name: frame(Opcode.TEXT, text, masked=True) for name, text in FRAMES.items()},
}


@pytest.mark.parametrize("begun", [HEAD, HEAD + HELLO], ids=["after-the-head", "after-a-recorded-hello"])
@pytest.mark.parametrize("sent", BYTES.values(), ids=BYTES)
async def test_garbage_of_a_stranger_ends_its_connection(
    served: ServedSidecar, sent: bytes, begun: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        with served.dialed() as sock:
            sock.sendall(begun + sent)
            assert (await ended(sock)).startswith(b"HTTP/1.1 101 ")
    assert len(warnings(caplog)) == 1
    assert len(served.handler.links) == 1


OF_A_MEMBER = {
    name: text for name, text in FRAMES.items() if not name.endswith("-in-a-hello")
}  # no message of a member


@pytest.mark.attack("D1", "a member that sends garbage", before="refused, too")
@pytest.mark.parametrize("text", OF_A_MEMBER.values(), ids=OF_A_MEMBER)
async def test_garbage_of_a_member_ends_its_connection(
    served: ServedSidecar, text: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with served.member() as link:
        before = list(served.handler.messages)
        link.transport.write(link.sealed_frame(text))
        assert await closed_by_server(link)
        await until(lambda: served.handler.dropped_links)
    assert served.handler.messages == before
    assert served.handler.dropped_links == [False]
    assert len(warnings(caplog)) == 1


@pytest.mark.parametrize("sent", BYTES.values(), ids=BYTES)
async def test_bytes_of_a_member_that_are_no_message_of_its_session_end_its_connection(
    served: ServedSidecar, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with served.member() as link:
        before = list(served.handler.messages)
        link.transport.write(sent)
        assert await closed_by_server(link)
        await until(lambda: served.handler.dropped_links)
    assert served.handler.messages == before
    assert served.handler.dropped_links == [False]
    assert len(warnings(caplog)) == 1


async def test_noise_ends_its_connection(served: ServedSidecar) -> None:
    for _ in range(50):
        with served.dialed() as sock:
            sock.sendall(HEAD + os.urandom(200) + b"\x00" * 4096)
            await ended(sock)
    assert len(served.handler.links) == 1


async def test_a_member_may_send_up_to_its_limit_and_not_a_byte_more(served: ServedSidecar) -> None:
    empty = wire.encode(m.Gone(""))
    async with served.member() as link:
        await link.send(m.Gone("x" * (MEMBER_BYTES - TAG_BYTES - len(empty) + 1)))
        assert await closed_by_server(link)


# A slow reader


@pytest.mark.attack("D1", "a member that does not read", before="refused, too")
async def test_a_member_that_does_not_read_is_disconnected_and_delays_no_other(
    served: ServedSidecar, healthy: HealthyMember, caplog: pytest.LogCaptureFixture
) -> None:
    async with served.calling() as slow:
        slow.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.transport.pause_reading()
        await until(lambda: len(served.handler.links) == 2)
        link = served.handler.links[1]
        text = wire.encode(m.Close(CloseReason.FAILED, "x" * 60_000)).encode()
        sent = 0
        while not served.handler.dropped_links:
            link.send_encoded(text)
            sent += len(text)
            if sent % (10 * len(text)) == 0:
                await healthy.assert_served()
            await asyncio.sleep(0)
            assert link.unsent() <= UNSENT_BYTES + 2 * len(text)  # besides the longest message, and with the newest one
            assert sent < 64 * MEBIBYTE
        slow.transport.resume_reading()
    assert served.handler.dropped_links == [False]
    assert [text.split(":")[0] for text in warnings(caplog)] == ["127.0.0.1 reads too slowly"]

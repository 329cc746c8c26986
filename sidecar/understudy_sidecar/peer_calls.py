"""Calls another sidecar of the job about copies, with blocking sockets: the handshake, one message, and its answer."""

import socket
import time

from understudy_protocol import copies, handshake, pod, wire
from understudy_protocol.addresses import split_port
from understudy_protocol.frames import Frames, Opcode, ProtocolError, frame
from understudy_protocol.handshake import Call, HandshakeCaller, NotProven, Role
from understudy_protocol.sessions import NotAuthentic
from understudy_protocol.upgrade import check_answer, request, take_head
from understudy_sidecar.tcp import watch_peer

CONNECT_S = 2.0
#: For all answers until the call is accepted: an address may belong to another pod by now, which sends byte by byte.
ANSWER_S = 10.0
#: A connection without any progress for this time is broken.
STALL_S = 10.0
_ANSWER_BYTES = 4096
_HANDSHAKE = wire.message_types(handshake)
_COPIES = wire.message_types(copies)


class CallFailed(Exception):
    """The other sidecar does not answer, or rejects the call. The text has the reason."""


def call(
    address: str, key: bytes, job_uid: str, pod_uid: str, message: copies.SendCopies | copies.RequestCopy
) -> socket.socket:
    """The connection after the answer: records follow. pod_uid: of this pod. Raises CallFailed."""
    host, port = split_port(address)
    try:
        connection = socket.create_connection((host, port), CONNECT_S)
    except OSError as error:
        raise CallFailed(f"{address}: {error}") from error
    try:
        connection.settimeout(ANSWER_S)
        watch_peer(connection)
        caller = HandshakeCaller(key, Role.PEER, job_uid, Call(pod_uid, address))
        _exchange(connection, host, port, caller, message, time.monotonic() + ANSWER_S)
        connection.settimeout(STALL_S)
    except (OSError, ProtocolError, NotProven, NotAuthentic, wire.WireError, CallFailed) as error:
        connection.close()
        raise CallFailed(f"{address}: {error}") from error
    return connection


def _exchange(
    connection: socket.socket,
    host: str,
    port: int,
    caller: HandshakeCaller,
    message: copies.SendCopies | copies.RequestCopy,
    until: float,
) -> None:
    """until: by time.monotonic()."""
    head, token = request(host, port, pod.MEMBERSHIP_PATH)
    hello = frame(Opcode.TEXT, wire.encode(caller.hello).encode(), masked=True)
    connection.sendall(head)
    received = bytearray()
    while (answer := take_head(received)) is None:
        received += _some(connection, _ANSWER_BYTES, until)
    check_answer(answer, token)
    connection.sendall(hello)
    frames = Frames(received, masked=False, limit=_ANSWER_BYTES)
    _, session = caller.finish(wire.decode(_next(connection, frames, received, until), _HANDSHAKE))
    frames.message = Opcode.BINARY
    for text in (b"", wire.encode(message).encode()):
        connection.sendall(frame(Opcode.BINARY, session.seal(text), masked=True))
    result = wire.decode(session.open(_next(connection, frames, received, until)), _COPIES)
    if not isinstance(result, copies.PeerAnswer):
        raise CallFailed("expected a PeerAnswer")
    if result.error:
        raise CallFailed(f"rejected: {result.error[:_ANSWER_BYTES]}")


def _next(connection: socket.socket, frames: Frames, received: bytearray, until: float) -> bytes:
    """The next message, without a byte of what follows it."""
    while (taken := frames.take()) is None:
        received += _some(connection, max(1, frames.announced - len(received)), until)
    opcode, payload = taken
    if opcode != frames.message:
        raise CallFailed("it closed the connection")
    return payload


def _some(connection: socket.socket, most: int, until: float) -> bytes:
    left_s = until - time.monotonic()
    if left_s <= 0:
        raise CallFailed(f"it has not answered within {ANSWER_S:g} s")
    connection.settimeout(left_s)
    data = connection.recv(most)
    if not data:
        raise CallFailed("it closed the connection")
    return data

"""The two HTTP heads that open a WebSocket (RFC 6455), without I/O. frames.py has the frames after them.

Rules: the reader limits the bytes of a head, and stores no more bytes of a head that is longer. No extension and no
subprotocol.
"""

import base64
import binascii
import hashlib
import os
from typing import Optional

from understudy_protocol.frames import ProtocolError

HEAD_BYTES = 4096
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class NotUpgraded(ProtocolError):
    """A head that does not request a WebSocket of this server. `answer` is the HTTP response."""

    def __init__(self, reason: str, status: str = "400 Bad Request") -> None:
        super().__init__(reason)
        self.answer = f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".encode()


def take_head(received: bytearray, limit_bytes: int = HEAD_BYTES) -> Optional[bytes]:
    """Take a complete head off `received`; None while it is incomplete. Raises ProtocolError if it is too long."""
    end = received.find(b"\r\n\r\n", 0, limit_bytes)
    if end < 0:
        if len(received) >= limit_bytes:
            raise ProtocolError(f"expected a head of at most {limit_bytes} bytes")
        return None
    head = bytes(received[:end])
    del received[: end + 4]
    return head


def request(host: str, port: int, path: str) -> tuple[bytes, bytes]:
    """The head that requests a WebSocket, and the token that the answer's head must have."""
    key = base64.b64encode(os.urandom(16))
    name = f"[{host}]" if ":" in host else host
    head = (
        f"GET {path} HTTP/1.1\r\nHost: {name}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key.decode()}\r\n\r\n"
    )
    return head.encode(), _token(key)


def accept(head: bytes, path: str) -> bytes:
    """The head that answers a request for a WebSocket on `path`. Raises NotUpgraded if it is no such request."""
    line, headers = _parse(head)
    method, _, rest = line.partition(b" ")
    target = rest.partition(b" ")[0].partition(b"?")[0]
    if not rest.endswith(b" HTTP/1.1"):
        raise NotUpgraded(f"expected an HTTP/1.1 request, got {line[:80]!r}")
    if target != path.encode():
        raise NotUpgraded(f"expected path {path}, got {target[:80]!r}", "404 Not Found")
    if method != b"GET":
        raise NotUpgraded(f"expected a GET, got {method[:80]!r}", "405 Method Not Allowed\r\nAllow: GET")
    asks = headers.get(b"upgrade", b"").lower() == b"websocket"
    if not asks or b"upgrade" not in headers.get(b"connection", b"").lower():
        raise NotUpgraded("expected a request for a WebSocket upgrade", "426 Upgrade Required\r\nUpgrade: websocket")
    if headers.get(b"sec-websocket-version") != b"13":
        raise NotUpgraded("expected WebSocket version 13", "426 Upgrade Required\r\nSec-WebSocket-Version: 13")
    key = headers.get(b"sec-websocket-key", b"")
    if not _is_key(key):
        raise NotUpgraded(f"expected a Sec-WebSocket-Key of 16 bytes in base64, got {key[:80]!r}")
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: " + _token(key) + b"\r\n\r\n"
    )


def check_answer(head: bytes, token: bytes) -> None:
    """Raises ProtocolError if the head does not accept our request."""
    line, headers = _parse(head)
    if line.split(b" ")[1:2] != [b"101"]:
        raise ProtocolError(f"expected status 101, got {line[:80]!r}")
    if headers.get(b"sec-websocket-accept") != token:
        raise ProtocolError("expected the Sec-WebSocket-Accept of the request's key, got another value")
    if b"sec-websocket-extensions" in headers:
        raise ProtocolError("expected no WebSocket extension, got one")


def _parse(head: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    line, *fields = head.split(b"\r\n")
    pairs = (field.partition(b":") for field in fields)
    return line, {name.strip().lower(): value.strip() for name, _, value in pairs}


def _token(key: bytes) -> bytes:
    return base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest())


def _is_key(key: bytes) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == 16
    except binascii.Error:
        return False

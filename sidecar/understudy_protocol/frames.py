"""WebSocket frames (RFC 6455) from bytes and to bytes, without I/O. upgrade.py has the heads before them.

This is our own code for two reasons. A coordinator must limit the memory that an unproven caller can use. And with ten
thousand members it has a tenth of a millisecond for each: no task, no queue, no message stored beyond its limit.

Rules: only text messages, and only binary messages once a session has begun (noise.py); each in one frame; no
extension. A frame that is too long is rejected by the length in its header, before its body is stored. A frame that
breaks a rule raises `ProtocolError`, with the code of the close frame that answers it.
"""

import os
from enum import IntEnum
from typing import Optional

CONTROL_BYTES = 125
_FIN, _RESERVED, _OPCODE = 0x80, 0x70, 0x0F
_MASKED, _LENGTH = 0x80, 0x7F
_TWO_BYTES, _EIGHT_BYTES = 126, 127


class Opcode(IntEnum):
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


class CloseCode(IntEnum):
    NORMAL = 1000
    PROTOCOL_ERROR = 1002
    UNSUPPORTED = 1003
    POLICY = 1008
    TOO_BIG = 1009


class ProtocolError(Exception):
    """The peer broke the protocol. The text has the observed and the expected bytes."""

    def __init__(self, reason: str, code: CloseCode = CloseCode.PROTOCOL_ERROR) -> None:
        super().__init__(reason)
        self.code = code


class Frames:
    """Takes messages out of `received`, to which the caller appends bytes as they arrive.

    masked: whether the peer has to mask. limit: the most bytes that a message may have. message: the opcode of
    messages, TEXT or BINARY. The limit and the opcode may change between messages.
    """

    def __init__(self, received: bytearray, *, masked: bool, limit: int) -> None:
        self.limit = limit
        self.message = Opcode.TEXT
        self.announced = 0  # bytes of the frame that is being received, its header included; 0 before its header
        self._received = received
        self._mask_flag, self._mask_bytes = (_MASKED, 4) if masked else (0, 0)

    def take(self) -> Optional[tuple[int, bytes]]:
        """The next message, PING, PONG or CLOSE with its payload; None until more is received. Raises ProtocolError."""
        received = self._received
        if len(received) < 2:
            return None
        first, second = received[0], received[1]
        start, length = 2, second & _LENGTH
        if length >= _TWO_BYTES:
            start = 4 if length == _TWO_BYTES else 10
            if len(received) < start:
                return None
            length = int.from_bytes(received[2:start], "big")
        self._check(first, second, length)
        start += self._mask_bytes
        end = start + length
        if len(received) < end:
            self.announced = end
            return None
        self.announced = 0
        payload = bytes(received[start:end])
        if self._mask_bytes and payload:
            payload = _xor(payload, bytes(received[start - 4 : start]))
        del received[:end]
        return first & _OPCODE, payload

    def _check(self, first: int, second: int, length: int) -> None:
        """Check all rules that depend on the header alone."""
        opcode = first & _OPCODE
        if second & _MASKED != self._mask_flag:
            raise ProtocolError("expected a masked frame" if self._mask_flag else "expected a frame that is not masked")
        if first & _RESERVED:
            raise ProtocolError(f"expected no extension bits, got a frame that begins with {first:#04x}")
        if opcode >= Opcode.CLOSE:
            if opcode > Opcode.PONG or length > CONTROL_BYTES or not first & _FIN:
                raise ProtocolError(f"expected a control frame, got opcode {opcode} with {length} bytes")
        elif opcode in (Opcode.TEXT, Opcode.BINARY) and opcode != self.message:
            expected, got = self.message.name.lower(), Opcode(opcode).name.lower()
            raise ProtocolError(f"expected a {expected} frame, got a {got} one", CloseCode.UNSUPPORTED)
        elif opcode != self.message or not first & _FIN:
            raise ProtocolError(f"expected a message in one frame, got a frame that begins with {first:#04x}")
        elif length > self.limit:
            raise ProtocolError(
                f"expected at most {self.limit} bytes, got a message of {length} or more", CloseCode.TOO_BIG
            )


def frame(opcode: int, payload: bytes, *, masked: bool) -> bytes:
    """One complete frame; a caller masks it, a server does not."""
    length, flag = len(payload), _MASKED if masked else 0
    if length < _TWO_BYTES:
        header = bytes((_FIN | opcode, flag | length))
    elif length < 1 << 16:
        header = bytes((_FIN | opcode, flag | _TWO_BYTES)) + length.to_bytes(2, "big")
    else:
        header = bytes((_FIN | opcode, flag | _EIGHT_BYTES)) + length.to_bytes(8, "big")
    if not masked:
        return header + payload
    mask = os.urandom(4)
    return header + mask + _xor(payload, mask)


def close_frame(code: CloseCode, reason: str, *, masked: bool) -> bytes:
    text = reason.encode(errors="replace")[: CONTROL_BYTES - 2].decode(errors="ignore")  # not cut within a character
    return frame(Opcode.CLOSE, code.to_bytes(2, "big") + text.encode(), masked=masked)


def _xor(data: bytes, mask: bytes) -> bytes:
    length = len(data)
    key = (mask * (length // 4 + 1))[:length]
    return (int.from_bytes(data, "little") ^ int.from_bytes(key, "little")).to_bytes(length, "little")

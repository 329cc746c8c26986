"""Frames from bytes and to bytes, in any pieces, and frames that are rejected by their header alone.

test_strangers.py shows over real connections which other frames are rejected, and the effect on the connection.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_protocol.frames import CloseCode, Frames, Opcode, ProtocolError, close_frame, frame

LIMIT = 70_000
SIZES = st.integers(0, 300) | st.sampled_from([125, 126, 65_535, 65_536, LIMIT])
MESSAGES = st.tuples(st.just(Opcode.TEXT), SIZES.map(lambda size: b"x" * size)) | st.tuples(
    st.sampled_from([Opcode.PING, Opcode.PONG, Opcode.CLOSE]), st.binary(max_size=125)
)


def taken(stream: bytes, pieces: int, *, masked: bool, limit: int = LIMIT) -> list[tuple[int, bytes]]:
    received = bytearray()
    frames = Frames(received, masked=masked, limit=limit)
    found = []
    for start in range(0, len(stream), pieces):
        received += stream[start : start + pieces]
        while (message := frames.take()) is not None:
            found.append(message)
    assert received == b""
    return found


@given(messages=st.lists(MESSAGES, max_size=5), pieces=st.integers(1, 100_000), masked=st.booleans())
def test_a_framed_message_is_restored_from_any_pieces(
    messages: list[tuple[Opcode, bytes]], pieces: int, masked: bool
) -> None:
    stream = b"".join(frame(opcode, payload, masked=masked) for opcode, payload in messages)
    assert taken(stream, max(pieces, len(stream) // 500), masked=masked) == messages


@pytest.mark.parametrize("text", [b"", b"{"])
@pytest.mark.parametrize("first", [0x01, 0x00, 0x80], ids=["start", "middle", "end"])
def test_a_fragment_of_a_message_is_refused(first: int, text: bytes) -> None:
    fragment = bytes([first]) + frame(Opcode.TEXT, text, masked=True)[1:]
    with pytest.raises(
        ProtocolError, match=f"expected a message in one frame, got a frame that begins with {first:#04x}"
    ):
        taken(fragment, 1, masked=True)


@pytest.mark.parametrize("length", [1 << 16, 100_000_000, (1 << 64) - 1])
def test_a_frame_that_is_too_long_is_refused_before_its_body_comes(length: int) -> None:
    received = bytearray(b"\x81\xff" + length.to_bytes(8, "big"))
    with pytest.raises(ProtocolError, match="expected at most 1000 bytes") as broken:
        Frames(received, masked=True, limit=1000).take()
    assert broken.value.code is CloseCode.TOO_BIG


def test_a_limit_counts_from_the_next_frame_on() -> None:
    received = bytearray(frame(Opcode.TEXT, b"x" * 11, masked=True))
    frames = Frames(received, masked=True, limit=10)
    with pytest.raises(ProtocolError):
        frames.take()
    frames.limit = 11
    assert frames.take() == (Opcode.TEXT, b"x" * 11)


def test_a_callers_frame_shows_nothing_of_its_text() -> None:
    text = b"the same text twice"
    first, second = (frame(Opcode.TEXT, text, masked=True) for _ in range(2))
    assert text not in first
    assert first != second


@pytest.mark.parametrize("reason", ["", "ä" * 200, "x" * 122 + "ä", "\ud800"])
def test_a_goodbye_fits_into_a_control_frame(reason: str) -> None:
    ((opcode, payload),) = taken(close_frame(CloseCode.POLICY, reason, masked=False), 1000, masked=False)
    assert opcode == Opcode.CLOSE
    assert payload[:2] == (1008).to_bytes(2, "big")
    payload[2:].decode()  # no character is cut in two

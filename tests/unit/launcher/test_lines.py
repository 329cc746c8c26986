"""LinePrefixer: chunks of a worker's output in, whole lines with their prefix out."""

from __future__ import annotations

import pytest

from understudy_launcher.lines import LinePrefixer

BLOCK_BYTES = 4096
HOLD_S = 0.2
LINE_BYTES = 1 << 16


def fed(*chunks: bytes) -> list[bytes]:
    """The text returned after each chunk, and at the end."""
    lines = LinePrefixer(b"[rank 3] ")
    return [*(lines.feed(chunk, 0.0) for chunk in chunks), lines.end()]


def held_for(lines: LinePrefixer, seconds: float) -> bytes:
    due = lines.due()
    return lines.end() if due is not None and seconds >= due else b""


@pytest.mark.parametrize(
    ("chunks", "out"),
    [
        ([b"one\n"], [b"[rank 3] one\n", b""]),
        ([b"one\ntwo\n\nfour\n"], [b"[rank 3] one\n[rank 3] two\n[rank 3] \n[rank 3] four\n", b""]),
        ([b"o", b"ne\nt", b"wo\n"], [b"", b"[rank 3] one\n", b"[rank 3] two\n", b""]),
        ([b"the last words"], [b"", b"[rank 3] the last words\n"]),
        ([b"\xff\x00\n"], [b"[rank 3] \xff\x00\n", b""]),
    ],
)
def test_whole_lines_are_returned_and_the_rest_waits_for_its_end(chunks: list[bytes], out: list[bytes]) -> None:
    assert fed(*chunks) == out


@pytest.mark.parametrize(
    ("chunks", "text"),
    [
        ([b"\r10%\r20%\r30%\n"], b"10% 20% 30%"),
        ([b"\r10%", b"\r20%", b"\r30%\n"], b"10% 20% 30%"),
        ([b"10%\r", b"20%\r", b"30%\r", b"\n"], b"10% 20% 30%"),
        ([b"dos\r\nlines\r\n"], b"dos lines"),
        ([b"dos\r", b"\nlines\r\n"], b"dos lines"),
    ],
)
def test_a_progress_bars_states_are_lines_and_none_is_empty(chunks: list[bytes], text: bytes) -> None:
    assert b"".join(fed(*chunks)) == b"".join(b"[rank 3] " + word + b"\n" for word in text.split())


def test_an_empty_dos_line_stays() -> None:
    assert fed(b"a\r\n\r\nb\r\n") == [b"[rank 3] a\n[rank 3] \n[rank 3] b\n", b""]


def test_text_without_an_end_is_returned_when_nothing_follows() -> None:
    # given a prompt
    lines = LinePrefixer(b"[rank 3] ")
    assert lines.feed(b"name? ", 0.0) == b""
    # when nothing follows for a moment
    assert held_for(lines, HOLD_S / 2) == b""
    assert held_for(lines, HOLD_S) == b"[rank 3] name? \n"
    # then it is a line, and its own line end, if that follows, is not a second one
    assert lines.due() is None
    assert lines.feed(b"\nnext\n", 1.0) == b"[rank 3] next\n"
    assert lines.feed(b"\n", 1.0) == b"[rank 3] \n"


def test_more_text_restarts_the_wait() -> None:
    lines = LinePrefixer(b"")
    lines.feed(b"a", 0.0)
    lines.feed(b"b", HOLD_S)
    assert held_for(lines, HOLD_S * 1.5) == b""
    assert held_for(lines, HOLD_S * 2) == b"ab\n"


def test_a_line_that_a_full_buffer_has_cut_waits_for_its_rest() -> None:
    lines = LinePrefixer(b"")
    assert lines.feed(b"x" * 2 * BLOCK_BYTES, 0.0) == b""
    assert lines.due() is None
    assert lines.feed(b"y\n", 60.0) == b"x" * 2 * BLOCK_BYTES + b"y\n"


def test_a_long_line_is_returned_in_pieces() -> None:
    lines = LinePrefixer(b"> ")
    out = b"".join(lines.feed(b"x" * 1000, 0.0) for _ in range(1000)) + lines.feed(b"\n", 0.0)
    pieces = out.splitlines()
    assert b"".join(piece.removeprefix(b"> ") for piece in pieces) == b"x" * 1_000_000
    assert all(piece.startswith(b"> ") and len(piece) < 2 * LINE_BYTES for piece in pieces)


def test_without_a_prefix_lines_are_unchanged() -> None:
    assert LinePrefixer(b"").feed(b"a\n\nb\n", 0.0) == b"a\n\nb\n"

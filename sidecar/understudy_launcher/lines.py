"""Splits a worker's output into lines for a shared log: whole lines, each with its prefix. Pure.

Rules: a line ends at \\n, and also at \\r, with which a progress bar overwrites its last state. Text without an end
becomes a line of its own if nothing follows for HOLD_S (a prompt), at LINE_BYTES, and at the end of the stream; a \\n
that follows ends no second line. If a text ends at the size of a writer's buffer, it waits without a time limit,
because the rest is still in the writer.
"""

import re
from typing import Optional

HOLD_S = 0.2
LINE_BYTES = 1 << 16
#: The buffer sizes of Python's and C's files are multiples of it.
BLOCK_BYTES = 4096

_AT_LINE_START = re.compile(rb"(^|\n)\r+(?!\n)")
_RETURNS = re.compile(rb"\r+\n?")
_REST_OF_AN_END = re.compile(rb"\r*\n")


class LinePrefixer:
    """One stream. `feed` and `end` return the text to write: whole lines, or nothing."""

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._unfinished = b""  # of a line that has not ended yet
        self._ended = False  # the last line has ended, though its own \n may follow
        self._due: Optional[float] = None

    def feed(self, chunk: bytes, now: float) -> bytes:
        """chunk: the bytes that were read; never empty."""
        rest = _REST_OF_AN_END.match(chunk) if self._ended else None
        text = self._unfinished + (chunk[rest.end() :] if rest else chunk)
        self._ended = text.endswith(b"\r")
        if b"\r" in text:
            text = _RETURNS.sub(b"\n", _AT_LINE_START.sub(rb"\1", text))
        cut = text.rfind(b"\n") + 1
        whole, self._unfinished = text[:cut], text[cut:]
        self._due = now + HOLD_S if self._unfinished and len(chunk) % BLOCK_BYTES else None
        if len(self._unfinished) >= LINE_BYTES:
            return self._prefixed(whole) + self.end()
        return self._prefixed(whole)

    def end(self) -> bytes:
        """Return the unfinished line as a line."""
        text, self._unfinished, self._due = self._unfinished, b"", None
        self._ended = self._ended or bool(text)
        return self._prefixed(text + b"\n") if text else b""

    def due(self) -> Optional[float]:
        """When to return the unfinished line; None if there is none, or its rest is certain to follow."""
        return self._due

    def _prefixed(self, lines: bytes) -> bytes:
        if not lines or not self._prefix:
            return lines
        return self._prefix + lines[:-1].replace(b"\n", b"\n" + self._prefix) + b"\n"

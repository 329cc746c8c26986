"""What a worker writes, as the lines of a log that many share: whole, and each with its prefix. Pure.

Rules: a line ends at \\n, and at \\r as well, which is how a progress bar writes the next state over the last. What has
no end comes out as a line of its own when nothing follows for HOLD_S (a prompt), at LINE_BYTES, and at the end of all;
a \\n that comes after that ends no second line. It waits on where a writer's full buffer was cut, for the rest of that
is still in the writer.
"""

import re
from typing import Optional

HOLD_S = 0.2
LINE_BYTES = 1 << 16
#: Full buffers of Python's and C's files are multiples of it.
BLOCK_BYTES = 4096

_AT_LINE_START = re.compile(rb"(^|\n)\r+(?!\n)")
_RETURNS = re.compile(rb"\r+\n?")
_REST_OF_AN_END = re.compile(rb"\r*\n")


class LinePrefixer:
    """One stream. `feed` and `end` return what is to be written: whole lines, or nothing."""

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._unfinished = b""  # of a line whose end is to come
        self._ended = False  # the last line, though its own \n may still come
        self._due: Optional[float] = None

    def feed(self, chunk: bytes, now: float) -> bytes:
        """What was read; never empty."""
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
        """No more is waited for."""
        held, self._unfinished, self._due = self._unfinished, b"", None
        self._ended = self._ended or bool(held)
        return self._prefixed(held + b"\n") if held else b""

    def due(self) -> Optional[float]:
        """When the line without an end is to come out; None while nothing is held, or its rest will come."""
        return self._due

    def _prefixed(self, lines: bytes) -> bytes:
        if not lines or not self._prefix:
            return lines
        return self._prefix + lines[:-1].replace(b"\n", b"\n" + self._prefix) + b"\n"

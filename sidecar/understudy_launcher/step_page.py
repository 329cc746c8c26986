"""The launcher's side of step(): the two files that a worker inherits, and what they say.

What is in them is written in understudy_torch/progress.py. Rules: the page is read by a system call, never mapped: a
worker that cuts its file short must not end the launcher. A look may meet a call halfway, and tell the former total
with the new step; the next look tells both.
"""

import contextlib
import fcntl
import os
import struct
from dataclasses import dataclass
from typing import Optional

MAGIC = 0x75_6E_64_73_74_65_70_31
_WORDS = struct.Struct("8q")
_CHUNK = 1 << 12
#: Their numbers in the worker are high, where nothing that a script opens lands by chance: in a child that closed
#: them, a low one would soon be somebody else's file.
_FROM = 200


@dataclass(frozen=True)
class Seen:
    """What a worker has told up to now."""

    calls: int
    step: int
    total: Optional[int]
    at: float  # when it told it, by time.monotonic()
    pid: int  # of the process that steps
    stack_signal: int  # on which that dumps its Python stacks; 0: on none


class StepFiles:
    """Both ends, until `given` closes the worker's of the bell. folder: where a page may lie, if need be."""

    def __init__(self, folder: str) -> None:
        self.page = _new_page(folder)
        self.bell, ring = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)  # a full pipe must hold up neither side
        self.ring = _high(ring)
        self._words = b""

    @property
    def inherited(self) -> tuple[int, int]:
        """What the worker gets, in this order."""
        return self.ring, self.page

    def given(self) -> None:
        """The worker has its end, or there is none."""
        os.close(self.ring)

    def heard(self) -> bool:
        """Read the bell; False once nobody is left who could ring it."""
        with contextlib.suppress(BlockingIOError):
            return bool(os.read(self.bell, _CHUNK))
        return True

    def news(self) -> Optional[Seen]:
        """What has been told since this was asked last; None if nothing has."""
        words = os.pread(self.page, _WORDS.size, 0)
        if words == self._words or len(words) != _WORDS.size:
            return None
        self._words = words
        _, calls, step, total, at_ns, pid, stack_signal, _ = _WORDS.unpack(words)
        if calls <= 0 or step < 0:
            return None
        return Seen(calls, step, total if total >= 0 else None, at_ns / 1e9, pid, stack_signal)

    def close_bell(self) -> None:
        if self.bell >= 0:
            os.close(self.bell)
            self.bell = -1

    def close(self) -> None:
        self.close_bell()
        os.close(self.page)


def _new_page(folder: str) -> int:
    """A file without a name, in memory where this Python can ask for that (not where it was built for an old libc)."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("steps", os.MFD_CLOEXEC)
    else:
        file = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    os.write(file, _WORDS.pack(MAGIC, 0, 0, -1, 0, 0, 0, 0))
    return _high(file)


def _high(low: int) -> int:
    """The same file under a high number; under its own where RLIMIT_NOFILE is lower than that."""
    try:
        high = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _FROM)
    except OSError:
        return low
    os.close(low)
    return high

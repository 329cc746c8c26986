"""The launcher's side of step(): the two files that a worker inherits, or opens by path, and their content.

understudy_torch/progress.py writes them. Rules: the launcher reads the page with a system call and never maps it,
because a worker that truncates its file must not crash the launcher. A read during a call may combine the previous
total with the new step; the next read has both. A report about collectives has a number at both ends: if they differ,
the worker is writing it, and the next read has it.
"""

import contextlib
import fcntl
import os
import shutil
import struct
import tempfile
import time
from dataclasses import dataclass
from typing import Optional

from understudy_launcher import process_table
from understudy_launcher.events import CollectivesRead, StepsRead
from understudy_protocol.snapshots import MAX_STEP

MAGIC = 0x75_6E_64_73_74_65_70_31
BELL, PAGE = "bell", "page-"  # files of a folder; a page's name ends with the local rank
_WORDS = struct.Struct("9q")
#: Behind these: see understudy_torch/collectives.py.
_AREA = struct.Struct("44q")
_BLANK = _WORDS.pack(MAGIC, 0, 0, -1, 0, 0, 0, 0, 0) + bytes(_AREA.size)
_NEW_PAGE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_CHUNK = 1 << 12
_COUNTED = -(1 << 63)  # in place of the total: see understudy_torch/progress.py
#: The worker gets high descriptor numbers, which no file that a script opens gets by chance: in a child that has closed
#: them, a low number would soon belong to another file.
_FROM = 200


@dataclass(frozen=True)
class StepReading:
    """A worker's report."""

    calls: int
    step: int
    total: Optional[int]
    at: float  # time of the newest step, by time.monotonic()
    pid: int  # of the process that calls step()
    stack_signal: int  # the process dumps its Python stacks on this signal; 0: on none
    first_at: float = 0.0  # time of its first step, by time.monotonic()
    is_counted: bool = False  # the step is the number of steps in this round
    collectives_signal: int = 0  # the process writes its newest collectives on this signal; 0: on none


class StepPage:
    """The launcher's end of one worker's page. fd: owned by the caller."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._words = self._area = b""
        self.newest: Optional[StepReading] = None  # the newest report

    def read(self) -> Optional[StepReading]:
        """The report, if it has changed since the last call; else None."""
        words = os.pread(self._fd, _WORDS.size, 0)
        if words == self._words or len(words) != _WORDS.size:
            return None
        self._words = words
        _, calls, step, total, at_ns, pid, stack_signal, first_ns, collectives_signal = _WORDS.unpack(words)
        if calls <= 0 or not 0 <= step <= MAX_STEP:
            return None
        of_all, at, first_at = total if 0 <= total <= MAX_STEP else None, at_ns / 1e9, first_ns / 1e9
        is_counted = total == _COUNTED
        return StepReading(calls, step, of_all, at, pid, stack_signal, first_at, is_counted, collectives_signal)

    def steps_read(self, local_rank: int) -> list[StepsRead]:
        """The same as an event for the supervisor."""
        calls, seen = self.newest.calls if self.newest is not None else 0, self.read()
        if seen is None:
            return []
        self.newest, now = seen, time.monotonic()
        stepped_at = min(seen.at, now)
        at = time.time() - (now - stepped_at)
        first_at = min(seen.first_at, stepped_at) if seen.first_at > 0 else stepped_at
        reports = max(1, seen.calls - calls)
        return [StepsRead(local_rank, seen.step, seen.total, reports, at, stepped_at, first_at, seen.is_counted)]

    def collectives_read(self, local_rank: int) -> list[CollectivesRead]:
        """The newest report about collectives, if there is another one since the last call."""
        words = os.pread(self._fd, _AREA.size, _WORDS.size)
        if words == self._area or len(words) != _AREA.size:
            return []
        number, window, step_ns, *steps, end = _AREA.unpack(words)
        if number != end:
            return []
        self._area = words
        if window <= 0 or step_ns <= 0 or min(steps) < 0:
            return []
        return [CollectivesRead(local_rank, window, step_ns, tuple(steps[::2]), tuple(steps[1::2]))]

    def dump_stacks(self, group: int) -> str:
        """Make the process that steps write its Python stacks to stderr. Return why it cannot, or "".

        group: the worker's process group. Its number may be reused once the group is empty.
        """
        process = self.newest or self._before_first_step()
        if process is None:
            return "it has not imported understudy_torch yet"
        if not process.stack_signal:
            return "its script handles the stack signal itself"
        return self._signal(process.pid, process.stack_signal, group)

    def write_collectives(self, group: int) -> None:
        """Make the process that steps write its newest collectives to stderr, if it can. group: as in dump_stacks."""
        if self.newest is not None and self.newest.collectives_signal:
            self._signal(self.newest.pid, self.newest.collectives_signal, group)

    def _signal(self, pid: int, number: int, group: int) -> str:
        """Why it cannot, or ""."""
        try:
            if os.getpgid(pid) != group:
                return "its process has left the worker's process group"
            if self.newest is None and process_table.has_default_action(pid, number):
                return "its process no longer handles the stack signal"  # it has run exec since
            os.kill(pid, number)
        except OverflowError:
            return "its step page has no pid"
        except OSError as error:
            return str(error.strerror)
        return ""

    def _before_first_step(self) -> Optional[StepReading]:
        words = os.pread(self._fd, _WORDS.size, 0)
        if len(words) != _WORDS.size:
            return None
        _, calls, step, _, at_ns, pid, stack_signal, _, _ = _WORDS.unpack(words)
        return StepReading(calls, step, None, at_ns / 1e9, pid, stack_signal) if pid > 0 else None


class StepFiles:
    """Both ends, until `given` closes the worker's end of the bell. folder: for a page that cannot be in memory."""

    def __init__(self, folder: str) -> None:
        self._file = _new_page(folder)
        self.page = StepPage(self._file)
        self.bell, ring = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)  # a full pipe must block neither side
        self.ring = inherited_number(ring)

    @property
    def inherited(self) -> tuple[int, int]:
        """The numbers that the worker inherits, in this order."""
        return self.ring, self._file

    def given(self) -> None:
        """Close the worker's end: the worker has its own, or did not start."""
        os.close(self.ring)

    def has_news(self) -> bool:
        """Read the bell. False if no process can write to it any more."""
        with contextlib.suppress(BlockingIOError):
            return bool(os.read(self.bell, _CHUNK))
        return True

    def close_bell(self) -> None:
        if self.bell >= 0:
            os.close(self.bell)
            self.bell = -1

    def close(self) -> None:
        self.close_bell()
        os.close(self._file)


class StepFolder:
    """The same by path, for the workers of a pod that inherit no files: one bell, and a page for each local rank.

    It also keeps the bell's write end open, because a pipe without a writer is always readable. Raises OSError.
    """

    def __init__(self, ranks: int) -> None:
        self.path = tempfile.mkdtemp(prefix="understudy-steps-")
        bell = os.path.join(self.path, BELL)
        os.mkfifo(bell, 0o600)
        self.bell = os.open(bell, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._files = [os.open(os.path.join(self.path, f"{PAGE}{rank}"), _NEW_PAGE, 0o600) for rank in range(ranks)]
        for file in self._files:
            os.write(file, _BLANK)
        self.pages = [StepPage(file) for file in self._files]

    def has_news(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.bell, _CHUNK)

    def steps_read(self) -> list[StepsRead]:
        return [read for rank, page in enumerate(self.pages) for read in page.steps_read(rank)]

    def collectives_read(self) -> list[CollectivesRead]:
        return [read for rank, page in enumerate(self.pages) for read in page.collectives_read(rank)]

    def close(self) -> None:
        for fd in (self.bell, *self._files):
            os.close(fd)
        shutil.rmtree(self.path, ignore_errors=True)


def _new_page(folder: str) -> int:
    """An unnamed file: in memory if this Python supports that (not if built for an old libc), else in `folder`."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("steps", os.MFD_CLOEXEC)
    else:
        file = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    os.write(file, _BLANK)
    return inherited_number(file)


def inherited_number(low: int) -> int:
    """The same file under a high number (see _FROM); under its own number if RLIMIT_NOFILE is lower."""
    try:
        high = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _FROM)
    except OSError:
        return low
    os.close(low)
    return high

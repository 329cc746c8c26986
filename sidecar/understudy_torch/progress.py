"""`step(n)` tells the launcher how far the training is, and that it lives: four numbers in a page that both can see.

The worker inherits two files, and their numbers in UNDERSTUDY_STEP_FD, as `BELL,PAGE`; torchrun's workers inherit none,
and find them in the folder UNDERSTUDY_STEP_FOLDER, as `bell` and `page-LOCAL_RANK`:

    BELL   a pipe: whoever steps for the first time in its process writes a byte, and the launcher looks at once
    PAGE   64 bytes, mapped: native signed 64-bit words. The launcher looks at them twice a second, and at the end
           0 MAGIC      1 calls of step()  2 the newest step  3 the total, or -1
           4 when, in ns of CLOCK_MONOTONIC                   5 the pid of the process that steps
           6 the signal on which it dumps its stacks (stacks.py), 0: on none
           7 when that process told its first step, in nanoseconds of time.monotonic_ns()

The launcher's side of it is understudy_launcher/step_page.py; both come out of one image, so it has no versions.

Rules: it never fails, never blocks, starts no thread, and makes no system call after the first time, so that a script
may call it in every step. Outside of a job it does nothing; what is no integer of 64 bits is not told. A fork of the
process shares the page, and rings anew when it steps. A process that inherited the variable but not the files (whoever
started it closed them) must not write into what has their numbers now: only a pipe and a page with MAGIC count.

Where a round without a first step is to be found (UNDERSTUDY_START_TIMEOUT_SECONDS), the import writes words 5 and 6.
A child that imports this module, too, does not replace its parent: the first process that lives stays until a step.
"""

import contextlib
import mmap
import os
import stat
from time import monotonic_ns
from typing import Optional

from understudy_torch import stacks

ENV_STEP_FD = "UNDERSTUDY_STEP_FD"  # understudy_protocol.pod has all three; that package is not here
ENV_STEP_FOLDER = "UNDERSTUDY_STEP_FOLDER"
ENV_START_TIMEOUT = "UNDERSTUDY_START_TIMEOUT_SECONDS"
MAGIC = 0x75_6E_64_73_74_65_70_31
PAGE_BYTES = 64
_CALLS, _STEP, _TOTAL, _AT, _PID, _SIGNAL, _FIRST = range(1, 8)
_NO_PAGE = (OSError, ValueError, OverflowError, KeyError)

_files: Optional[tuple[int, memoryview]] = None  # bell and page, once they are found
_page: Optional[memoryview] = None  # from the first step on
_looked = False  # for a page, in this process


def step(n: int, total: Optional[int] = None) -> None:
    """Report that step `n` (of `total`, where that is known) is done."""
    page = _page
    if page is None:
        if not _looked:
            _first_step(n, total)
        return
    try:
        done, of_all = int(n), -1 if total is None else int(total)
        page[_STEP] = done
        page[_TOTAL] = of_all
        page[_AT] = monotonic_ns()
        page[_CALLS] += 1
    except (TypeError, ValueError, OverflowError):
        pass


def _first_step(n: int, total: Optional[int]) -> None:
    """The first one in this process: finds the page, and rings."""
    global _page, _looked
    _looked = True
    with contextlib.suppress(*_NO_PAGE):
        bell, page = _find()
        page[_SIGNAL], page[_PID], page[_FIRST] = stacks.dump_on_signal(), os.getpid(), monotonic_ns()
        _page = page
        step(n, total)
        os.write(bell, b"!")


def show_stacks() -> None:
    """From now on the launcher can have this process's stacks, if a start without a step is to be found."""
    if not os.environ.get(ENV_START_TIMEOUT):
        return
    with contextlib.suppress(*_NO_PAGE):
        _, page = _find()
        if not os.path.exists(f"/proc/{page[_PID]}") or not page[_PID]:
            page[_SIGNAL], page[_PID] = stacks.dump_on_signal(), os.getpid()


def _find() -> tuple[int, memoryview]:
    """Bell and page of this process."""
    global _files
    if _files is None:
        bell, file = _open()
        page = memoryview(mmap.mmap(file, PAGE_BYTES)).cast("q")
        if page[0] != MAGIC or not stat.S_ISFIFO(os.fstat(bell).st_mode):
            raise ValueError("these numbers are of other files")
        _files = bell, page
    return _files


def _open() -> tuple[int, int]:
    """Bell and page."""
    numbers = os.environ.get(ENV_STEP_FD)
    if numbers is not None:
        bell, page = map(int, numbers.split(","))
        return bell, page
    folder, rank = os.environ[ENV_STEP_FOLDER], os.environ["LOCAL_RANK"]
    page = os.open(os.path.join(folder, f"page-{rank}"), os.O_RDWR | os.O_CLOEXEC)
    return os.open(os.path.join(folder, "bell"), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC), page


def _forget() -> None:
    """In a fork: it is another process that steps now."""
    global _files, _page, _looked
    _files, _page, _looked = None, None, False


os.register_at_fork(after_in_child=_forget)

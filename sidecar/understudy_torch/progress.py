"""`step(n)` reports progress to the launcher: the step and that the worker is alive, in a page that both can access.

The worker inherits two files, and their numbers in UNDERSTUDY_STEP_FD as `BELL,PAGE`. torchrun's workers inherit none;
they open `bell` and `page-LOCAL_RANK` in the folder UNDERSTUDY_STEP_FOLDER:

    BELL   a pipe: a process writes a byte at its first step, and the launcher reads the page at once. So does a fork
           of the zygote whose script has ended with an exception (understudy_zygote/script.py)
    PAGE   mapped: native signed 64-bit words. The launcher reads them four times a second, and at the end
           0 MAGIC      1 calls of step()  2 the newest step  3 the total, or -1, or COUNTED
           4 its time, in ns of CLOCK_MONOTONIC               5 the pid of the process that steps
           6 the signal on which it dumps its stacks (stacks.py); 0: on none
           7 the time of that process's first step, in nanoseconds of time.monotonic_ns()
           8 the signal on which it writes its newest collectives (last_collectives.py); 0: on none
           9 and the next: when the rank entered collectives (collectives.py)

The launcher's side is understudy_launcher/step_page.py. Both come from one image, so the page has no versions.

Rules: step() never fails, never blocks, and makes no system call after the first time, so that a script may call it in
every step. The first time, it starts a thread that sleeps until a hang (last_collectives.py), if torch.distributed is
in use. Only every tenth step at most takes longer (collectives.py). Outside a job it does nothing. A step that is not a
whole number from 0 to 2^53 - 1 is not reported, and such a total is unknown. A fork of the process shares the page, and
rings the bell again at its own first step. A process that inherited the variable but not the files (its parent closed
them) must not write into other files with these numbers: only a pipe and a page with MAGIC count.

If UNDERSTUDY_START_TIMEOUT_SECONDS is set (detection of a round without a first step), the import writes words 5 and 6.
A child that imports this module does not replace its parent: until a step, the first live process remains in the page.
"""

import contextlib
import mmap
import os
import stat
from time import monotonic_ns
from typing import Optional

from understudy_torch import collectives, last_collectives, stacks

ENV_STEP_FD = "UNDERSTUDY_STEP_FD"  # also in understudy_protocol.pod, which workers do not have
ENV_STEP_FOLDER = "UNDERSTUDY_STEP_FOLDER"
ENV_START_TIMEOUT = "UNDERSTUDY_START_TIMEOUT_SECONDS"
MAGIC = 0x75_6E_64_73_74_65_70_31
AREA_AT = 9  # the words of collectives.py
PAGE_BYTES = 8 * (AREA_AT + collectives.AREA_WORDS)
#: In place of a total: step() is called for the script, with the number of its steps in this round.
COUNTED = -(1 << 63)
_CALLS, _STEP, _TOTAL, _AT, _PID, _SIGNAL, _FIRST, _COLLECTIVES_SIGNAL = range(1, 9)
_NO_PAGE = (OSError, ValueError, OverflowError, KeyError)

_files: Optional[tuple[int, memoryview]] = None  # bell and page, once opened
_page: Optional[memoryview] = None  # set at the first step
_looked = False  # whether this process has looked for a page
_reports: Optional[collectives.CollectiveReports] = None
_record_from = collectives.NEVER  # the number of the call from which on _reports records calls


def step(n: int, total: Optional[int] = None) -> None:
    """Report that step `n` (of `total`, if known) is done. A total that is no whole number from 0 to 2^53 - 1, such as
    float("inf"), counts as unknown.
    """
    global _record_from
    page = _page
    if page is None:
        if not _looked:
            _first_step(n, total)
        return
    try:
        page[_STEP] = int(n)
    except Exception:  # noqa: BLE001 - the training must not fail for this: int() of a tensor may raise any error
        return
    try:
        page[_TOTAL] = -1 if total is None else int(total)
    except Exception:  # noqa: BLE001 - as above
        page[_TOTAL] = -1
    page[_AT] = monotonic_ns()
    page[_CALLS] = calls = page[_CALLS] + 1
    if calls >= _record_from and _reports is not None:
        _record_from = _reports.on_step(calls)


def _first_step(n: int, total: Optional[int]) -> None:
    """The first step in this process: find the page, and ring the bell."""
    global _page, _looked, _reports, _record_from
    _looked = True
    with contextlib.suppress(*_NO_PAGE):
        bell, page = _find()
        _reports = collectives.make_reports(page[AREA_AT:])
        _record_from = collectives.NEVER if _reports is None else _reports.record_from
        page[_COLLECTIVES_SIGNAL] = 0 if _reports is None else last_collectives.report_on_signal()
        page[_SIGNAL], page[_PID], page[_FIRST] = stacks.dump_on_signal(), os.getpid(), monotonic_ns()
        _page = page
        step(n, total)
        os.write(bell, b"!")


def calls() -> int:
    """How often step() was called in this process, and in others that share its page."""
    return 0 if _page is None else _page[_CALLS]


def show_stacks() -> None:
    """If a start timeout is set, let the launcher request this process's stacks from now on."""
    if not os.environ.get(ENV_START_TIMEOUT):
        return
    with contextlib.suppress(*_NO_PAGE):
        _, page = _find()
        if not os.path.exists(f"/proc/{page[_PID]}") or not page[_PID]:
            page[_SIGNAL], page[_PID], page[_COLLECTIVES_SIGNAL] = stacks.dump_on_signal(), os.getpid(), 0


def _find() -> tuple[int, memoryview]:
    """The bell and the page of this process."""
    global _files
    if _files is None:
        bell, file = _open()
        page = memoryview(mmap.mmap(file, PAGE_BYTES)).cast("q")
        if page[0] != MAGIC or not stat.S_ISFIFO(os.fstat(bell).st_mode):
            raise ValueError("these numbers are of other files")
        _files = bell, page
    return _files


def _open() -> tuple[int, int]:
    """The file descriptors of bell and page."""
    numbers = os.environ.get(ENV_STEP_FD)
    if numbers is not None:
        bell, page = map(int, numbers.split(","))
        return bell, page
    folder, rank = os.environ[ENV_STEP_FOLDER], os.environ["LOCAL_RANK"]
    page = os.open(os.path.join(folder, f"page-{rank}"), os.O_RDWR | os.O_CLOEXEC)
    return os.open(os.path.join(folder, "bell"), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC), page


def _forget() -> None:
    """In a fork: another process steps now."""
    global _files, _page, _looked, _reports, _record_from
    _files, _page, _looked, _reports, _record_from = None, None, False, None, collectives.NEVER


os.register_at_fork(after_in_child=_forget)

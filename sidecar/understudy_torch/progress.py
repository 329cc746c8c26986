"""`step(n)` tells the launcher how far the training is: one line into the pipe that the worker inherited.

Rules: it never fails, never blocks and costs a few microseconds, so that a script may call it in every step. Outside of
a job it does nothing; a full pipe drops the line; a launcher that is gone ends it. The line is written at once and is
shorter than PIPE_BUF, so a fork repeats nothing and mixes with nothing. A process that inherited the variable but not
the pipe (whoever started it closed it) must not write into whatever has its number now: only a pipe counts. Workers of
torchrun inherit no files; they find the pipe by its path, and only the first of a pod writes into it.
"""

import os
import stat
from typing import Optional

ENV_STEP_FD = "UNDERSTUDY_STEP_FD"  # understudy_protocol.pod has it too; that package is not here
ENV_STEP_FIFO = "UNDERSTUDY_STEP_FIFO"

_UNKNOWN, _NONE = -2, -1
_fd = _UNKNOWN


def step(n: int, total: Optional[int] = None) -> None:
    """Report that step `n` (of `total`, where that is known) is done."""
    global _fd
    if _fd == _UNKNOWN:
        _fd = _inherited_pipe()
        _fd = _named_pipe() if _fd == _NONE else _fd
    if _fd == _NONE:
        return
    try:
        os.write(_fd, b"%d %b\n" % (int(n), b"-" if total is None else b"%d" % int(total)))
    except BlockingIOError:
        pass  # the launcher has not read for thousands of steps: it does not need this one
    except OSError:
        _fd = _NONE


def _inherited_pipe() -> int:
    """The pipe's number, or _NONE."""
    try:
        fd = int(os.environ.get(ENV_STEP_FD, ""))
        is_pipe = stat.S_ISFIFO(os.fstat(fd).st_mode)
    except (ValueError, OverflowError, OSError):
        return _NONE
    return fd if is_pipe else _NONE


def _named_pipe() -> int:
    """That of a torchrun's first worker, or _NONE."""
    try:
        if int(os.environ.get("RANK", "0")) % int(os.environ.get("LOCAL_WORLD_SIZE", "1")):
            return _NONE
        fd = os.open(os.environ[ENV_STEP_FIFO], os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (KeyError, ValueError, ZeroDivisionError, OSError):
        return _NONE
    if stat.S_ISFIFO(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return _NONE

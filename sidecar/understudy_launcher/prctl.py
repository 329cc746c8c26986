"""Two prctl calls about child processes, through ctypes. Without ctypes or kernel support they are skipped.

As pid 1 the launcher inherits every orphan, and all processes end with it. If it is not pid 1 (a pod with
shareProcessNamespace, local mode), it becomes a subreaper and lets each worker die with it.
"""

import os
import signal
from typing import Any, Callable, Optional

_SET_PDEATHSIG = 1
_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> Optional[str]:
    """Inherit the orphans among the descendants. Return the error, or None."""
    libc = _libc()
    if libc is None:
        return "no ctypes in this Python"
    return None if libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0 else "prctl refused"


def dies_with_parent() -> Optional[Callable[[], None]]:
    """A function for a child to run before exec, so that it gets SIGKILL when the launcher ends; None: not needed."""
    libc = _libc()
    parent = os.getpid()
    if parent == 1 or libc is None:
        return None

    def ask() -> None:
        libc.prctl(_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # the parent ended before the call
            os._exit(1)

    return ask


def _libc() -> Any:
    try:
        import ctypes  # some minimal builds of Python lack it

        return ctypes.CDLL(None)
    except (ImportError, OSError):
        return None

"""Two things that the kernel does for a parent on request, asked for through ctypes; where it is missing, not done.

As pid 1 the launcher inherits every orphan and takes all processes along when it ends. Where it is not (a pod with
shareProcessNamespace, local mode), it asks for the first and gives each worker the second.
"""

import os
import signal
from typing import Any, Callable, Optional

_SET_PDEATHSIG = 1
_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> Optional[str]:
    """Inherit the orphans among the descendants. What went wrong, or None."""
    libc = _libc()
    if libc is None:
        return "no ctypes in this Python"
    return None if libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0 else "prctl refused"


def dies_with_parent() -> Optional[Callable[[], None]]:
    """What a child runs before its exec to get SIGKILL when the launcher ends; None where that is not needed."""
    libc = _libc()
    parent = os.getpid()
    if parent == 1 or libc is None:
        return None

    def ask() -> None:
        libc.prctl(_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it ended before we asked
            os._exit(1)

    return ask


def _libc() -> Any:
    try:
        import ctypes  # some minimal builds of Python lack it

        return ctypes.CDLL(None)
    except (ImportError, OSError):
        return None

"""Kills processes that outlive their parent: this process inherits and kills them.

A worker's own children (a DataLoader, a `subprocess.Popen`) do not end with it. As a subreaper (prctl.py) a process
becomes the parent of all orphans among its descendants, also of those that have left their session. The children of a
killed child become its own children, so a few rounds of kills reach every descendant.
"""

import contextlib
import os
import signal
import time
from collections.abc import Collection
from pathlib import Path

import psutil

LOOK_EVERY_S = 0.02


def kill_children(spared: Collection[int] = ()) -> bool:
    """SIGKILL to all children except these. Return whether there were any: then call it again, because their children
    become this process's children when they end.
    """
    killed = [pid for pid in _children() if pid not in spared]
    for pid in killed:  # a pid is not reused until this process has reaped it
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in killed:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return bool(killed)


def end_descendants(limit_s: float) -> list[int]:
    """SIGKILL to all descendants of this process. Return the pids that are alive when the limit is over."""
    until = time.monotonic() + limit_s
    while kill_children():
        if time.monotonic() >= until:
            return _children()
        time.sleep(LOOK_EVERY_S)
    return []


def _children() -> list[int]:
    own = os.getpid()
    try:
        return [int(pid) for pid in Path(f"/proc/{own}/task/{own}/children").read_text().split()]
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        return [child.pid for child in psutil.Process().children()]

"""Ends what outlives the process that started it: this process inherits it, and kills it.

A worker's own children (a DataLoader, a `subprocess.Popen`) do not end with it. As a subreaper (prctl.py)
a process becomes the parent of all orphans among its descendants, also of those that have left their session. When it
kills a child, that one's children become its own: so a few rounds of this reach every descendant.
"""

import contextlib
import os
import signal
import time
from collections.abc import Collection
from pathlib import Path

import psutil

LOOK_EVERY_S = 0.02


def kill_children(spared: Collection[int] = ()) -> list[int]:
    """SIGKILL to all children but these: the pids of those that have not ended yet."""
    killed = [pid for pid in _children() if pid not in spared]
    for pid in killed:  # a pid is its own until it is reaped, which only this process does
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return [pid for pid in killed if not _reaped(pid)]


def end_descendants(limit_s: float) -> list[int]:
    """SIGKILL to all that descends from this process. The pids of what the kernel has not ended within the limit."""
    until = time.monotonic() + limit_s
    while left := kill_children():
        if time.monotonic() >= until:
            return left
        time.sleep(LOOK_EVERY_S)
    return []


def _reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _children() -> list[int]:
    own = os.getpid()
    try:
        return [int(pid) for pid in Path(f"/proc/{own}/task/{own}/children").read_text().split()]
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        return [child.pid for child in psutil.Process().children()]

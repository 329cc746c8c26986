"""Processes in the kernel's view: their entries in /proc, and handles that are safe when a pid is reused.

Rules: a pid alone does not identify a process, because the kernel may reuse it after the parent has reaped the process.
The pid and the start time together do. A Handle is a pidfd; on a kernel without pidfds (before 5.3) it compares the
start time before each signal. An unreadable entry means that the process has ended. If /proc belongs to another PID
namespace, as after `unshare --pid` alone, the table is empty, because its pids are not valid here.
"""

import contextlib
import os
import signal
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Optional

EXISTS = 0  # signal 0: tests only whether the process exists


@dataclass(frozen=True)
class ProcessEntry:
    """A line of the process table. state: the kernel's letter, such as D for an uninterruptible sleep."""

    pid: int
    parent: int
    group: int
    started: int  # clock ticks since the boot
    state: str
    name: str

    @property
    def identity(self) -> tuple[int, int]:
        return self.pid, self.started

    def __str__(self) -> str:
        return f"{self.name} pid={self.pid}"


def entry(pid: int) -> Optional[ProcessEntry]:
    return _read(pid) if _is_ours() else None


def entries() -> list[ProcessEntry]:
    """All visible processes. One that starts or ends during the call may be missing."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()] if _is_ours() else []
    found = (_read(pid) for pid in pids)
    return [one for one in found if one is not None]


def _is_ours() -> bool:
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def _read(pid: int) -> Optional[ProcessEntry]:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            head, _, tail = file.read().rpartition(")")
    except OSError:
        return None
    fields = tail.split()
    return ProcessEntry(pid, int(fields[1]), int(fields[2]), int(fields[19]), fields[0], head.partition("(")[2])


def has_default_action(pid: int, number: int) -> bool:
    """Whether the process neither handles nor ignores a signal; True if that cannot be read."""
    masks = {}
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        masks = dict(line.split(":", 1) for line in file if line.startswith(("SigIgn:", "SigCgt:")))
    return not any(int(mask, 16) & 1 << number - 1 for mask in masks.values()) if _is_ours() else True


def children() -> list[ProcessEntry]:
    """The children of this process, if it has one thread. Complete, because only this process removes one, by reaping
    it.
    """
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            found = [entry(int(pid)) for pid in file.read().split()]
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        found = [one for one in entries() if one.parent == os.getpid()]
    return [one for one in found if one is not None]


def with_descendants(roots: Iterable[ProcessEntry], table: Collection[ProcessEntry]) -> list[ProcessEntry]:
    """The roots and all their descendants, each once."""
    children: dict[int, list[ProcessEntry]] = {}
    for one in table:
        children.setdefault(one.parent, []).append(one)
    found: dict[int, ProcessEntry] = {}
    left = list(roots)
    while left:
        one = left.pop()
        if one.pid not in found:
            found[one.pid] = one
            left += children.get(one.pid, [])
    return list(found.values())


class Handle:
    """One process. parent: its parent, if that is another process, which may have reaped it already."""

    def __init__(self, pid: int, parent: Optional[int] = None) -> None:
        self._pid, self._fd = pid, _open(pid)
        now = entry(pid)  # read after the open: the entry is of the descriptor's process, or of a later process
        self._started = now.started if now is not None else None
        if parent is not None and now is not None and now.parent != parent:
            self.close()

    def send(self, number: int) -> bool:
        """Whether the process existed and got the signal; true for a zombie. Raises PermissionError."""
        with contextlib.suppress(ProcessLookupError):
            if self._fd >= 0:
                signal.pidfd_send_signal(self._fd, number)
                return True
            now = entry(self._pid)
            if now is not None and now.started == self._started:
                os.kill(self._pid, number)
                return True
        return False

    def kill(self) -> None:
        with contextlib.suppress(PermissionError):
            self.send(signal.SIGKILL)

    def close(self) -> None:
        self._started = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def kill(found: ProcessEntry) -> bool:
    """Whether the process will end: False if it has ended, or runs as a user that we may not signal."""
    handle = Handle(found.pid)
    try:
        now = entry(found.pid)
        return now is not None and now.started == found.started and handle.send(signal.SIGKILL)
    except PermissionError:
        return False
    finally:
        handle.close()


def _open(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # Python was built without it, or the kernel or its seccomp filter refuses it
        return -1

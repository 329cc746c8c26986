"""Whether the kernel has killed processes of this container because memory ran out, as its control group counts them.

Where a container is killed whole (cgroup v2 with memory.oom.group, which kubelets set) the launcher dies too, and the
pod's status tells it. Elsewhere one process dies: a worker by SIGKILL from nowhere, or a child of its, whose end the
worker reports in words of its own. Rules: what is counted is told once, with the first failure after it. A kernel that
counts nothing (before 4.13), or a container that cannot see its group, tells nothing.
"""

import os
from typing import Optional

CGROUPS = "/sys/fs/cgroup"
OWN_CGROUP = "/proc/self/cgroup"
_KILLS = "oom_kill"
#: What version 1 says where there is none, rounded down to pages: nobody sets such a limit.
_NO_LIMIT = 1 << 62


class OomKills:
    """Counts from its making on, or from the last `forget`."""

    def __init__(self, cgroups: str = CGROUPS, own: str = OWN_CGROUP) -> None:
        self._counter, self._limit = _files(cgroups, own)
        self._counted = self._count()

    def forget(self) -> None:
        """What was counted so far belongs to what has passed."""
        self._counted = self._count()

    def describe_new_kills(self) -> str:
        """What is new, in words; "" if nothing is."""
        count = self._count()
        new, self._counted = count - self._counted, count
        if new <= 0:
            return ""
        processes = "a process" if new == 1 else f"{new} processes"
        limit = self._limit_text()
        return f"out of memory: the kernel has killed {processes} of this container" + (limit and f" (limit {limit})")

    def _count(self) -> int:
        for line in _read(self._counter).splitlines():
            name, _, value = line.partition(" ")
            if name == _KILLS and value.isdigit():
                return int(value)
        return 0

    def _limit_text(self) -> str:
        text = _read(self._limit).strip()
        if not text.isdigit() or int(text) >= _NO_LIMIT:
            return ""
        limit = int(text)
        for unit, shift in (("Gi", 30), ("Mi", 20), ("Ki", 10)):
            if limit % (1 << shift) == 0:
                return f"{limit >> shift}{unit}"
        return str(limit)


def _files(cgroups: str, own: str) -> "tuple[Optional[str], Optional[str]]":
    """Where the counter and the limit are: in the group's own folder, or at the top, where a container sees its own."""
    for line in _read(own).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, counter, limit = cgroups, "memory.events", "memory.max"
        elif "memory" in controllers.split(","):
            top, counter, limit = os.path.join(cgroups, "memory"), "memory.oom_control", "memory.limit_in_bytes"
        else:
            continue
        for folder in (os.path.join(top, path.lstrip("/")), top):
            if _KILLS in _read(os.path.join(folder, counter)):
                return os.path.join(folder, counter), os.path.join(folder, limit)
    return None, None


def _read(path: Optional[str]) -> str:
    if path is None:
        return ""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""

"""Detects from the control group's counters that the kernel has killed processes of this container for lack of memory.

If the kernel kills the whole container (cgroup v2 with memory.oom.group, which kubelets set), the launcher dies too,
and the pod's status shows it. Otherwise one process dies: a worker, which ends by an unexplained SIGKILL, or a child of
a worker, which the worker reports in its own words. Rules: each kill is reported once, with the first failure after it.
No kill is reported if the kernel does not count (before 4.13) or the container cannot see its group.
"""

import os
from typing import Optional

CGROUPS = "/sys/fs/cgroup"
OWN_CGROUP = "/proc/self/cgroup"
_KILLS = "oom_kill"
#: cgroup v1 shows at least this value for "no limit", rounded down to pages.
_NO_LIMIT = 1 << 62


class OomKills:
    """Counts kills since its creation, or since the last `forget`."""

    def __init__(self, cgroups: str = CGROUPS, own: str = OWN_CGROUP) -> None:
        self._counter, self._limit = _files(cgroups, own)
        self._counted = self._count()

    def forget(self) -> None:
        """Ignore the kills so far."""
        self._counted = self._count()

    def describe_new_kills(self) -> str:
        """A text about new kills; "" if there are none."""
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
    """The paths of the counter and the limit: in the group's folder, or at the top, where a container sees its own
    group.
    """
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

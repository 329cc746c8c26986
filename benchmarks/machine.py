"""The machine that a benchmark runs on: its facts, its limits, and what a process of it takes (from /proc)."""

from __future__ import annotations

import os
import platform
import resource
import time
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """What a process has taken so far. cpu_s: all its threads, user and system, in ticks of 10 ms."""

    cpu_s: float
    rss_mb: float

    @classmethod
    def of(cls, pid: int) -> Usage:
        # The command's name may hold spaces and brackets; what follows it does not.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
        resident_kb = next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
        return cls((int(fields[11]) + int(fields[12])) / _TICKS_PER_S, resident_kb / 1024)


def take_open_files() -> None:
    """All the open files that this process may have: thousands of connections end in it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def facts() -> dict[str, str]:
    """What a reader has to know to compare numbers."""
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    models = (x.partition(":")[2].strip() for x in _lines("/proc/cpuinfo") if x.startswith("model name"))
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cores": f"{os.cpu_count()} ({next(models, platform.machine())})",
        "memory": f"{memory_gb:.0f} GB",
        "kernel": platform.release(),
        "Python": platform.python_version(),
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()

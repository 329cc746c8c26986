"""The machine that a benchmark runs on: its facts, its limits, and the resources that a process uses (from /proc)."""

from __future__ import annotations

import os
import platform
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PACKETS = 100_000
_BACKLOG = Path("/proc/sys/net/core/netdev_max_backlog")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """The resources that a process has used so far. cpu_s: all its threads, user and system, in ticks of 10 ms."""

    cpu_s: float
    rss_mb: float
    peak_rss_mb: float

    @classmethod
    def of(cls, pid: int) -> Usage:
        # The command's name may contain spaces and brackets; the text after it does not.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        result = [line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
        kilobytes = {words[0]: int(words[1]) for words in result if words[0] in ("VmRSS:", "VmHWM:")}
        cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
        return cls(cpu_s, kilobytes["VmRSS:"] / 1024, kilobytes["VmHWM:"] / 1024)


def take_open_files() -> None:
    """Raise the limit of open files to its maximum: thousands of connections end in this process."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextmanager
def room_for_packets() -> Iterator[None]:
    """While this lasts, let the machine queue more packets than the kernel's usual 1,000 for each core.

    All members' packets come through one loopback here: ten thousand probes a second, in bursts. If packets are
    dropped, healthy connections end. Prints a message if this process may not change the limit.
    """
    try:
        before = _BACKLOG.read_text()
        _BACKLOG.write_text(f"{max(int(before), PACKETS)}\n")
    except OSError as error:
        print(f"{_BACKLOG} stays as it is ({error.strerror}): above 4,000 members packets may be lost", flush=True)
        yield
        return
    try:
        yield
    finally:
        _BACKLOG.write_text(before)


def facts() -> dict[str, str]:
    """The facts that a reader needs to compare numbers."""
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

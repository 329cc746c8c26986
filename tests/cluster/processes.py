"""Starts the cluster's long-running programs, finds them again, and ends them.

A program outlives the command that started it. A small record of it is kept: its pid,
its start time (another process may have the pid by now), and a digest of its command
and configuration. Rules:
- `ensure` starts programs that do not run, and restarts those with another digest.
- Before a start, remaining processes in the program's own control group are killed, so a
  command that was itself killed between start and record leaves no second copy.
- A program joins its control group and its node's namespaces before its first
  instruction, so no process that it starts can be outside.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from .cgroups import ControlGroup
from .commands import run, tail, wait_until
from .failures import ComponentFailed
from .host_tools import SEARCH_PATH, tool
from .paths import Paths

LOG_LIMIT_BYTES = 50_000_000
END_LIMIT_S = 10.0

# $1 the control group's members file, $2 the log, then the command. Writing 0 moves the writer.
# The soft limit of open files becomes the hard one, which the containers inherit.
LAUNCH = (
    "members=$1 log=$2; shift 2; "
    '( echo 0 > "$members" && ulimit -n "$(ulimit -H -n)" && exec setsid "$@" ) >> "$log" 2>&1 < /dev/null & echo $!'
)


@dataclass(frozen=True)
class Record:
    """The record of a started program."""

    pid: int
    start_time: int  # clock ticks since boot, field 22 of /proc/<pid>/stat
    digest: str

    def runs(self) -> bool:
        """Whether this very process still runs: same pid, same start time, no zombie."""
        return start_time(self.pid) == self.start_time

    def started_at(self) -> float:
        """When the process was started, in seconds of the epoch."""
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        return time.time() - uptime + self.start_time / os.sysconf("SC_CLK_TCK")

    @classmethod
    def read(cls, file: Path) -> Record | None:
        try:
            kept = json.loads(file.read_text())
            return cls(int(kept["pid"]), int(kept["start_time"]), str(kept["digest"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(".new")
        unfinished.write_text(json.dumps(asdict(self)))
        unfinished.rename(file)


@dataclass(frozen=True)
class Component:
    """A long-running program: `name` is unique in the cluster, like kubelet-node1."""

    name: str
    group: ControlGroup
    argv: Sequence[str | Path]
    configuration: str = ""  # other input of its start; a change restarts it
    settings: Sequence[str] = ()  # arguments before argv, such as nsenter and its options; not part of the digest

    @property
    def digest(self) -> str:
        content = "\0".join(map(str, self.argv)) + "\0" + self.configuration
        return hashlib.sha256(content.encode()).hexdigest()[:16]


def start_time(pid: int) -> int | None:
    """A process's start in clock ticks since boot; None if there is none, or a zombie."""
    try:
        return parse_start_time(Path(f"/proc/{pid}/stat").read_text())
    except OSError:
        return None


def parse_start_time(stat: str) -> int | None:
    """Field 22 of /proc/<pid>/stat. The second field, the program's name, may contain spaces and brackets."""
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])


@dataclass(frozen=True)
class Processes:
    """The programs of the cluster whose records and logs are in `paths`."""

    paths: Paths

    def record_file(self, name: str) -> Path:
        return self.paths.records / f"{name}.json"

    def log_file(self, name: str) -> Path:
        return self.paths.logs / f"{name}.log"

    def running(self, name: str) -> Record | None:
        """The record of a component, if it runs."""
        record = Record.read(self.record_file(name))
        return record if record and record.runs() else None

    def ensure(self, component: Component) -> bool:
        """Start a component unless it runs with this digest. Returns whether it was started now."""
        record = self.running(component.name)
        if record and record.digest == component.digest:
            return False
        self.end(component.name, component.group, str(component.argv[0]))
        self._start(component)
        return True

    def _start(self, component: Component) -> None:
        component.group.ensure()
        log = self.log_file(component.name)
        log.parent.mkdir(parents=True, exist_ok=True)
        if log.exists() and log.stat().st_size > LOG_LIMIT_BYTES:
            log.rename(log.with_suffix(".log.old"))
        command = [*component.settings, *component.argv]
        # /bin/sh with an environment of its own: neither proxies nor credentials of the caller reach the cluster.
        clean = [
            "env",
            "-i",
            f"PATH={self.paths.binaries}:{SEARCH_PATH}",
            "HOME=/root",
            "GOGC=400",  # small heaps: collecting garbage less often saves a part of two cores
            tool("sh"),
            "-c",
            LAUNCH,
            "launch",
        ]
        pid = int(run([*clean, component.group.members_file, log, *command]))
        started = start_time(pid)
        if started is None:
            raise self.failure(component.name, "ended at once")
        Record(pid, started, component.digest).write(self.record_file(component.name))

    def end(self, name: str, group: ControlGroup, program: str) -> None:
        """SIGKILL a component and other processes of its program in its control group; wait for the end.

        Only the program itself: containerd's shims are in the same group and continue.
        """
        pids = {pid for pid in group.pids() if _program(pid) == os.path.realpath(program)}
        record = self.running(name)
        if record:
            pids.add(record.pid)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(
            lambda: all(start_time(pid) is None for pid in pids),
            limit_s=END_LIMIT_S,
            interval_s=0.02,
            failure=lambda: ComponentFailed(
                f"{name} is still there {END_LIMIT_S:.0f} s after SIGKILL; run `cluster down`"
            ),
        )
        self.record_file(name).unlink(missing_ok=True)

    def failure(self, name: str, problem: str) -> ComponentFailed:
        """The error for a component that failed: its log's last lines, and the fix."""
        log = self.log_file(name)
        lines = tail(log.read_text(errors="replace")) if log.exists() else "    (no log)"
        return ComponentFailed(
            f"{name} {problem}. The last lines of {log}:\n{lines}\n"
            f"  Run `cluster up` again, which starts what is dead; if that fails too, `cluster down --purge` first."
        )

    def check_alive(self, name: str) -> Record:
        """A component's record. Raises ComponentFailed, with its last log lines, if it has ended."""
        record = self.running(name)
        if record is None:
            raise self.failure(name, "has ended")
        return record


def _program(pid: int) -> str:
    """The program file that a process runs; empty if it is gone."""
    try:
        return os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")
    except OSError:
        return ""

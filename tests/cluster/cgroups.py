"""The cluster's control groups: the processes of each machine, and how to freeze or kill all of them.

    understudy/control-plane/<component>     etcd, kube-apiserver, …; the LAN's switch
    understudy/<node>/daemons/<component>    the node's init, kubelet, containerd with its shims, kube-proxy
    understudy/<node>/kubepods/…             the pods: the kubelet's cgroupRoot is understudy/<node>

So one subtree is one machine, whatever its processes do. On cgroup v1 membership
is kept in the freezer hierarchy, and a kill is freeze, SIGKILL to all, thaw: no process
sees another one die. On cgroup v2 the kernel has cgroup.freeze and cgroup.kill.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from .failures import ComponentFailed

ROOT = Path("/sys/fs/cgroup")
TREE = "understudy"
#: The CPU shares of the control plane and all pods together on a busy machine; sessions and daemons have 1024 each.
#: With 1024 too, the pods of two tests at a time waited for the other processes.
TREE_CPU_SHARES = 8192
#: Within them, a node's pods have 1024. When the apiserver was a daemon like the others, it got a quarter of a core on
#: two busy cores, and once answered nothing for 12 s.
CONTROL_PLANE_CPU_SHARES = 8192
FREEZE_LIMIT_S = 5.0
KILL_LIMIT_S = 15.0


def unified() -> bool:
    """Whether the machine has only cgroup v2."""
    return (ROOT / "cgroup.controllers").exists()


@dataclass(frozen=True)
class ControlGroup:
    """One subtree; `path` is relative to the hierarchy's root: understudy/node1."""

    path: str

    @property
    def folder(self) -> Path:
        """Its folder in the hierarchy that keeps the membership."""
        return (ROOT if unified() else ROOT / "freezer") / self.path

    @property
    def members_file(self) -> Path:
        return self.folder / "cgroup.procs"

    def child(self, name: str) -> ControlGroup:
        return ControlGroup(f"{self.path}/{name}")

    def ensure(self) -> None:
        """Create the folder. On cgroup v2, delegate its controllers, as runc's limits need them."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if unified():
            for parent in reversed(self.folder.parents):
                if parent.is_relative_to(ROOT) and parent != self.folder:
                    _delegate(parent)

    def ensure_everywhere(self) -> None:
        """Create the folder in every hierarchy of cgroup v1, where the kubelet looks for its root."""
        self.ensure()
        for hierarchy in [] if unified() else _hierarchies():
            (hierarchy / self.path).mkdir(parents=True, exist_ok=True)

    @property
    def cpu_folder(self) -> Path:
        """Its folder in the hierarchy that divides the CPU time; a process joins by its id in cgroup.procs there."""
        return (ROOT if unified() else ROOT / "cpu") / self.path

    def set_cpu_shares(self, shares: int) -> None:
        """Set the part of the CPU time that all processes of the subtree have together on a busy machine."""
        if unified():
            (self.cpu_folder / "cpu.weight").write_text(str(shares * 100 // 1024))
        else:
            (self.cpu_folder / "cpu.shares").write_text(str(shares))

    def take_cpu_time_of(self, pid: int) -> None:
        """Count a process's CPU time here. On cgroup v2 that is so for every member."""
        if not unified():
            self.cpu_folder.mkdir(parents=True, exist_ok=True)
            (self.cpu_folder / "cgroup.procs").write_text(str(pid))

    def pids(self) -> list[int]:
        """The host's process ids in the whole subtree."""
        found: list[int] = []
        for folder, _, files in os.walk(self.folder):
            if "cgroup.procs" in files:
                with contextlib.suppress(OSError):
                    found += map(int, (Path(folder) / "cgroup.procs").read_text().split())
        return found

    def frozen(self) -> bool:
        """Whether the subtree is frozen."""
        try:
            if unified():
                return (self.folder / "cgroup.freeze").read_text().strip() == "1"
            return (self.folder / "freezer.state").read_text().strip() != "THAWED"
        except OSError:
            return False

    def freeze(self) -> None:
        """Freeze every process of the subtree.

        Raises ComponentFailed if a process is not frozen after 5 s (one in uninterruptible sleep).
        """
        deadline = time.monotonic() + FREEZE_LIMIT_S
        while not self._write_frozen():
            if time.monotonic() >= deadline:
                raise ComponentFailed(
                    f"{self.path} did not freeze within {FREEZE_LIMIT_S:.0f} s; thaw it and try again"
                )
            time.sleep(0.01)

    def thaw(self) -> None:
        """Thaw the subtree, whichever part of it was frozen. Does nothing if it does not exist."""
        name, value = ("cgroup.freeze", "0") if unified() else ("freezer.state", "THAWED")
        for folder, _, files in os.walk(self.folder):
            if name in files:
                with contextlib.suppress(FileNotFoundError):
                    (Path(folder) / name).write_text(value)

    def _write_frozen(self) -> bool:
        if unified():
            (self.folder / "cgroup.freeze").write_text("1")
            return "frozen 1" in (self.folder / "cgroup.events").read_text()
        state = self.folder / "freezer.state"
        state.write_text("FROZEN")
        return state.read_text().strip() == "FROZEN"

    def kill(self) -> None:
        """SIGKILL every process of the subtree at once, and wait until none is left.

        Raises ComponentFailed if one is still there after 15 s.
        """
        deadline = time.monotonic() + KILL_LIMIT_S
        while self.pids():
            if unified():
                (self.folder / "cgroup.kill").write_text("1")
            else:
                self._kill_frozen()
            if _wait_for_end(self, 0.5):
                return
            if time.monotonic() >= deadline:
                raise ComponentFailed(
                    f"processes {self.pids()} of {self.path} are still there {KILL_LIMIT_S:.0f} s after SIGKILL; "
                    f"see /proc/<pid>/stack for what holds them, and try again"
                )
        self.thaw()

    def _kill_frozen(self) -> None:
        with contextlib.suppress(ComponentFailed):  # also kill processes that could not be frozen
            self.freeze()
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.thaw()

    def remove(self) -> None:
        """Remove the empty subtree from every hierarchy (runc creates one in each)."""
        for hierarchy in _hierarchies():
            for folder, _, _ in os.walk(hierarchy / self.path, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)


def _hierarchies() -> list[Path]:
    return [ROOT] if unified() else [entry for entry in ROOT.iterdir() if entry.is_dir()]


def _wait_for_end(group: ControlGroup, limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while group.pids():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.01)
    return True


def _delegate(folder: Path) -> None:
    for controller in (folder / "cgroup.controllers").read_text().split():
        with contextlib.suppress(OSError):  # runc does without a controller that cannot be delegated
            (folder / "cgroup.subtree_control").write_text(f"+{controller}")


def machine(name: str) -> ControlGroup:
    """The subtree of a machine: a node's name, or control-plane."""
    return ControlGroup(f"{TREE}/{name}")

"""A training that runs on nodes: the interface that all systems share, and functions that watch processes.

A node is a network namespace with all processes that one machine would run. Times are time.monotonic().
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from benchmarks.child import LOGS, ChildFailed, Unfinished
from benchmarks.install import Peers
from benchmarks.recovery.plan import NODES, SAVE_S, Case, Session
from benchmarks.recovery.reports import POLL_S, Reports
from benchmarks.rendezvous.network import Node

TRAIN = Path(__file__).with_name("train.py")
START_S = 120.0
#: The time after a start in which no fault is caused.
SETTLE_S = 1.0


class Training(ABC):
    def __init__(self, session: Session, reports: Reports, installed: Peers, nodes: Sequence[Node]) -> None:
        """nodes: four, one more for a spare, and one more for a store apart."""
        self.reports, self.nodes, self.spares = reports, nodes, session.spares
        self.python = installed.python
        self.env = {
            **os.environ,
            "BENCH_REPORTS": str(reports.path),
            "BENCH_SAVE_S": str(SAVE_S if session.case is Case.WORKER_GRACE_SAVE else 0.0),
            "GLOO_SOCKET_IFNAME": "far",
            "TORCH_CPP_LOG_LEVEL": "ERROR",
            "RES_OPTIONS": "attempts:1 timeout:1",  # a node reaches no DNS server
        }

    @abstractmethod
    def alive(self) -> str:
        """Why the training cannot continue; "" while it can."""

    @abstractmethod
    def ready(self) -> None:
        """Returns once each lost process was replaced, and the spare, if there is one, can take a rank at once."""

    @abstractmethod
    def power_off_node(self) -> float:
        """Power off a node that trains, and hosts neither coordinator nor store. Returns the time."""

    @abstractmethod
    def power_off_coordinator(self) -> float:
        """Power off a node that trains, and hosts the coordinator or the store. Returns the time."""

    @abstractmethod
    def spare(self) -> int:
        """The process id of the spare's launcher."""

    def stop(self) -> None:
        """End all remaining processes."""
        for node in self.nodes:
            node.end_processes()

    def spare_exit(self, limit_s: float) -> float:
        """Let the training end: seconds from the end of its last worker to that of the spare. Raises Unfinished."""
        workers, spare = [self.reports.pid_of(rank) for rank in range(NODES)], self.spare()
        with contextlib.ExitStack() as open_files:
            watched = {pid: _watch(pid, open_files) for pid in (*workers, spare)}
            self.reports.end()
            ends = _ends(watched, limit_s)
        return ends[spare] - max(ends[worker] for worker in workers)

    def rank_to_kill(self, run: int) -> int:
        return run % NODES

    def kill_worker(self, rank: int) -> float:
        pid = self.reports.pid_of(rank)
        at = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        return at

    def await_start(self) -> None:
        """Wait until all ranks step."""
        self.reports.last_of_all("step", 0.0, START_S + time.monotonic(), self.alive)

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def until(condition: Callable[[], bool], description: str) -> None:
    deadline = time.monotonic() + START_S
    while not condition():
        if time.monotonic() > deadline:
            raise ChildFailed(f"{description}: not within {START_S:g} s; the logs are in {LOGS}")
        time.sleep(POLL_S)


def is_idle(process: psutil.Process) -> bool:
    """Whether its imports are finished: it uses almost no CPU time."""
    return process.cpu_percent(1.0) < 10.0


def _watch(pid: int, open_files: contextlib.ExitStack) -> int:
    """A file descriptor that becomes readable when the process ends."""
    pidfd = os.pidfd_open(pid)
    open_files.callback(os.close, pidfd)
    return pidfd


def _ends(watched: Mapping[int, int], limit_s: float) -> dict[int, float]:
    """When each process ended. Raises Unfinished if one does not."""
    deadline, ends = time.monotonic() + limit_s, dict[int, float]()
    left = {pidfd: pid for pid, pidfd in watched.items()}
    while left:
        ready, _, _ = select.select(list(left), (), (), max(0.0, deadline - time.monotonic()))
        if not ready:
            raise Unfinished(f"{len(left)} processes have not ended within {limit_s:g} s", limit_s)
        ends |= {left.pop(pidfd): time.monotonic() for pidfd in ready}
    return ends

"""The workers of torchrun's agent: found in /proc, watched by pidfd, signaled with their groups, and never reaped.

A worker is a child of this process that leads a session and has the round in its environment, as torchrun starts
programs. With --run-path torchrun starts them differently; then no worker is found, and torchrun alone handles them.

Rules: a worker's exit status is read without reaping it (WNOWAIT), because its parent waits for it too. If the parent
reaps it first, the status stays unknown: no exit code, no signal. Until a worker is reaped, the number of its group is
not reused. Without pidfds no worker is found.
"""

import contextlib
import math
import os
import signal
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Callable, Optional

from understudy_launcher import error_files, process_table
from understudy_launcher.events import Aim, Survivor, WorkerEnded, WorkerRaised
from understudy_launcher.processes import worker_ended
from understudy_protocol import pod

_NUMBERS = {
    Aim.TERM_WORKER: signal.SIGTERM,
    Aim.TERM_GROUP: signal.SIGTERM,
    Aim.KILL_GROUP: signal.SIGKILL,
    Aim.STOP_GROUP: signal.SIGSTOP,
}
_UNSEEN = "it has ended; see the exit code that torchrun logged"


class SearchSchedule:
    """When to look for workers that torchrun is about to start: often at first, then ever less often, without an end.

    A busy machine may take long to start them. A worker that is not found gets no signal and delays the next round.
    """

    OFTEN_S = 5.0
    EVERY_S = 0.02
    GROWTH = 0.01

    def __init__(self) -> None:
        self._began = self._looked = -math.inf

    def begin(self, now: float) -> None:
        """Torchrun is about to start a round's workers."""
        self._began, self._looked = now, -math.inf

    def is_due(self, now: float) -> bool:
        """Whether to look now, when another event has woken the thread."""
        since = now - self._began
        return since < self.OFTEN_S or now >= self._looked + since * self.GROWTH

    def searched(self, now: float) -> None:
        self._looked = now

    def next(self, now: float) -> float:
        """When to look without another event."""
        return now + max(self.EVERY_S, (now - self._began) * self.GROWTH)


@dataclass
class _Worker:
    pid: int
    local_rank: int
    error_file: Optional[str]
    started_at: float  # a lower bound, Unix seconds
    may_raise: bool = True  # its exception is not known yet, and would not be due to a signal from here


class TorchrunWorkers:
    """The workers of one round. `watch` and `unwatch` get the pidfds to select for reading."""

    def __init__(self, watch: Callable[[int], None], unwatch: Callable[[int], None]) -> None:
        self._watch, self._unwatch = watch, unwatch
        self._round: Optional[str] = None  # None: no worker is looked for
        self._began_at = 0.0
        self._expected = 0  # 0: not known yet
        self._running: dict[int, _Worker] = {}  # by pidfd
        self._pids: set[int] = set()  # of all workers that were found
        self._local_ranks: set[int] = set()  # of these, and of workers that ended before they were found

    @property
    def complete(self) -> bool:
        """Whether no worker is missing."""
        return self._round is None or 0 < self._expected <= len(self._local_ranks)

    @property
    def expected(self) -> int:
        """The number of workers that torchrun starts; 0 if not known yet."""
        return self._expected

    def begin(self, token: str) -> None:
        """Look for the workers of another round."""
        self.forget_all()
        self._pids.clear()
        self._local_ranks.clear()
        self._round, self._expected, self._began_at = token, 0, time.time()

    def forget_all(self) -> None:
        for fd in list(self._running):
            self._forget(fd)

    def find(self) -> Collection[int]:
        """The local ranks of running workers that were not found before."""
        if self.complete:
            return []
        found = [self._add(pid) for pid in self._unknown()]
        return [local_rank for local_rank in found if local_rank is not None]

    def ended_unseen(self) -> list[WorkerEnded]:
        """Once all workers have been started: those that ended before they were found. Each is returned once."""
        if self.complete or not self._expected or self._unknown():
            return []
        missing = set(range(self._expected)) - self._local_ranks
        self._local_ranks |= missing
        return [WorkerEnded(local_rank, None, None, 0, _UNSEEN, time.time()) for local_rank in sorted(missing)]

    def signal(self, aim: Aim) -> None:
        for worker in self._running.values():
            worker.may_raise = False
            _send(worker.pid, _NUMBERS[aim])

    def signal_group(self, local_rank: int, aim: Aim) -> None:
        """Signal the processes of one worker, which may have just ended."""
        for worker in self._running.values():
            if worker.local_rank == local_rank:
                worker.may_raise = False
                _send(worker.pid, _NUMBERS[aim])

    def group_of(self, local_rank: int) -> Optional[int]:
        """The process group of a running worker."""
        return next((worker.pid for worker in self._running.values() if worker.local_rank == local_rank), None)

    def read_exceptions(self) -> list[WorkerRaised]:
        """The exceptions of running workers that were not returned before."""
        found = []
        for worker in self._running.values():
            if worker.may_raise:
                raised = error_files.raised(worker.error_file, worker.local_rank, worker.started_at)
                worker.may_raise = raised is None
                found.append(raised)
        return [raised for raised in found if raised is not None]

    def survivors(self) -> list[Survivor]:
        """The workers that have not ended."""
        found = ((worker, process_table.entry(worker.pid)) for worker in self._running.values())
        return [Survivor(worker.local_rank, one.pid, one.state, one.name) for worker, one in found if one is not None]

    def ended(self, fd: int) -> Optional[WorkerEnded]:
        """How the worker of a readable pidfd has ended. signal_group can reach it until forget()."""
        worker = self._running.get(fd)
        return None if worker is None else _end(worker)

    def forget(self, fd: int) -> None:
        if fd in self._running:
            self._forget(fd)

    def _unknown(self) -> list[int]:
        """Processes that may be workers: the kernel shows a program's environment only a moment after its start."""
        return [pid for pid in _session_leaders(os.getpid()) if pid not in self._pids]

    def _forget(self, fd: int) -> None:
        del self._running[fd]
        self._unwatch(fd)
        os.close(fd)

    def _add(self, pid: int) -> Optional[int]:
        env = _environment(pid)
        if env.get(pod.ENV_ROUND) != self._round or "RANK" not in env:
            return None  # no worker, or not yet
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            return None
        self._expected = int(env["LOCAL_WORLD_SIZE"])
        local_rank = int(env["RANK"]) % self._expected  # LOCAL_RANK may be 0 for all (--virtual-local-rank)
        self._pids.add(pid)
        self._local_ranks.add(local_rank)
        self._running[fd] = _Worker(pid, local_rank, env.get("TORCHELASTIC_ERROR_FILE"), self._began_at)
        self._watch(fd)
        return local_rank


def _end(worker: _Worker) -> WorkerEnded:
    failure = error_files.read(worker.error_file)
    try:
        error = os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        error = None
    if error is None:
        at = failure.time_of(worker.started_at, time.time())
        return WorkerEnded(worker.local_rank, None, None, 0, failure.message or _UNSEEN, at, failure.traceback)
    code = error.si_status if error.si_code == os.CLD_EXITED else -error.si_status
    return worker_ended(worker.local_rank, code, failure, worker.started_at)


def _send(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _session_leaders(parent: int) -> list[int]:
    """The children that lead their own session."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in pids if _parent_and_session(pid) == (parent, pid)]


def _parent_and_session(pid: int) -> tuple[int, int]:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            state, parent, _, session = file.read().rpartition(")")[2].split()[:4]
    except OSError:
        return 0, 0
    return (int(parent), int(session)) if state not in "ZX" else (0, 0)


def _environment(pid: int) -> Mapping[str, str]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return {}
    pairs = (os.fsdecode(entry).partition("=") for entry in entries)
    return {name: value for name, _, value in pairs}

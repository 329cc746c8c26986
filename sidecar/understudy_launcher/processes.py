"""The workers as processes: spawning, signalling, reaping, and the pipe on which each tells its steps.

A worker is a fresh process, or forked by the zygote (zygote.py).

Rules: each worker is the leader of a session and process group of its own, so that its children (DataLoader workers,
what a shell started) can be killed with it. As pid 1 or subreaper we reap whatever ends, ours or inherited. A group's
number is used only while something is left of the group: afterwards the kernel may give it to others. stdin, stdout
and stderr are inherited. The zygote reaps what it has forked, and tells us; once it is gone we do.
"""

import contextlib
import errno
import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Callable, Optional, Union

from understudy_launcher import error_files, prctl
from understudy_launcher.events import Aim, GroupEmptied, StepsRead, WorkerEnded
from understudy_launcher.steps import StepLines
from understudy_launcher.zygote import Zygote

#: The pipe's number in the worker is high, where nothing that a script opens lands by chance: in a child that closed
#: it, a low one would soon be somebody else's file.
STEP_FD_FROM = 200
_PIPE_READ = 1 << 16

_AIMS = {
    Aim.TERM_WORKER: (os.kill, signal.SIGTERM),
    Aim.TERM_GROUP: (os.killpg, signal.SIGTERM),
    Aim.KILL_GROUP: (os.killpg, signal.SIGKILL),
}


@dataclass
class _Worker:
    local_rank: int
    pid: int  # and its group's number
    steps: int  # read end of its pipe, -1 once closed
    error_file: Optional[str]
    ended: bool = False
    lines: StepLines = field(default_factory=StepLines)


class Workers:
    """The processes of one member's workers. `watch` and `unwatch` hear of pipes to be selected for reading."""

    def __init__(self, command: Sequence[str], watch: Callable[[int], None], unwatch: Callable[[int], None]) -> None:
        self._command = list(command)
        self._watch, self._unwatch = watch, unwatch
        self._workers: dict[int, _Worker] = {}
        self._before_exec = prctl.dies_with_parent()

    def spawn(
        self, local_rank: int, make_env: Callable[[int], Mapping[str, str]], error_file: Optional[str]
    ) -> list[Union[WorkerEnded, GroupEmptied]]:
        """Start a worker; `make_env` gets its step pipe's number. A command that cannot run fails: its events."""
        read_end, write_end = _step_pipe()
        try:
            process = subprocess.Popen(
                self._command,
                env=make_env(write_end),
                pass_fds=(write_end,),
                start_new_session=True,
                preexec_fn=self._before_exec,  # safe: we have one thread
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            os.close(read_end)
            missing = isinstance(error, OSError) and error.errno == errno.ENOENT
            return not_started(local_rank, 127 if missing else 126, f"cannot start {self._command[0]!r}: {error}")
        finally:
            os.close(write_end)
        process.returncode = 0  # it is reaped here: Popen need not look for it
        self._add(_Worker(local_rank, process.pid, read_end, error_file))
        return []

    def fork(self, zygote: Zygote, workers: Mapping[int, tuple[Mapping[str, str], Optional[str]]]) -> list[int]:
        """Have these forked; the local ranks of those that were not. workers: -> (its variables, its error file)."""
        pipes = {local_rank: _step_pipe() for local_rank in workers}
        pids = zygote.fork({local_rank: (env, pipes[local_rank][1]) for local_rank, (env, _) in workers.items()})
        for local_rank, (read_end, write_end) in pipes.items():
            os.close(write_end)
            if local_rank in pids:
                self._add(_Worker(local_rank, pids[local_rank], read_end, workers[local_rank][1]))
            else:
                os.close(read_end)
        return [local_rank for local_rank in workers if local_rank not in pids]

    def _add(self, worker: _Worker) -> None:
        self._workers[worker.local_rank] = worker
        self._watch(worker.steps)

    def signal(self, local_rank: int, aim: Aim) -> None:
        worker = self._workers.get(local_rank)
        if worker is None or (worker.ended and aim is Aim.TERM_WORKER):
            return
        send, number = _AIMS[aim]
        try:
            send(worker.pid, number)
        except ProcessLookupError:
            if not worker.ended:  # forked a moment ago, and leads no group yet
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, number)
        except PermissionError:
            pass

    def kill_all(self) -> None:
        for local_rank in self._workers:
            self.signal(local_rank, Aim.KILL_GROUP)

    def reap(self) -> list[Union[StepsRead, WorkerEnded, GroupEmptied]]:
        """Everything that has ended, ours and orphans alike; then the groups of which nothing is left."""
        events: list[Union[StepsRead, WorkerEnded, GroupEmptied]] = []
        for pid, status in _ended():
            events += self.ended(pid, status)
        for worker in [worker for worker in self._workers.values() if worker.ended and _is_empty(worker.pid)]:
            del self._workers[worker.local_rank]
            events.append(GroupEmptied(worker.local_rank))
        return events

    def ended(self, pid: int, status: int) -> list[Union[StepsRead, WorkerEnded, GroupEmptied]]:
        """A process was reaped, by whomever; nothing follows if it was no worker."""
        worker = next((worker for worker in self._workers.values() if worker.pid == pid and not worker.ended), None)
        return [] if worker is None else self._end(worker, status)

    def lingering(self) -> bool:
        """Whether a group outlives its worker: only the kernel's table tells its end, if its orphans are not ours."""
        return any(worker.ended for worker in self._workers.values())

    def read_steps(self, read_end: int) -> list[StepsRead]:
        """What is in a pipe that became readable."""
        worker = next((worker for worker in self._workers.values() if worker.steps == read_end), None)
        return [] if worker is None else self._read(worker)

    def _end(self, worker: _Worker, status: int) -> list[Union[StepsRead, WorkerEnded, GroupEmptied]]:
        steps = self._read(worker)  # its last step, before its end
        self._close(worker)
        worker.ended = True
        code = os.waitstatus_to_exitcode(status)
        ended = worker_ended(worker.local_rank, code, error_files.message_of(worker.error_file))
        if worker.error_file is not None:
            error_files.forget(worker.error_file)
        return [*steps, ended]

    def _read(self, worker: _Worker) -> list[StepsRead]:
        if worker.steps < 0:
            return []
        try:
            chunk = os.read(worker.steps, _PIPE_READ)
        except BlockingIOError:
            return []
        if not chunk:  # all who could write have closed it
            self._close(worker)
            return []
        steps = worker.lines.feed(chunk)
        return [StepsRead(worker.local_rank, *steps[-1], len(steps), time.time())] if steps else []

    def _close(self, worker: _Worker) -> None:
        if worker.steps >= 0:
            self._unwatch(worker.steps)
            os.close(worker.steps)
            worker.steps = -1


def _step_pipe() -> tuple[int, int]:
    """(read end, write end), both non-blocking: a full pipe must hold up neither side."""
    read_end, low = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        write_end = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, STEP_FD_FROM)
    except OSError:  # RLIMIT_NOFILE is lower than that
        return read_end, low
    os.close(low)
    return read_end, write_end


def _ended() -> list[tuple[int, int]]:
    ended = []
    with contextlib.suppress(ChildProcessError):  # no children at all
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended.append((pid, status))
    return ended


def _is_empty(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # what is left runs as another user: we can do nothing about it
        return True
    return False


def worker_ended(local_rank: int, code: int, message: Optional[str]) -> WorkerEnded:
    """code: as os.waitstatus_to_exitcode has it."""
    if code >= 0:
        return WorkerEnded(local_rank, code, None, code, message or f"exit code {code}", time.time())
    name = _signal_name(-code)
    return WorkerEnded(local_rank, None, name, 128 - code, message or f"killed by {name}", time.time())


def not_started(local_rank: int, code: int, why: str) -> list[Union[WorkerEnded, GroupEmptied]]:
    """What is told of a worker that never was. code: as a shell has it."""
    return [WorkerEnded(local_rank, code, None, code, why, time.time()), GroupEmptied(local_rank)]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

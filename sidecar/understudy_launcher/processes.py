"""The workers' processes: start, signal, reap, and read the steps that each reports (step_page.py).

A worker is a fresh process, or forked by the zygote (zygote.py).

Rules: each worker leads its own session and process group, so that its children (DataLoader workers, a shell's
children) can be killed with it. As pid 1 or subreaper the launcher reaps every child that ends, its own or inherited. A
group's number is used only while the group is not empty, because afterwards the kernel may reuse it. stdin is
inherited; stdout and stderr are pipes (log_process.py), or inherited too. The zygote reaps its forks and reports them;
after its end the launcher reaps them. Until that report the fork's pid may have been reused, so the launcher checks a
pidfd first.

A process that has left its worker's group (setsid, a daemon) is found by descent: the orphans of a dead worker become
the launcher's children. So all children that the launcher has not started are leftovers of workers, with all their
descendants, except those that are older than the launcher. Such a child may also be a process that `kubectl exec` has
put into the background. Leftovers are killed until a scan of the process table finds none, and no child has ended since
this scan began. A scan can miss the child of a process that forks and exits during the scan, but the launcher notices
this exit.
"""

import contextlib
import errno
import os
import signal
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Callable, Optional, Union

from understudy_launcher import error_files, prctl, process_table
from understudy_launcher.error_files import Failure
from understudy_launcher.events import (
    Aim,
    CollectivesRead,
    GroupEmptied,
    LeftoversFound,
    StepsRead,
    Survivor,
    WorkerEnded,
    WorkerRaised,
)
from understudy_launcher.fork_server import ForkServer
from understudy_launcher.groups import LEFTOVERS
from understudy_launcher.log_process import INHERITED, Outputs
from understudy_launcher.out_of_memory import OomKills
from understudy_launcher.process_table import EXISTS, Handle, ProcessEntry
from understudy_launcher.step_page import StepFiles
from understudy_launcher.zygote import ForkRequest

#: The size of a worker's record of its imports: some 6000 modules.
RECORD_BYTES = 1 << 18
_GROUP_SIGNALS = {
    Aim.TERM_GROUP: signal.SIGTERM,
    Aim.KILL_GROUP: signal.SIGKILL,
    Aim.STOP_GROUP: signal.SIGSTOP,
}
Ended = Union[StepsRead, WorkerEnded, GroupEmptied, LeftoversFound]


@dataclass(frozen=True)
class ForkOrder:
    """A worker that the zygote is to fork."""

    env: Mapping[str, str]  # variables that differ from the zygote's
    outputs: Outputs
    error_file: Optional[str]
    dropped: Sequence[str] = ()  # variables of the zygote that the worker does not get
    command: Optional[Sequence[str]] = None  # None: that of the zygote


@dataclass
class _Worker:
    local_rank: int
    pid: int  # also the number of its group
    process: Handle
    steps: Optional[StepFiles]  # None after its end
    error_file: Optional[str]
    started_at: float  # a lower bound, Unix seconds
    killed: bool = False  # by the launcher: its end is no failure
    may_raise: bool = True  # its exception is not known yet, and would not be due to a signal of the launcher

    @property
    def ended(self) -> bool:
        return self.steps is None


class Workers:
    """The processes of one member's workers. `watch` and `unwatch` get the pipes to select for reading.

    folder: for the workers' step files. own: the pids of other children that the launcher has started.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: str,
        watch: Callable[[int], None],
        unwatch: Callable[[int], None],
        own: Callable[[], Collection[int]] = tuple,
    ) -> None:
        self._command, self._folder = list(command), folder
        self._watch, self._unwatch, self._own = watch, unwatch, own
        self._workers: dict[int, _Worker] = {}
        self._earlier = {child.identity for child in process_table.children()}  # children older than the launcher
        self._sweeping = False  # while leftovers are killed
        self._reported_leftovers: set[tuple[int, int]] = set()
        self._before_exec = prctl.dies_with_parent()
        self.oom_kills = OomKills()
        self.keeps_error_files = False  # a torchrun's error files stay
        self.snapshot_files: Mapping[int, int] = {}  # by local rank: files that its workers inherit
        self.record: Optional[int] = None  # the imports of the last worker that was to record them
        self.on_other_end: Callable[[int, int], None] = lambda pid, status: None  # another child was reaped

    def keep_children(self) -> None:
        """The present children are not leftovers of workers: the container's command has started them."""
        self._earlier |= {child.identity for child in process_table.children()}

    def run(self, command: Sequence[str]) -> None:
        """Use this command from the next worker on."""
        self._command = list(command)

    def spawn(
        self,
        local_rank: int,
        make_env: Callable[[tuple[int, int]], Mapping[str, str]],
        outputs: Outputs = INHERITED,
        error_file: Optional[str] = None,
        command: Optional[Sequence[str]] = None,
    ) -> list[Union[WorkerEnded, GroupEmptied]]:
        """Start a worker; `make_env` gets the numbers of its step files. Return the events of a worker that could not
        be started.

        command: replaces the workers' command.
        """
        command = self._command if command is None else list(command)
        started_at, snapshots = time.time(), self.snapshot_files.get(local_rank)
        try:
            steps = StepFiles(self._folder)
        except OSError as error:
            return not_started(local_rank, 126, f"cannot create the files for its steps: {error}")
        try:
            process = subprocess.Popen(
                command,
                env=make_env(steps.inherited),
                stdout=None if outputs.stdout < 0 else outputs.stdout,
                stderr=None if outputs.stderr < 0 else outputs.stderr,
                pass_fds=(*steps.inherited, *([snapshots] if snapshots is not None else ())),
                start_new_session=True,
                preexec_fn=self._before_exec,  # safe: we have one thread
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            steps.close()
            missing = isinstance(error, OSError) and error.errno == errno.ENOENT
            return not_started(local_rank, 127 if missing else 126, f"cannot start {command[0]!r}: {error}")
        finally:
            steps.given()
        process.returncode = 0  # reap() reaps it, not Popen
        self._add(_Worker(local_rank, process.pid, Handle(process.pid), steps, error_file, started_at), steps)
        return []

    def fork(self, zygote: ForkServer, workers: Mapping[int, ForkOrder], *, records: bool = False) -> list[int]:
        """Let the zygote fork these workers, by local rank. Return the local ranks that it did not fork.

        records: the worker of local rank 0 records its imports.
        """
        started_at = time.time()
        self.record = _new_record(self.record) if records else self.record
        files: dict[int, StepFiles] = {}
        with contextlib.suppress(OSError):  # reported when these start as fresh processes
            for local_rank in workers:
                files[local_rank] = StepFiles(self._folder)
        forks = {
            rank: ForkRequest(
                workers[rank].env,
                steps.inherited,
                workers[rank].outputs,
                workers[rank].dropped,
                workers[rank].command,
                self.snapshot_files.get(rank),
                self.record if records and rank == 0 else None,
            )
            for rank, steps in files.items()
        }
        pids = zygote.fork(forks)
        for local_rank, steps in files.items():
            steps.given()
            if local_rank in pids:
                pid, error_file = pids[local_rank], workers[local_rank].error_file
                self._add(_Worker(local_rank, pid, Handle(pid, zygote.pid), steps, error_file, started_at), steps)
            else:
                steps.close()
        return [local_rank for local_rank in workers if local_rank not in pids]

    def _add(self, worker: _Worker, steps: StepFiles) -> None:
        self._workers[worker.local_rank] = worker
        self._watch(steps.bell)

    def signal(self, local_rank: int, aim: Aim) -> None:
        if local_rank == LEFTOVERS:
            self._sweeping = True  # the next reap() kills them
            return
        worker = self._workers.get(local_rank)
        if worker is None:
            return
        worker.killed, worker.may_raise = worker.killed or aim is Aim.KILL_GROUP, False
        with contextlib.suppress(PermissionError):
            if aim is Aim.TERM_WORKER or aim is Aim.TERM_HANDLER:
                if aim is Aim.TERM_WORKER or not process_table.has_default_action(worker.pid, signal.SIGTERM):
                    worker.process.send(signal.SIGTERM)
            elif worker.ended or worker.process.send(EXISTS):  # else its end is reported soon
                _signal_group(worker, _GROUP_SIGNALS[aim])

    def dump_stacks(self, local_rank: int) -> str:
        """Make the worker's stepping process write its Python stacks to stderr. Return why it cannot, or ""."""
        worker = self._workers.get(local_rank)
        if worker is None or worker.steps is None:
            return "it has ended"
        return worker.steps.page.dump_stacks(worker.pid)

    def write_collectives(self, local_rank: int) -> None:
        """Make the worker's stepping process write its newest collectives to stderr, if it can."""
        worker = self._workers.get(local_rank)
        if worker is not None and worker.steps is not None:
            worker.steps.page.write_collectives(worker.pid)

    def kill_all(self) -> None:
        for local_rank in self._workers:
            self.signal(local_rank, Aim.KILL_GROUP)
        for leftover in self._leftovers():
            process_table.kill(leftover)

    def reap(self) -> list[Ended]:
        """Reap all ended children, also orphans; then report the groups that are empty.

        While leftovers are to be killed and no group is left, leftovers that it finds get SIGKILL.
        """
        events: list[Ended] = []
        for pid, status in _ended():
            if any(worker.pid == pid for worker in self._workers.values()):
                events += self.ended(pid, status)
            else:
                self.on_other_end(pid, status)
        for worker in [worker for worker in self._workers.values() if worker.ended and _is_empty(worker.pid)]:
            del self._workers[worker.local_rank]
            events.append(GroupEmptied(worker.local_rank))
        return events if self._workers or not self._sweeping else events + self._sweep()

    def _sweep(self) -> list[Ended]:
        alive = [leftover for leftover in self._leftovers() if process_table.kill(leftover)]
        if alive:
            return self._found(alive)
        if _has_ended_child():
            return []  # it may have forked during the scan: its SIGCHLD starts another scan
        self._sweeping = False
        self._reported_leftovers.clear()
        return [GroupEmptied(LEFTOVERS)]

    def survivors(self) -> list[Survivor]:
        """The processes in the workers' groups, and the leftovers while these are killed."""
        table = process_table.entries()
        rank_of = {worker.pid: worker.local_rank for worker in self._workers.values()}
        found = {one.pid: rank_of[one.group] for one in table if one.group in rank_of}
        leftovers = {one.pid: None for one in self._leftovers()} if self._sweeping else {}
        ranks = {**leftovers, **found}
        return [Survivor(ranks[one.pid], one.pid, one.state, one.name) for one in table if one.pid in ranks]

    def _leftovers(self) -> list[ProcessEntry]:
        ours = {*self._own(), *(worker.pid for worker in self._workers.values())}
        others = [child for child in process_table.children() if child.pid not in ours]
        adopted = [child for child in others if child.identity not in self._earlier]
        return process_table.with_descendants(adopted, process_table.entries()) if adopted else []

    def _found(self, alive: Collection[ProcessEntry]) -> list[Ended]:
        new = [one for one in alive if one.identity not in self._reported_leftovers]
        self._reported_leftovers.update(one.identity for one in new)
        return [LeftoversFound(tuple(str(one) for one in new))] if new else []

    def ended(self, pid: int, status: int) -> list[Ended]:
        """A process was reaped, here or by the zygote. Returns nothing if it was no worker."""
        worker = next((worker for worker in self._workers.values() if worker.pid == pid and not worker.ended), None)
        return [] if worker is None else self._end(worker, status)

    def lingering(self) -> bool:
        """Whether a group outlives its worker, or leftovers are to be killed: the launcher polls for their end, because
        no signal reports it if their orphans are not its children.
        """
        return self._sweeping or any(worker.ended for worker in self._workers.values())

    def has_news(self, bell: int) -> list[StepsRead]:
        """The steps after a bell became readable."""
        worker = next((x for x in self._workers.values() if x.steps is not None and x.steps.bell == bell), None)
        if worker is None or worker.steps is None:
            return []
        if not worker.steps.has_news():
            self._unwatch(bell)
            worker.steps.close_bell()
        return self._news(worker)

    def read_exceptions(self) -> list[WorkerRaised]:
        """The exceptions of running workers that were not returned before."""
        return [raised for worker in self._workers.values() for raised in self._raised(worker)]

    def read_steps(self) -> list[StepsRead]:
        """The steps that the workers have reported since the last call."""
        return [news for worker in self._workers.values() for news in self._news(worker)]

    def read_collectives(self) -> list[CollectivesRead]:
        """The reports about collectives since the last call."""
        return [
            report
            for worker in self._workers.values()
            if worker.steps is not None
            for report in worker.steps.page.collectives_read(worker.local_rank)
        ]

    def _end(self, worker: _Worker, status: int) -> list[Ended]:
        steps = self._news(worker)  # its last step goes before its end
        assert worker.steps is not None, "it ends once"
        if worker.steps.bell >= 0:
            self._unwatch(worker.steps.bell)
        worker.steps.close()
        worker.steps = None
        worker.process.close()
        code = os.waitstatus_to_exitcode(status)
        ended = worker_ended(worker.local_rank, code, error_files.read(worker.error_file), worker.started_at)
        out_of_memory = self.oom_kills.describe_new_kills() if code and not worker.killed else ""
        if out_of_memory:
            ended = replace(ended, message=f"{ended.message}; {out_of_memory}")
        if worker.error_file is not None and not self.keeps_error_files:
            error_files.forget(worker.error_file)
        return [*steps, ended]

    def _raised(self, worker: _Worker) -> list[WorkerRaised]:
        if worker.ended or not worker.may_raise:
            return []
        raised = error_files.raised(worker.error_file, worker.local_rank, worker.started_at)
        worker.may_raise = raised is None
        return [] if raised is None else [raised]

    def _news(self, worker: _Worker) -> list[StepsRead]:
        return [] if worker.steps is None else worker.steps.page.steps_read(worker.local_rank)


def _new_record(previous: Optional[int]) -> Optional[int]:
    """None: there can be no record, because this Python was built for an old libc, or memory is short."""
    if previous is not None:
        os.close(previous)
    with contextlib.suppress(OSError, AttributeError):
        record = os.memfd_create("imports", os.MFD_CLOEXEC)
        os.ftruncate(record, RECORD_BYTES)
        return record
    return None


def _ended() -> list[tuple[int, int]]:
    """The ended children with their statuses, those killed by SIGKILL first: others may have ended because of them, and
    the kernel returns children in the order of their creation.
    """
    ended = []
    with contextlib.suppress(ChildProcessError):  # there are no children
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended.append((pid, status))
    return sorted(ended, key=lambda entry: os.waitstatus_to_exitcode(entry[1]) != -signal.SIGKILL)


def _has_ended_child() -> bool:
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def _signal_group(worker: _Worker, number: signal.Signals) -> None:
    try:
        os.killpg(worker.pid, number)
    except ProcessLookupError:
        worker.process.send(number)  # just forked: it does not lead a group yet


def _is_empty(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # the rest runs as another user and cannot be signaled
        return True
    return False


def worker_ended(local_rank: int, code: int, failure: Failure, started_at: float) -> WorkerEnded:
    """code: as returned by os.waitstatus_to_exitcode."""
    at = failure.time_of(started_at, time.time())
    if code >= 0:
        return WorkerEnded(local_rank, code, None, code, failure.message or f"exit code {code}", at, failure.traceback)
    name = _signal_name(-code)
    message = failure.message or f"killed by {name}"
    return WorkerEnded(local_rank, None, name, 128 - code, message, at, failure.traceback)


def not_started(local_rank: int, code: int, why: str) -> list[Union[WorkerEnded, GroupEmptied]]:
    """The events of a worker that could not be started. code: as in a shell."""
    return [WorkerEnded(local_rank, code, None, code, why, time.time()), GroupEmptied(local_rank)]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

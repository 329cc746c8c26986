"""The launcher's event loop: one thread that waits for events, passes them to the supervisor, and executes its effects.

Rules: nothing is decided here. One `select` waits for everything: the sidecar's socket, the workers' bells, and the
wakeup pipe into which Python writes each signal's number. No busy wait: the timeout is the next deadline, or
GROUP_POLL_S while a group outlives its worker. SIGHUP counts as SIGTERM: a pod never gets one, and in local mode a
closed terminal must not leave workers behind.

If the container's command calls torchrun, the launcher connects to the sidecar once torchrun has passed its job
(torchrun_job.py), and exits when the command has ended.
"""

import os
import selectors
import signal
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Optional, Union

from understudy_launcher import environment, error_files, termination_message, torchrun_call
from understudy_launcher import events as e
from understudy_launcher.command_parser import PythonProgram, calls_torchrun, python_program, same_start
from understudy_launcher.container_command import ContainerCommand
from understudy_launcher.device_check import DeviceCheck
from understudy_launcher.fork_server import ForkServer
from understudy_launcher.groups import LEFTOVERS
from understudy_launcher.log_process import Logs, Outputs
from understudy_launcher.phases import OnSigterm
from understudy_launcher.ports import PortReservation
from understudy_launcher.processes import ForkOrder, Workers, not_started
from understudy_launcher.sidecar_link import LinkSelection, SidecarLink
from understudy_launcher.snapshot_memory import SnapshotMemory, pass_no_files
from understudy_launcher.snapshot_storage import SnapshotStorage, StorageSettings
from understudy_launcher.supervise import Supervisor
from understudy_launcher.torchrun_call import NO_FILES
from understudy_launcher.torchrun_job import TorchrunJob
from understudy_launcher.verdict_file import read_node_finding
from understudy_launcher.warmup import WARMUP
from understudy_launcher.zygote import WorkerStatus, ZygoteMessage
from understudy_protocol import pod
from understudy_protocol.enums import EVICTED_EXIT_CODE, UNFIT_EXIT_CODE
from understudy_protocol.launcher import Ping, Pong, StartWorkers, Stepped, TakeOver
from understudy_protocol.torchrun import RunWorkers

GROUP_POLL_S = 0.1
MAX_WAIT_S = 86400.0  # a grace may be longer than select's maximum
#: A command may still run for this time after its torchrun has failed.
COMMAND_ENDS_WITHIN_S = 10.0
PASS_RETRY_S = 1.0
_END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_WAKEUP = "signals"
_SIDECAR = "sidecar"
_ZYGOTE = "zygote"
_LOGS = "logs"
_DEVICES = "devices"
_STORAGE = "storage"
_COMMAND = "command"


@dataclass(frozen=True)
class LauncherSettings:
    """The pod's settings for its launcher."""

    command: Sequence[str]
    nproc: int
    grace_s: float
    folder: str
    socket: str
    env: Mapping[str, str]
    zygote: Optional[PythonProgram] = None  # the command's program, if it is to be forked
    preload: Sequence[str] = ()
    learns: bool = False  # preload more modules: those that the workers import
    on_sigterm: OnSigterm = OnSigterm.AUTO
    log_prefix: bool = True
    warmup: Sequence[str] = ()  # a spare's; empty: none
    step_timeout_s: float = 0.0
    forks: bool = True  # fork workers, if the command allows it
    worker_grace_period_s: Optional[float] = None  # for workers that a round replaces; None: from their environment
    devices: int = 0  # given to a spare of a pool, which needs all of them to be ready
    snapshot_bytes: int = 0  # the largest state of a rank; 0: no snapshots
    snapshot_every: int = 1
    snapshot_copies: int = 0  # other pods whose ranks' copies this pod keeps
    snapshot_storage: Optional[StorageSettings] = None  # None: none is written to storage
    is_auto: bool = False  # a command that calls torchrun runs as it is, and the launcher runs torchrun's workers
    calls_torchrun: bool = False  # the command has to be run, and has not passed its job yet


class Loop:
    def __init__(self, settings: LauncherSettings, logs: Logs) -> None:
        self._settings, self._logs = settings, logs
        self._selector = selectors.DefaultSelector()
        self._wakeup = _catch_signals()
        self._selector.register(self._wakeup, selectors.EVENT_READ, _WAKEUP)
        self._logs.watch(self._watch_logs, self._unwatch)
        self._workers = Workers(settings.command, settings.folder, self._watch, self._unwatch, self._own_children)
        self._workers.on_other_end = self._on_other_end
        self._torchrun: Optional[TorchrunJob] = None
        self._is_over = False  # the supervisor decides nothing any more
        self._zygote = self._make_zygote()
        self._zygote_env: Mapping[str, str] = {}  # at its start
        self._selection = LinkSelection(self._selector, _SIDECAR)
        self._link = SidecarLink(settings.socket, logs.write_line, self._selection.forget, time.monotonic())
        self._ports = PortReservation()
        self._devices = DeviceCheck(settings.devices, self._watch_devices, self._unwatch)
        self._storage: Optional[SnapshotStorage] = None
        self._snapshots = self._make_snapshot_memory()
        self._pass_at: Optional[float] = None  # when the memory is passed to the sidecar again, because that has failed
        self._pass_error = ""  # the newest one that was logged
        self._errors = error_files.make_folder(settings.folder)
        wanted = self._zygote is not None
        self._supervisor = Supervisor(
            os.getpid(),
            settings.nproc,
            settings.grace_s,
            zygote=wanted,
            on_sigterm=settings.on_sigterm,
            warmup=bool(settings.warmup),
            step_timeout_s=settings.step_timeout_s,
            devices=settings.devices > 0,
            calls_torchrun=settings.calls_torchrun,
            snapshots=self._snapshots is not None,
            learns=settings.learns,
        )
        self._queue: deque[e.Event] = deque([e.LauncherStarted(self._worker_grace_period_s())])
        self._exit: Optional[e.Exit] = None

    def _worker_grace_period_s(self) -> float:
        return environment.worker_grace_period_s(self._settings.worker_grace_period_s, self._settings.env)

    def run(self) -> int:
        """Run until the supervisor returns Exit. Return its code."""
        while True:
            self._decide()
            if self._exit is not None:
                self._logs.write_line(f"exits {self._exit.code}: {self._exit.reason}")
                if self._exit.code == UNFIT_EXIT_CODE or (self._exit.code == EVICTED_EXIT_CODE and os.getpid() == 1):
                    # pid 1: not when local mode runs in another container
                    termination_message.write_termination_message(self._exit.reason)
                return self._exit.code if self._torchrun is None else self._outlast(self._torchrun, self._exit.code)
            if self._torchrun is not None and self._torchrun.is_stock:
                return self._stand_by(self._torchrun)
            self._wait()

    def _own_children(self) -> tuple[int, ...]:
        """The launcher's children that are not workers."""
        others = [other.pid for other in (self._torchrun, self._snapshots, self._storage) if other is not None]
        return self._logs.pid, self._devices.pid, *others, *(self._zygote.pids if self._zygote is not None else ())

    def kill_all(self) -> None:
        """Kill all workers after a bug in the launcher."""
        self._workers.kill_all()
        if self._torchrun is not None:
            self._torchrun.kill()

    def _decide(self) -> None:
        while self._queue and self._exit is None:
            for effect in self._supervisor.handle(self._queue.popleft(), time.monotonic()):
                self._do(effect)

    def _do(self, effect: e.Effect) -> None:
        if isinstance(effect, e.Report):
            self._send(effect.message)
        elif isinstance(effect, (e.Signal, e.FindSurvivors)):
            self._do_with_processes(effect)
        elif isinstance(effect, (e.Spawn, e.SpawnWarmup)):
            self._start(effect)
        elif isinstance(effect, (e.ReservePort, e.ReleasePort)):
            self._do_with_port(effect)
        elif isinstance(effect, e.StartCommand):
            self._start_command()
        elif isinstance(effect, (e.StartZygote, e.EndZygote, e.MakeStore, e.CheckZygote, e.Learn, e.EndLearning)):
            self._do_with_zygote(effect)
        elif isinstance(effect, (e.CheckDevices, e.EndDeviceCheck)):
            self._do_with_devices(effect)
        elif isinstance(effect, (e.ReadSteps, e.ReadExceptions, e.DumpStacks, e.WriteCollectives)):
            self._do_with_running(effect)
        elif isinstance(effect, (e.ReadSnapshots, e.ChooseSnapshot)):
            self._do_with_snapshots(effect)
        elif isinstance(effect, e.ReplaceCommand):
            self._replace_command(effect.order)
        elif isinstance(effect, e.Log):
            self._logs.write_line(effect.text)
        else:
            self._exit = self._exit or effect

    def _send(self, message: Any) -> None:
        if isinstance(message, Stepped) and self._snapshots is not None:
            message = replace(message, snapshot=self._snapshots.newest())
        self._link.send(message, time.monotonic())

    def _do_with_processes(self, effect: Union[e.Signal, e.FindSurvivors]) -> None:
        if isinstance(effect, e.FindSurvivors):
            self._queue.append(e.SurvivorsFound(tuple(self._workers.survivors())))
            return
        self._workers.signal(effect.local_rank, effect.aim)
        if effect.local_rank == LEFTOVERS:
            self._queue.extend(self._workers.reap())  # if there are none, no SIGCHLD follows

    def _do_with_devices(self, effect: Union[e.CheckDevices, e.EndDeviceCheck]) -> None:
        if isinstance(effect, e.CheckDevices):
            self._queue.extend(self._devices.start())
        else:
            self._devices.end()

    def _do_with_running(self, effect: Union[e.ReadSteps, e.ReadExceptions, e.DumpStacks, e.WriteCollectives]) -> None:
        if isinstance(effect, e.ReadSteps):
            self._queue.extend([*self._workers.read_steps(), *self._workers.read_collectives()])
            return
        if isinstance(effect, e.ReadExceptions):
            self._queue.extend(self._workers.read_exceptions())
            return
        if isinstance(effect, e.WriteCollectives):
            self._workers.write_collectives(effect.local_rank)
            return
        why_not = self._workers.dump_stacks(effect.local_rank)
        if why_not:
            self._logs.write_line(f"cannot write the stacks of worker local_rank={effect.local_rank}: {why_not}")

    def _do_with_snapshots(self, effect: Union[e.ReadSnapshots, e.ChooseSnapshot]) -> None:
        assert self._snapshots is not None, "the supervisor knows that there is memory"
        if isinstance(effect, e.ReadSnapshots):
            self._start_storage()
            self._queue.append(e.SnapshotsRead(effect.start.token, self._snapshots.start(effect.start)))
        else:
            self._snapshots.choose(effect.choice)

    def _make_snapshot_memory(self) -> Optional[SnapshotMemory]:
        settings = self._settings
        if not settings.snapshot_bytes:
            return None
        try:
            size, copies = settings.snapshot_bytes, settings.snapshot_copies
            memory = SnapshotMemory(settings.nproc, size, settings.snapshot_every, copies)
            memory.allocate()
        except OSError as error:
            self._logs.write_line(f"no snapshots: {error.strerror}. The training restores its own checkpoints")
            return None
        self._workers.snapshot_files = memory.files
        if settings.snapshot_storage is not None:
            self._storage = SnapshotStorage(memory.files, settings.snapshot_storage, self._watch_storage, self._unwatch)
            self._start_storage()
        return memory

    def _start_storage(self) -> None:
        if self._storage is None:
            return
        try:
            self._storage.start()
        except OSError as error:
            self._logs.write_line(f"no snapshot is written to storage in this round: {error.strerror}")

    def _on_ready(self, source: Any) -> None:
        """A child of the launcher has sent something."""
        if source == _LOGS:
            self._logs.revive()
        elif source == _DEVICES:
            self._queue.extend(self._devices.on_packet())
        elif source == _STORAGE and self._storage is not None:
            stored = self._storage.receive()
            self._queue.extend([] if stored is None else [e.StorageReported(stored)])

    def _pass_snapshot_files(self) -> None:
        """Once they are allocated: a page counts as the memory of the container that touches it first."""
        memory, settings = self._snapshots, self._settings
        self._pass_at = None
        is_wanted = settings.snapshot_bytes and settings.snapshot_copies and self._link.socket is not None
        if not is_wanted or (memory is not None and memory.pid):
            return
        path = os.path.join(settings.folder, pod.COPIES_SOCKET)
        try:
            if memory is not None and memory.is_allocated:
                memory.pass_files(path)
            else:
                pass_no_files(path)
        except OSError as error:  # a sidecar that starts may listen for the launcher before it does so for the memory
            self._pass_at = time.monotonic() + PASS_RETRY_S
            if str(error) != self._pass_error:
                self._pass_error = str(error)
                self._logs.write_line(f"the sidecar gets no memory for copies of snapshots yet: {error}")

    def _do_with_port(self, effect: Union[e.ReservePort, e.ReleasePort]) -> None:
        if isinstance(effect, e.ReservePort):
            self._queue.append(e.PortReserved(self._ports.reserve()))
        else:
            self._ports.release()

    def _make_zygote(self) -> Optional[ForkServer]:
        settings = self._settings
        if settings.zygote is None:
            return None
        module = os.path.join(settings.folder, pod.ZYGOTE_MODULE)
        return ForkServer(settings.zygote, settings.command, module, self._watch_zygote, self._unwatch)

    def _replace_command(self, order: TakeOver) -> None:
        """Run the job's command in place of that of the pool's template."""
        before = self._settings
        env = environment.environment_after_take_over(before.env, order)
        command = order.command or before.command
        calls = before.is_auto and calls_torchrun(command, env)
        program = python_program(command) if before.forks and not calls else None
        self._settings = replace(before, env=env, command=command, zygote=program, calls_torchrun=calls)
        self._workers.run(command)
        self._queue.appendleft(e.CommandReplaced(self._worker_grace_period_s()))
        reads = self._zygote.reads if self._zygote is not None else ()
        why_not = environment.fresh_start_reason(before.env, env, reads)
        if self._zygote is not None and program is not None and same_start(before.zygote, program) and not why_not:
            self._zygote.run(program, command)
            return
        if self._zygote is not None:
            self._zygote.end()
            why = why_not or ("the command calls torchrun" if calls else "the command starts another interpreter")
            self._logs.write_line(f"the job cannot use the spare's fork server, which ends: {why}")
        self._zygote = self._make_zygote()
        self._queue.appendleft(e.ZygoteEnded(self._zygote is not None, calls))  # ahead of a queued StartWorkers

    # The command that calls torchrun --------------------------------------------------------------------------------

    def _start_command(self) -> None:
        settings, path = self._settings, os.path.join(self._settings.folder, pod.TORCHRUN_SOCKET)
        log = self._logs.write_line
        command = ContainerCommand(settings.command, path, self._watch_command, self._unwatch, log)
        self._torchrun = TorchrunJob(command, path, log)
        self._queue.extend(self._torchrun.start(settings.env, settings.socket))

    def _on_command(self, fd: int) -> None:
        assert self._torchrun is not None
        self._queue.extend(self._torchrun.on_ready(fd, self._settings.nproc))
        if self._torchrun.call is not None and self._settings.calls_torchrun:
            self._run_job_of(self._torchrun, self._torchrun.call)

    def _run_job_of(self, torchrun: TorchrunJob, call: RunWorkers) -> None:
        settings = self._settings
        program = python_program(torchrun.command_of(0)) if settings.forks else None
        env = torchrun.environment(settings.env)
        self._settings = replace(settings, env=env, command=call.command, zygote=program, calls_torchrun=False)
        self._workers.run(call.command)
        self._workers.keep_children()
        self._workers.keeps_error_files = bool(call.attempt_folder)
        torchrun.take_streams()
        if settings.log_prefix or torchrun_call.tees(call):
            self._logs.start()
        self._zygote = self._make_zygote()
        self._queue.extend(
            [e.CommandReplaced(self._worker_grace_period_s()), e.TorchrunCalled(self._zygote is not None)]
        )

    def _on_other_end(self, pid: int, status: int) -> None:
        if self._snapshots is not None and pid == self._snapshots.pid:
            slow = self._snapshots.ended(pid, status)
            if slow:
                self._logs.write_line(slow)
            self._pass_snapshot_files()
        if self._storage is not None and self._storage.ended(pid):
            self._logs.write_line(
                "no snapshot is written to storage until the next round: the process that does so has ended"
            )
        if self._torchrun is not None:
            self._queue.extend(self._torchrun.ended(pid, status))

    def _outlast(self, torchrun: TorchrunJob, code: int) -> int:
        """The job has ended with this code: let torchrun exit, and the command continue. Return the exit code."""
        self._is_over = True
        if self._zygote is not None:
            self._zygote.end()
        self._logs.finish()
        torchrun.end_torchrun(code)
        self._wait_for_command(torchrun, time.monotonic() + COMMAND_ENDS_WITHIN_S if code else None)
        torchrun.kill()
        return code or torchrun.code or 0

    def _stand_by(self, torchrun: TorchrunJob) -> int:
        """torchrun runs its workers itself, and is the sidecar's launcher now. Return the command's exit code."""
        self._is_over = True
        self._link.close()
        self._wait_for_command(torchrun, None)
        return torchrun.code or 0

    def _wait_for_command(self, torchrun: TorchrunJob, until: Optional[float]) -> None:
        """The supervisor decides nothing any more."""
        while torchrun.code is None and (until is None or time.monotonic() < until):
            self._wait(until)
            while self._queue:
                event = self._queue.popleft()
                if isinstance(event, e.AskedToEnd):
                    torchrun.ask_to_end()
                elif isinstance(event, Ping):
                    self._link.send(Pong(event.number), time.monotonic())

    def _may_connect(self) -> bool:
        """Whether this process is the sidecar's launcher. In a spare of a pool it is, until the job's command runs."""
        if self._torchrun is not None and self._torchrun.is_stock:
            return False
        return self._link.socket is not None or not self._settings.calls_torchrun

    def _do_with_zygote(
        self, effect: Union[e.StartZygote, e.EndZygote, e.MakeStore, e.CheckZygote, e.Learn, e.EndLearning]
    ) -> None:
        assert self._zygote is not None, "the supervisor knows that there is a zygote"
        if isinstance(effect, e.StartZygote):
            self._zygote_env = environment.zygote_environment(self._settings.env, self._settings.nproc)
            self._on_zygote_message(self._zygote.start(self._zygote_env, self._settings.preload))
        elif isinstance(effect, e.EndZygote):
            self._zygote.end()
        elif isinstance(effect, e.CheckZygote):
            self._zygote.check(effect.number)
        elif isinstance(effect, e.Learn):
            env = environment.zygote_environment(self._settings.env, self._settings.nproc)
            dropped = [name for name in self._zygote_env if name not in env]
            self._zygote.learn(effect, self._workers.record, environment.without(env, self._zygote_env), dropped)
        elif isinstance(effect, e.EndLearning):
            self._zygote.end_learning()
        else:
            self._zygote.make_store(effect.keep)

    def _start(self, effect: Union[e.Spawn, e.SpawnWarmup]) -> None:
        if isinstance(effect, e.Spawn):
            self._spawn(effect)
        else:
            self._spawn_warmup()

    def _spawn(self, effect: e.Spawn) -> None:
        settings, start = self._settings, effect.start

        def env_of(local_rank: int, step_files: tuple[int, int]) -> dict[str, str]:
            return environment.worker_environment(
                settings.env,
                start,
                local_rank,
                settings.nproc,
                step_files,
                errors_of[local_rank],
                self._workers.snapshot_files.get(local_rank),
            )

        def env_of_fresh(local_rank: int, step_files: tuple[int, int]) -> dict[str, str]:
            return environment.fresh_environment(env_of(local_rank, step_files), settings.folder, os.getpid())

        fresh = list(range(settings.nproc))
        self._logs.new_round()
        self._workers.oom_kills.forget()
        errors_of: dict[int, Optional[str]] = {}
        outputs_of: dict[int, Outputs] = {}
        for rank in list(fresh):
            try:
                errors_of[rank], outputs_of[rank] = self._files_of(start, rank)
            except OSError as error:
                fresh.remove(rank)
                self._queue.extend(not_started(rank, 126, f"cannot open a file of torchrun's log folder: {error}"))
        if self._store_has_gone(start) and 0 in fresh:
            fresh.remove(0)
            self._queue.extend(not_started(0, 1, "the store of this round ended before the workers started"))
        if effect.is_warmup_done and self._zygote is not None:
            of_round = {rank: env_of(rank, (-1, -1)) for rank in fresh}
            forks = {
                rank: ForkOrder(
                    environment.without(env, self._zygote_env),
                    outputs_of[rank],
                    errors_of[rank],
                    tuple(name for name in self._zygote_env if name not in env),
                    self._command_of(rank),
                )
                for rank, env in of_round.items()
            }
            fresh = self._workers.fork(self._zygote, forks, records=effect.records_imports)
            self._on_zygote_message(self._zygote.receive())  # messages that arrived during the fork
        for rank in fresh:
            command = self._command_of(rank)
            self._queue.extend(
                self._workers.spawn(rank, partial(env_of_fresh, rank), outputs_of[rank], errors_of[rank], command)
            )
        for outputs in outputs_of.values():
            outputs.close()

    def _files_of(self, start: StartWorkers, local_rank: int) -> tuple[Optional[str], Outputs]:
        """The error file of a worker, and its outputs. Raises OSError."""
        rank, torchrun = start.rank_offset + local_rank, self._torchrun
        output = NO_FILES if torchrun is None else torchrun.output_of(start.token.round, local_rank, rank)
        prefix = f"[rank {rank}] " if self._settings.log_prefix else ""
        return output.error_file or self._error_file(start, local_rank), self._logs.outputs(prefix, output)

    def _command_of(self, local_rank: int) -> Optional[Sequence[str]]:
        """None: that of all workers."""
        return None if self._torchrun is None else self._torchrun.command_of(local_rank)

    def _spawn_warmup(self) -> None:
        settings = self._settings
        env = environment.common_environment(settings.env, settings.nproc)
        outputs = self._logs.outputs("[warm-up] ")
        self._queue.extend(self._workers.spawn(WARMUP, lambda step_fd: env, outputs, command=settings.warmup))
        outputs.close()

    def _store_has_gone(self, start: StartWorkers) -> bool:
        """If so, the round's workers would wait for the store until they time out."""
        listens = self._zygote is not None and self._zygote.holds(start.master_port)
        return start.agent_store and start.rank_offset == 0 and not listens

    def _error_file(self, start: StartWorkers, local_rank: int) -> Optional[str]:
        return error_files.fresh_path(self._errors, str(start.token), local_rank) if self._errors else None

    def _wait(self, until: Optional[float] = None) -> None:
        self._selection.update(self._link)
        ready = self._selector.select(self._timeout(time.monotonic(), until))
        if self._zygote is not None:  # before the ends of its workers are handled: its store has ended too
            self._on_zygote_message(self._zygote.receive())
        for key, mask in ready:
            if key.data == _WAKEUP:
                self._on_signals()
            elif key.data in (_LOGS, _DEVICES, _STORAGE):
                self._on_ready(key.data)
            elif key.data == _SIDECAR:
                self._on_sidecar(mask)
            elif key.data == _COMMAND:
                self._on_command(key.fd)
            elif key.data != _ZYGOTE:
                self._queue.extend([*self._workers.has_news(key.fd), *self._workers.read_exceptions()])
        now = time.monotonic()
        if self._may_connect():
            self._connect(now)
        if self._pass_at is not None and now >= self._pass_at:
            self._pass_snapshot_files()
        if self._workers.lingering():
            self._queue.extend(self._workers.reap())
        deadline = self._deadline()
        if deadline is not None and now >= deadline:
            self._queue.append(e.Tick())

    def _connect(self, now: float) -> None:
        connected = self._link.connect(now)
        self._queue.extend(connected)
        if connected:
            self._pass_snapshot_files()

    def _deadline(self) -> Optional[float]:
        return None if self._is_over else self._supervisor.deadline()

    def _timeout(self, now: float, until: Optional[float]) -> Optional[float]:
        deadlines = [self._deadline(), self._link.deadline() if self._may_connect() else None, self._pass_at, until]
        if self._workers.lingering():
            deadlines.append(now + GROUP_POLL_S)
        nearest = min((deadline for deadline in deadlines if deadline is not None), default=None)
        return None if nearest is None else min(max(0.0, nearest - now), MAX_WAIT_S)

    def _on_signals(self) -> None:
        numbers = set(os.read(self._wakeup, 4096))
        if signal.SIGCHLD in numbers:
            self._queue.extend(self._workers.reap())
        asked = [number.name for number in _END_SIGNALS if number in numbers]
        if asked:
            finding = read_node_finding(self._settings.folder, time.time())
            self._queue.extend(e.AskedToEnd(name, finding.hardware_finding, finding.grace_s) for name in asked)

    def _on_zygote_message(self, answer: Sequence[ZygoteMessage]) -> None:
        ended = False
        for message in answer:
            if isinstance(message, WorkerStatus):
                self._queue.extend(self._workers.ended(message.pid, message.status))
                ended = True
            else:
                self._queue.append(message)
        if ended:
            self._queue.extend(self._workers.reap())

    def _on_sidecar(self, mask: int) -> None:
        now = time.monotonic()
        if mask & selectors.EVENT_WRITE:
            self._link.flush(now)
        if mask & selectors.EVENT_READ:
            self._queue.extend(self._link.receive(now))

    def _watch(self, bell: int) -> None:
        self._selector.register(bell, selectors.EVENT_READ, "steps")

    def _watch_logs(self, control: int) -> None:
        self._selector.register(control, selectors.EVENT_READ, _LOGS)

    def _watch_zygote(self, control: int) -> None:
        self._selector.register(control, selectors.EVENT_READ, _ZYGOTE)

    def _watch_command(self, connection: int) -> None:
        self._selector.register(connection, selectors.EVENT_READ, _COMMAND)

    def _watch_devices(self, pipe: int) -> None:
        self._selector.register(pipe, selectors.EVENT_READ, _DEVICES)

    def _watch_storage(self, pipe: int) -> None:
        self._selector.register(pipe, selectors.EVENT_READ, _STORAGE)

    def _unwatch(self, fd: int) -> None:
        self._selector.unregister(fd)


def _catch_signals() -> int:
    """The read end of the pipe into which Python writes each signal's number."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in (*_END_SIGNALS, signal.SIGCHLD):
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, _ignore_signal)
    return read_end


def _ignore_signal(number: int, frame: Any) -> None:
    """Python writes to the wakeup pipe only for signals that have a handler."""

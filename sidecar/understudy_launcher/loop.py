"""The launcher's event loop: one thread that waits for events, passes them to the supervisor, and executes its effects.

Rules: nothing is decided here. One `select` waits for everything: the sidecar's socket, the workers' bells, and the
wakeup pipe into which Python writes each signal's number. No busy wait: the timeout is the next deadline, or
GROUP_POLL_S while a group outlives its worker. SIGHUP counts as SIGTERM: a pod never gets one, and in local mode a
closed terminal must not leave workers behind.
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

from understudy_launcher import environment, error_files, termination_message
from understudy_launcher import events as e
from understudy_launcher.command import PythonProgram, python_program, same_start
from understudy_launcher.device_check import DeviceCheck
from understudy_launcher.groups import LEFTOVERS
from understudy_launcher.logs import Logs
from understudy_launcher.phases import OnSigterm
from understudy_launcher.ports import PortReservation
from understudy_launcher.processes import ForkOrder, Workers, not_started
from understudy_launcher.sidecar_link import LinkSelection, SidecarLink
from understudy_launcher.supervise import Supervisor
from understudy_launcher.verdict_file import read_node_finding
from understudy_launcher.warmup import WARMUP
from understudy_launcher.zygote import WorkerStatus, Zygote, ZygoteMessage
from understudy_protocol import pod
from understudy_protocol.enums import EVICTED_EXIT_CODE, UNFIT_EXIT_CODE
from understudy_protocol.launcher import StartWorkers, TakeOver

GROUP_POLL_S = 0.1
MAX_WAIT_S = 86400.0  # a grace may be longer than select's maximum
_END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_WAKEUP = "signals"
_SIDECAR = "sidecar"
_ZYGOTE = "zygote"
_LOGS = "logs"
_DEVICES = "devices"


@dataclass(frozen=True)
class Settings:
    """The pod's settings for its launcher."""

    command: Sequence[str]
    nproc: int
    grace_s: float
    folder: str
    socket: str
    env: Mapping[str, str]
    zygote: Optional[PythonProgram] = None  # the command's program, if it is to be forked
    preload: Sequence[str] = ()
    on_sigterm: OnSigterm = OnSigterm.AUTO
    log_prefix: bool = True
    warmup: Sequence[str] = ()  # a spare's; empty: none
    step_timeout_s: float = 0.0
    forks: bool = True  # fork workers, if the command allows it
    worker_grace_period_s: Optional[float] = None  # for workers that a round replaces; None: from their environment
    devices: int = 0  # given to a spare of a pool, which needs all of them to be ready


class Loop:
    def __init__(self, settings: Settings, logs: Logs) -> None:
        self._settings, self._logs = settings, logs
        self._selector = selectors.DefaultSelector()
        self._wakeup = _catch_signals()
        self._selector.register(self._wakeup, selectors.EVENT_READ, _WAKEUP)
        self._logs.watch(self._watch_logs)
        self._workers = Workers(settings.command, settings.folder, self._watch, self._unwatch, self._own_children)
        self._zygote = self._make_zygote()
        self._zygote_env: Mapping[str, str] = {}  # at its start
        self._selection = LinkSelection(self._selector, _SIDECAR)
        self._link = SidecarLink(settings.socket, logs.write_line, self._selection.forget, time.monotonic())
        self._ports = PortReservation()
        self._devices = DeviceCheck(settings.devices, self._watch_devices, self._unwatch)
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
        )
        self._queue: deque[e.Event] = deque([e.Started(self._worker_grace_period_s())])
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
                return self._exit.code
            self._wait()

    def _own_children(self) -> tuple[int, ...]:
        """The launcher's children that are not workers."""
        return self._logs.pid, self._devices.pid, 0 if self._zygote is None else self._zygote.pid

    def kill_all(self) -> None:
        """Kill all workers after a bug in the launcher."""
        self._workers.kill_all()

    def _decide(self) -> None:
        while self._queue and self._exit is None:
            for effect in self._supervisor.handle(self._queue.popleft(), time.monotonic()):
                self._do(effect)

    def _do(self, effect: e.Effect) -> None:
        if isinstance(effect, e.Report):
            self._link.send(effect.message, time.monotonic())
        elif isinstance(effect, (e.Signal, e.FindSurvivors)):
            self._do_with_processes(effect)
        elif isinstance(effect, e.Spawn):
            self._spawn(effect)
        elif isinstance(effect, e.SpawnWarmup):
            self._spawn_warmup()
        elif isinstance(effect, (e.ReservePort, e.ReleasePort)):
            self._do_with_port(effect)
        elif isinstance(effect, (e.StartZygote, e.EndZygote, e.MakeStore, e.CheckZygote)):
            self._do_with_zygote(effect)
        elif isinstance(effect, (e.CheckDevices, e.EndDeviceCheck)):
            self._do_with_devices(effect)
        elif isinstance(effect, (e.ReadSteps, e.DumpStacks)):
            self._do_with_steps(effect)
        elif isinstance(effect, e.ReplaceCommand):
            self._replace_command(effect.order)
        elif isinstance(effect, e.Log):
            self._logs.write_line(effect.text)
        else:
            self._exit = self._exit or effect

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

    def _do_with_steps(self, effect: Union[e.ReadSteps, e.DumpStacks]) -> None:
        if isinstance(effect, e.ReadSteps):
            self._queue.extend(self._workers.read_steps())
            return
        why_not = self._workers.dump_stacks(effect.local_rank)
        if why_not:
            self._logs.write_line(f"cannot write the stacks of worker local_rank={effect.local_rank}: {why_not}")

    def _do_with_port(self, effect: Union[e.ReservePort, e.ReleasePort]) -> None:
        if isinstance(effect, e.ReservePort):
            self._queue.append(e.PortReserved(self._ports.reserve()))
        else:
            self._ports.release()

    def _make_zygote(self) -> Optional[Zygote]:
        settings = self._settings
        if settings.zygote is None:
            return None
        module = os.path.join(settings.folder, pod.ZYGOTE_MODULE)
        return Zygote(settings.zygote, settings.command, module, self._watch_zygote, self._unwatch)

    def _replace_command(self, order: TakeOver) -> None:
        """Run the job's command in place of that of the pool's template."""
        before = self._settings
        env = environment.environment_after_take_over(before.env, order)
        command = order.command or before.command
        program = python_program(command) if before.forks else None
        self._settings = replace(before, env=env, command=command, zygote=program)
        self._workers.run(command)
        self._queue.appendleft(e.CommandReplaced(self._worker_grace_period_s()))
        why_not = environment.fresh_start_reason(before.env, env)
        if self._zygote is not None and program is not None and same_start(before.zygote, program) and not why_not:
            self._zygote.run(program, command)
            return
        if self._zygote is not None:
            self._zygote.end()
            why = why_not or "the command starts another interpreter"
            self._logs.write_line(f"the job cannot use the spare's fork server, which ends: {why}")
        self._zygote = self._make_zygote()
        self._queue.appendleft(e.ZygoteEnded(self._zygote is not None))  # ahead of a queued StartWorkers

    def _do_with_zygote(self, effect: Union[e.StartZygote, e.EndZygote, e.MakeStore, e.CheckZygote]) -> None:
        assert self._zygote is not None, "the supervisor knows that there is a zygote"
        if isinstance(effect, e.StartZygote):
            self._zygote_env = environment.zygote_environment(self._settings.env, self._settings.nproc)
            self._on_zygote_message(self._zygote.start(self._zygote_env, self._settings.preload))
        elif isinstance(effect, e.EndZygote):
            self._zygote.end()
        elif isinstance(effect, e.CheckZygote):
            self._zygote.check(effect.number)
        else:
            self._zygote.make_store(effect.keep)

    def _spawn(self, effect: e.Spawn) -> None:
        settings, start = self._settings, effect.start

        def env_of(local_rank: int, step_files: tuple[int, int]) -> dict[str, str]:
            errors = errors_of[local_rank]
            return environment.worker_environment(settings.env, start, local_rank, settings.nproc, step_files, errors)

        fresh = list(range(settings.nproc))
        errors_of = {rank: self._error_file(start, rank) for rank in fresh}
        self._logs.new_round()
        self._workers.oom_kills.forget()
        outputs_of = {rank: self._logs.outputs(f"[rank {start.rank_offset + rank}] ") for rank in fresh}
        if self._store_has_gone(start):
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
                )
                for rank, env in of_round.items()
            }
            fresh = self._workers.fork(self._zygote, forks)
            self._on_zygote_message(self._zygote.receive())  # messages that arrived during the fork
        for rank in fresh:
            self._queue.extend(self._workers.spawn(rank, partial(env_of, rank), outputs_of[rank], errors_of[rank]))
        for outputs in outputs_of.values():
            outputs.close()

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

    def _wait(self) -> None:
        self._selection.update(self._link)
        ready = self._selector.select(self._timeout(time.monotonic()))
        if self._zygote is not None:  # before the ends of its workers: its store has ended too
            self._on_zygote_message(self._zygote.receive())
        for key, mask in ready:
            if key.data == _WAKEUP:
                self._on_signals()
            elif key.data == _LOGS:
                self._logs.revive(self._unwatch)
            elif key.data == _DEVICES:
                self._queue.extend(self._devices.on_packet())
            elif key.data == _SIDECAR:
                self._on_sidecar(mask)
            elif key.data != _ZYGOTE:
                self._queue.extend(self._workers.has_news(key.fd))
        now = time.monotonic()
        self._queue.extend(self._link.connect(now))
        if self._workers.lingering():
            self._queue.extend(self._workers.reap())
        deadline = self._supervisor.deadline()
        if deadline is not None and now >= deadline:
            self._queue.append(e.Tick())

    def _timeout(self, now: float) -> Optional[float]:
        deadlines = [self._supervisor.deadline(), self._link.deadline()]
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

    def _watch_devices(self, pipe: int) -> None:
        self._selector.register(pipe, selectors.EVENT_READ, _DEVICES)

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

"""A session with the pod's sidecar: a thread that receives all events, and the agent's calls, which wait for answers.

Rules: nothing is decided here (agent.py decides). Effects are executed under one lock, by the thread or by the caller.
The thread never waits for the agent, which may be in a call that does not return. It ends with the process, or with
`end()`.
"""

import atexit
import os
import selectors
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any, Optional, Protocol, Union

from understudy_launcher import events as e
from understudy_launcher.environment import flight_recorder, fresh_environment
from understudy_launcher.loop import LauncherSettings
from understudy_launcher.ports import PortReservation
from understudy_launcher.sidecar_link import LinkSelection, SidecarLink
from understudy_launcher.verdict_file import read_node_finding
from understudy_protocol import pod
from understudy_protocol.launcher import StartWorkers
from understudy_torchrun import rendezvous_calls as c
from understudy_torchrun.agent import Agent, causes_first
from understudy_torchrun.log import log
from understudy_torchrun.signals import HeldSignals
from understudy_torchrun.steps import TorchrunSteps
from understudy_torchrun.workers import SearchSchedule, TorchrunWorkers

MAX_WAIT_S = 86400.0  # a grace may be longer than select's maximum
BROKEN = 70
_WAKEUP, _SIDECAR, _STEPS, _WORKER = "wakeup", "sidecar", "steps", "worker"
_WOKEN = b"\0"


class Stores(Protocol):
    """See stores.py."""

    def make(self, keep: Collection[int]) -> Union[e.StoreReady, e.StoreFailed]: ...


class TorchrunSession:
    """Created in the main thread and called from it. Each call may end the process by SystemExit."""

    def __init__(self, settings: LauncherSettings, stores: Stores) -> None:
        self._settings, self._stores = settings, stores
        self._lock = threading.Condition()
        self._selector = selectors.DefaultSelector()
        self._wakeup, self._woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector.register(self._wakeup, selectors.EVENT_READ, _WAKEUP)
        self._selection = LinkSelection(self._selector, _SIDECAR)
        self._link = SidecarLink(settings.socket, log, self._selection.forget, time.monotonic())
        self._agent = Agent(
            os.getpid(),
            settings.nproc,
            settings.grace_s,
            settings.on_sigterm,
            settings.step_timeout_s,
            settings.env.get(pod.ENV_FORK_FALLBACK, ""),
        )
        self._workers = TorchrunWorkers(self._watch_worker, self._unwatch)
        self._looks = SearchSchedule()
        self._steps = TorchrunSteps(settings.nproc, self._watch_steps, self._unwatch, log)
        self._step_folder = ""
        self._ports = PortReservation()
        self._answer: Optional[c.Answer] = None  # to the agent's current call
        self._signals = HeldSignals(self._woken)
        self._is_over = False
        with self._lock:
            self._handle(e.LauncherStarted())
        atexit.register(self._end_steps)
        threading.Thread(target=self._serve, name="understudy", daemon=True).start()

    # The agent's calls ----------------------------------------------------------------------------------------------

    def next_round(self) -> StartWorkers:
        """Wait for the next round that includes this member."""
        answer = self._call(c.WantsRound(time.time()))
        assert isinstance(answer, c.BeginRound)
        os.environ[pod.ENV_STEP_FOLDER] = self._step_folder
        os.environ.update(flight_recorder(os.environ))
        os.environ.update(fresh_environment(os.environ, self._settings.folder, os.getpid()))
        return answer.start

    def poll_members(self) -> bool:
        """Whether the workers may continue; if not, all watched workers have ended."""
        self.hold_signals_back()
        return isinstance(self._call(c.PollsMembers()), c.ContinueTraining)

    def name_run(self) -> None:
        """Called before the workers of a round are started, and again when all of them have been started."""
        self.hold_signals_back()
        with self._lock:
            self._find_workers(anyway=True)
            self._handle(*self._workers.ended_unseen())
            os.write(self._woken, _WOKEN)

    def hold_signals_back(self) -> None:
        """Replace torchrun's handler, which it sets whenever it starts workers."""
        self._signals.take_over()

    def succeed(self) -> None:
        """All workers exited 0: wait until the job is closed as succeeded."""
        self._call(c.WorkersSucceeded(time.time()))

    def end(self) -> None:
        """The session is unused: end the thread and close its files. Safe in any thread, and more than once."""
        with self._lock:
            if not self._is_over:
                self._is_over = True
                self._signals.give_back()
                os.write(self._woken, _WOKEN)

    def _call(self, call: c.Call) -> c.Answer:
        with self._lock:
            self._find_workers()
            self._answer = None
            self._handle(call)
            os.write(self._woken, _WOKEN)  # the deadline may have changed, or a message may be unsent
            try:
                while self._answer is None:
                    self._lock.wait()
            except BaseException:
                self._handle(c.HandlerClosed())
                raise
            answer = self._answer
        if isinstance(answer, c.LeaveRendezvous):
            log(f"exits {answer.code}: {answer.reason}")
            if answer.code != 0 or not isinstance(call, c.WorkersSucceeded):
                raise SystemExit(answer.code)
        elif isinstance(answer, c.RestartRendezvous):
            self._restart_rendezvous()
        return answer

    def _end_steps(self) -> None:
        with self._lock:
            self._steps.end()

    def _restart_rendezvous(self) -> None:
        log("torchrun is exiting, and the job needs another round: this process restarts torchrun")
        self._steps.end()
        sys.stdout.flush()
        sys.stderr.flush()
        words = getattr(sys, "orig_argv", None) or [sys.executable, *sys.argv]  # Python 3.9 has no orig_argv
        os.execv(sys.executable, [sys.executable, *words[1:]])  # noqa: S606 - itself

    # The thread -----------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while True:
                with self._lock:
                    if self._is_over:
                        self._close()
                        return
                    self._selection.update(self._link)
                    timeout = self._timeout(time.monotonic())
                ready = self._selector.select(timeout)
                with self._lock:
                    self._on_ready(ready)
        except BaseException:  # noqa: BLE001 - no worker may outlive this thread
            log("a bug in the rendezvous; all workers are killed\n" + traceback.format_exc())
            self._workers.signal(e.Aim.KILL_GROUP)
            os._exit(BROKEN)

    def _close(self) -> None:
        if self._agent.ends:
            self._link.keep_open()  # torchrun needs a second to exit, and a sidecar that ends first would be restarted
        else:
            self._link.close()
        self._workers.forget_all()
        self._steps.end()
        atexit.unregister(self._end_steps)
        self._ports.release()
        self._selector.close()
        os.close(self._wakeup)
        if self._signals.given_back:  # else Python writes the next signal's number there
            os.close(self._woken)

    def _on_ready(self, ready: Sequence[tuple[selectors.SelectorKey, int]]) -> None:
        pidfds = []
        for key, mask in ready:
            if key.data == _WAKEUP:
                self._on_wakeup()
            elif key.data == _SIDECAR:
                self._on_sidecar(mask)
            elif key.data == _STEPS:
                self._find_workers(anyway=True)
                self._handle(*self._steps.has_news(), *self._workers.read_exceptions())
            else:
                pidfds.append(key.fd)
        self._on_workers(pidfds)
        self._find_workers()
        self._handle(*self._link.connect(time.monotonic()))
        deadline = self._agent.deadline()
        if deadline is not None and time.monotonic() >= deadline:
            self._handle(e.Tick())

    def _timeout(self, now: float) -> Optional[float]:
        deadlines = [self._agent.deadline(), self._link.deadline()]
        if not self._workers.complete:
            deadlines.append(self._looks.next(now))
        nearest = min((deadline for deadline in deadlines if deadline is not None), default=None)
        return None if nearest is None else min(max(0.0, nearest - now), MAX_WAIT_S)

    def _on_wakeup(self) -> None:
        numbers = os.read(self._wakeup, 4096)
        if signal.SIGTERM in numbers and not self._signals.is_echo():
            self._find_workers()
            finding = read_node_finding(self._settings.folder, time.time())
            self._handle(e.AskedToEnd("SIGTERM", finding.hardware_finding, finding.grace_s))

    def _on_sidecar(self, mask: int) -> None:
        now = time.monotonic()
        if mask & selectors.EVENT_WRITE:
            self._link.flush(now)
        if mask & selectors.EVENT_READ:
            self._handle(*self._link.receive(now))

    def _on_workers(self, pidfds: Sequence[int]) -> None:
        """Workers have ended."""
        ends = [end for end in map(self._workers.ended, pidfds) if end is not None]
        if ends:
            self._handle(*self._steps.read(), *causes_first(ends))  # their last steps go before their ends
        for pidfd in pidfds:
            self._workers.forget(pidfd)

    def _find_workers(self, anyway: bool = False) -> None:
        now = time.monotonic()
        if self._workers.complete or not (anyway or self._looks.is_due(now)):
            return
        seen = self._workers.find()
        self._looks.searched(now)
        if seen:
            self._handle(c.WorkersSeen(seen))
        if seen and self._workers.complete and self._workers.expected != self._settings.nproc:
            log(
                f"torchrun starts {self._workers.expected} workers in this pod, but launcher.nprocPerNode is "
                f"{self._settings.nproc}: ranks in the job's status are wrong. Set launcher.nprocPerNode to "
                f"{self._workers.expected}"
            )

    # Effects --------------------------------------------------------------------------------------------------------

    def _handle(self, *events: Any) -> None:
        queue = deque(events)
        while queue:
            for effect in self._agent.handle(queue.popleft(), time.monotonic()):
                queue.extend(self._do(effect))

    def _do(self, effect: c.Effect) -> list[Any]:
        """Execute an effect. Return the events that follow at once."""
        if isinstance(effect, e.Report):
            self._link.send(effect.message, time.monotonic())
        elif isinstance(effect, c.SignalWorkers):
            self._workers.signal(effect.aim)
        elif isinstance(effect, e.Signal):
            self._workers.signal_group(effect.local_rank, effect.aim)
        elif isinstance(effect, e.Log):
            log(effect.text)
        elif isinstance(effect, e.DumpStacks):
            self._dump_stacks(effect.local_rank)
        elif isinstance(effect, e.WriteCollectives):
            self._steps.write_collectives(effect.local_rank, self._workers.group_of(effect.local_rank))
        elif isinstance(effect, c.ANSWERS):
            self._answer_agent(effect)
        elif isinstance(effect, c.ForwardSignal):
            self._signals.pass_on()
        elif isinstance(effect, c.ExitNow):
            self._end_now(effect)
        else:
            return self._answered(effect)
        return []

    def _dump_stacks(self, local_rank: int) -> None:
        why_not = self._steps.dump_stacks(local_rank, self._workers.group_of(local_rank))
        if why_not:
            log(f"cannot write the stacks of worker local_rank={local_rank}: {why_not}")

    def _answered(self, effect: c.Effect) -> list[Any]:
        if isinstance(effect, e.FindSurvivors):
            return [e.SurvivorsFound(tuple(self._workers.survivors()))]
        if isinstance(effect, e.ReadSteps):
            return [*self._steps.read(), *self._steps.read_collectives()]
        if isinstance(effect, e.ReadExceptions):
            return [*self._workers.read_exceptions()]
        if isinstance(effect, e.MakeStore):
            return [self._stores.make(effect.keep)]
        if isinstance(effect, e.ReservePort):
            return [e.PortReserved(self._ports.reserve())]
        assert isinstance(effect, e.ReleasePort), effect
        self._ports.release()
        return []

    def _answer_agent(self, answer: c.Answer) -> None:
        if isinstance(answer, c.BeginRound):
            self._workers.begin(str(answer.start.token))
            self._looks.begin(time.monotonic())
            self._step_folder = self._steps.begin()
        self._answer = answer
        self._lock.notify_all()

    def _end_now(self, end: c.ExitNow) -> None:
        log(f"exits {end.code}: {end.reason}")
        self._link.flush(time.monotonic())
        self._steps.end()
        os._exit(end.code)

    # The selector ---------------------------------------------------------------------------------------------------

    def _watch_worker(self, pidfd: int) -> None:
        self._selector.register(pidfd, selectors.EVENT_READ, _WORKER)

    def _watch_steps(self, pipe: int) -> None:
        self._selector.register(pipe, selectors.EVENT_READ, _STEPS)

    def _unwatch(self, fd: int) -> None:
        self._selector.unregister(fd)

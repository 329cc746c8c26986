"""What the launcher does about its workers: a sans-IO state machine. `handle(event, now)` returns the effects.

    phase              event                        next      effects
    -----------------  ---------------------------  --------  --------------------------------------------------------
    IDLE               StartWorkers                 RUNNING   Spawn, WorkersStarted (by way of STARTING)
    RUNNING … STOPPING StartWorkers                 STARTING  SIGKILL to every group: the round is dead
    STARTING           StartWorkers                 STARTING  the newer one takes the older one's place
    STARTING           the last group is empty      RUNNING   Spawn, WorkersStarted
    RUNNING, FAILED    a worker fails               FAILED    WorkerExited; SIGKILL to its group, its neighbours run on
    RUNNING            the last worker exits 0      FINISHED  WorkersFinished
    IDLE … STOPPING    StopWorkers                  STOPPING  SIGKILL to every group
    STOPPING           the last group is empty      IDLE      LauncherHello: nothing runs any more
    IDLE … STOPPING    AskedToEnd, workers alive    SAVING    Terminating; SIGTERM to every worker
    IDLE … STOPPING    AskedToEnd, no worker alive  LEAVING   Terminating
    SAVING             the last group is empty      LEAVING
    SAVING             the grace is nearly over     LEAVING   SIGKILL to every group
    IDLE … SAVING      ExitLauncher                 LEAVING   SIGKILL to every group
    LEAVING            the last group is empty      -         Exit; also when LEAVE_WITHIN_S is over

Rules: a StartWorkers whose token is not newer than the newest is dropped (an equal one is done already), and so is one
in SAVING and LEAVING. A new round's workers start only when nothing is left of the old ones. What ends because of our
own SIGKILL is no failure. After SIGTERM no worker's end is reported: it is a consequence, and exit 0 then may mean
"saved", not "finished". The launcher exits 0 only when the sidecar says so; otherwise its code is that of the round's
first failed worker, so that the pod shows the truth.
"""

from collections.abc import Iterable
from typing import Any, Callable, Optional

from understudy_launcher import events as e
from understudy_launcher.phases import TOLD, Phase
from understudy_launcher.steps import StepPace
from understudy_protocol import launcher as m
from understudy_protocol.words import NO_ROUND, RoundToken, WorkersState

#: A process that outlives SIGKILL (it sleeps uninterruptibly in the kernel) is named in the log so often.
COMPLAIN_EVERY_S = 5.0
#: So long the launcher waits for its killed workers before it exits all the same: as pid 1 it takes them along.
LEAVE_WITHIN_S = 1.0
#: SIGKILL comes so long before the pod's grace period ends, so that the exit code is ours and not the kubelet's 137.
GRACE_MARGIN_S = 2.0
GRACE_MARGIN_SHARE = 0.1
#: Exit codes of a launcher that was asked to end: its workers ended by themselves, and did not.
ENDED_BY_SIGTERM = 143
KILLED_AT_GRACE_END = 137

_ENDING = (Phase.SAVING, Phase.LEAVING)
_REPORTING = (Phase.RUNNING, Phase.FAILED)


class Supervisor:
    """See the module. `pid` is the launcher's own; `grace_s` the pod's termination grace period."""

    def __init__(self, pid: int, nproc: int, grace_s: float) -> None:
        self.phase = Phase.IDLE
        self._pid, self._nproc, self._grace_s = pid, nproc, grace_s
        self._round: Optional[m.StartWorkers] = None  # the newest that was accepted
        self._alive: set[int] = set()  # local ranks whose worker runs
        self._groups: set[int] = set()  # local ranks of which any process is left
        self._failures: list[m.WorkerExited] = []  # of the newest round
        self._first_code: Optional[int] = None  # of its first failed worker
        self._pace: Optional[StepPace] = None
        self._master_port = 0
        self._killed_at: Optional[float] = None
        self._complain_at: Optional[float] = None
        self._terminate_by: Optional[float] = None  # after SIGTERM: the end of the grace, less the margin
        self._leave_by: Optional[float] = None
        self._exit: Optional[e.Exit] = None
        self._out: list[e.Effect] = []
        self._handlers: dict[type[Any], Callable[[Any, float], None]] = {
            e.Started: self._on_started,
            e.Connected: self._on_connected,
            e.PortReserved: self._on_port,
            m.StartWorkers: self._on_start_workers,
            m.StopWorkers: self._on_stop_workers,
            m.ExitLauncher: self._on_exit_launcher,
            e.AskedToEnd: self._on_asked_to_end,
            e.WorkerEnded: self._on_worker_ended,
            e.GroupEmptied: self._on_group_emptied,
            e.StepsRead: self._on_steps,
            e.Tick: self._on_tick,
        }

    def handle(self, event: e.Event, now: float) -> list[e.Effect]:
        """What is to be done about an event at the time `now` (any clock that only grows)."""
        self._handlers[type(event)](event, now)
        effects, self._out = self._out, []
        return effects

    def deadline(self) -> Optional[float]:
        """When a Tick is due, None while none is."""
        paces = self._pace.deadline() if self._pace and self.phase in _REPORTING else None
        grace = self._terminate_by if self.phase is Phase.SAVING else None
        return min(_present([paces, grace, self._complain_at, self._leave_by]), default=None)

    # The sidecar ----------------------------------------------------------------------------------------------------

    def _on_started(self, _: e.Started, now: float) -> None:
        self._out.append(e.ReservePort())

    def _on_connected(self, _: e.Connected, now: float) -> None:
        """The hello states everything; failures and the leave follow, for the sidecar may not have heard of them."""
        self._hello()
        self._out.extend(e.Report(failure) for failure in self._failures)
        if self._terminate_by is not None:
            self._report(m.Terminating(max(0.0, self._terminate_by - now)))

    def _on_port(self, event: e.PortReserved, now: float) -> None:
        self._master_port = event.port
        self._report(m.NextPort(event.port))

    def _on_start_workers(self, start: m.StartWorkers, now: float) -> None:
        newest = self._round.token if self._round else NO_ROUND
        if self.phase in _ENDING:
            self._log(f"refused round={start.token}: the launcher is ending")
        elif start.token <= newest:
            self._log(f"dropped StartWorkers of round={start.token}: not newer than round={newest}")
        else:
            self._round, self._failures, self._first_code, self._pace = start, [], None, None
            self.phase = Phase.STARTING
            self._kill_all(f"replaces round={newest}", now)
            self._advance(now)

    def _on_stop_workers(self, stop: m.StopWorkers, now: float) -> None:
        self._pace = None
        if self.phase in _ENDING:
            self._leave(self._own_code(), stop.reason, now)
            return
        self.phase = Phase.STOPPING
        self._kill_all(f"the sidecar stops the workers ({stop.reason})", now)
        self._advance(now)

    def _on_exit_launcher(self, order: m.ExitLauncher, now: float) -> None:
        code = order.code if order.code == 0 or self._first_code is None else self._first_code
        self._leave(code, order.reason, now)

    # The pod's end --------------------------------------------------------------------------------------------------

    def _on_asked_to_end(self, event: e.AskedToEnd, now: float) -> None:
        if self._terminate_by is not None or self.phase is Phase.LEAVING:
            self._log(f"{event.signal} again: the launcher is ending already")
            return
        margin_s = min(GRACE_MARGIN_S, GRACE_MARGIN_SHARE * self._grace_s)
        self._terminate_by = now + self._grace_s - margin_s
        self._report(m.Terminating(self._grace_s))
        if not self._alive or self.phase in (Phase.STARTING, Phase.STOPPING):
            self._leave(self._own_code(), f"{event.signal}, and no workers ran", now)
            return
        self.phase = Phase.SAVING
        self._log(f"{event.signal}: passed on to {len(self._alive)} workers, for {self._grace_s - margin_s:g} s")
        # To the worker alone, as torchrun does: it may need its DataLoader children for the save.
        self._out.extend(e.Signal(rank, e.Aim.TERM_WORKER) for rank in sorted(self._alive))

    def _leave(self, code: int, reason: str, now: float) -> None:
        """Kill what is left, and exit when it is gone."""
        if self.phase is Phase.LEAVING:
            return
        self.phase = Phase.LEAVING
        self._exit = e.Exit(code, reason)
        self._leave_by = now + LEAVE_WITHIN_S
        self._kill_all(f"leaves ({reason})", now)
        self._advance(now)

    def _exit_now(self) -> None:
        self._out.extend(_present([self._exit]))
        self._exit = self._leave_by = None

    def _own_code(self) -> int:
        return ENDED_BY_SIGTERM if self._first_code is None else self._first_code

    # The workers ----------------------------------------------------------------------------------------------------

    def _on_worker_ended(self, event: e.WorkerEnded, now: float) -> None:
        self._alive.discard(event.local_rank)
        if self.phase is Phase.SAVING:
            self._worker_ended_after_sigterm(event)
            return
        self._out.append(e.Signal(event.local_rank, e.Aim.KILL_GROUP))  # its DataLoader children
        if self.phase in _REPORTING and event.shell_code != 0:
            self._worker_failed(event)
        elif self.phase is Phase.RUNNING and not self._alive:
            self.phase = Phase.FINISHED
            self._log("all workers exited 0")
            self._report(m.WorkersFinished(self._token()))

    def _worker_failed(self, event: e.WorkerEnded) -> None:
        self.phase = Phase.FAILED
        self._note_code(event)
        failure = m.WorkerExited(
            self._token(), event.local_rank, event.exit_code, event.signal, event.message, event.at
        )
        self._failures.append(failure)
        self._log(f"worker local_rank={event.local_rank} failed: {event.message}")
        self._report(failure)

    def _worker_ended_after_sigterm(self, event: e.WorkerEnded) -> None:
        """A shell that died of our SIGTERM leaves the training behind, unasked: pass the signal on to the rest."""
        aim = e.Aim.TERM_GROUP if event.signal == "SIGTERM" else e.Aim.KILL_GROUP
        self._out.append(e.Signal(event.local_rank, aim))
        self._note_code(event)
        self._log(f"worker local_rank={event.local_rank} ended after SIGTERM: {event.message}")

    def _note_code(self, event: e.WorkerEnded) -> None:
        if self._first_code is None and event.shell_code != 0:
            self._first_code = event.shell_code

    def _on_group_emptied(self, event: e.GroupEmptied, now: float) -> None:
        self._groups.discard(event.local_rank)
        self._advance(now)

    def _kill_all(self, why: str, now: float) -> None:
        if not self._groups:
            return
        self._log(f"{why}: SIGKILL to the groups of {len(self._groups)} workers")
        if self._killed_at is None:
            self._killed_at, self._complain_at = now, now + COMPLAIN_EVERY_S
        self._out.extend(e.Signal(rank, e.Aim.KILL_GROUP) for rank in sorted(self._groups))

    def _advance(self, now: float) -> None:
        """What waits for the old workers' end goes on once nothing is left of them."""
        if self._groups:
            return
        self._killed_at = self._complain_at = None
        if self.phase is Phase.STARTING:
            self._spawn()
        elif self.phase is Phase.STOPPING:
            self.phase = Phase.IDLE
            self._hello()
        elif self.phase is Phase.SAVING:
            self._leave(self._own_code(), "SIGTERM, and all workers have ended", now)
        elif self.phase is Phase.LEAVING:
            self._exit_now()

    def _spawn(self) -> None:
        assert self._round is not None
        start = self._round
        hosts_store = start.rank_offset == 0
        self.phase = Phase.RUNNING
        self._alive, self._groups = set(range(self._nproc)), set(range(self._nproc))
        self._pace = StepPace(start.token)
        self._out.extend([e.ReleasePort()] if hosts_store else [])
        self._out.append(e.Spawn(start))
        self._log(f"workers started ranks={start.rank_offset}-{start.rank_offset + self._nproc - 1}/{start.world_size}")
        self._report(m.WorkersStarted(start.token))
        self._out.extend([e.ReservePort()] if hosts_store else [])

    def _on_steps(self, read: e.StepsRead, now: float) -> None:
        if read.local_rank == 0 and self._pace and self.phase in _REPORTING:
            self._out.extend(e.Report(stepped) for stepped in _present([self._pace.saw(read, now)]))

    # Time -------------------------------------------------------------------------------------------------------------

    def _on_tick(self, _: e.Tick, now: float) -> None:
        if self._pace and self.phase in _REPORTING:
            self._out.extend(e.Report(stepped) for stepped in _present([self._pace.due(now)]))
        if self._complain_at is not None and now >= self._complain_at:
            self._complain(now)
        if self.phase is Phase.SAVING and self._terminate_by is not None and now >= self._terminate_by:
            code = KILLED_AT_GRACE_END if self._first_code is None else self._first_code
            self._leave(code, "the workers did not end within the grace period", now)
        if self._leave_by is not None and now >= self._leave_by:
            self._exit_now()

    def _complain(self, now: float) -> None:
        assert self._killed_at is not None
        left = ",".join(str(rank) for rank in sorted(self._groups))
        self._log(f"not gone {now - self._killed_at:.0f} s after SIGKILL (stuck in the kernel?): local_ranks={left}")
        self._complain_at = now + COMPLAIN_EVERY_S
        self._out.extend(e.Signal(rank, e.Aim.KILL_GROUP) for rank in sorted(self._groups))

    # Words ------------------------------------------------------------------------------------------------------------

    def _token(self) -> RoundToken:
        return self._round.token if self._round else NO_ROUND

    def _hello(self) -> None:
        group_rank = self._round.group_rank if self._round else None
        ran = WorkersState.FAILED if self._failures else WorkersState.RUNNING
        told = TOLD.get(self.phase, ran)
        self._report(m.LauncherHello(self._pid, self._token(), group_rank, told, self._master_port))

    def _report(self, message: Any) -> None:
        self._out.append(e.Report(message))

    def _log(self, text: str) -> None:
        self._out.append(e.Log(f"round={self._token() if self._round else None} {text}"))


def _present(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if value is not None]

"""Supervises the workers: a sans-IO state machine. `handle(event, now)` returns the effects.

    phase               event                          next       effects
    ------------------  -----------------------------  ---------  ----------------------------------------------------
    IDLE                StartWorkers                   RUNNING    Spawn, WorkersStarted (by way of STARTING)
    RUNNING … STOPPING  StartWorkers                   STARTING   SIGKILL to every group: the old round is over
    RUNNING, FAILED     StartWorkers, a worker grace   REPLACING  SIGTERM to every worker that handles it
    REPLACING           StartWorkers                   REPLACING  the newer order replaces the older one
    REPLACING           the grace is over              STARTING   SIGKILL to every group
    REPLACING           the last group is empty        RUNNING    Spawn, WorkersStarted (by way of STARTING)
    STARTING            StartWorkers                   STARTING   the newer order replaces the older one
    STARTING            the last group is empty        RUNNING    Spawn, WorkersStarted; once no zygote loads (warm.py)
    any                 alive long after its SIGKILL   as it is   SIGKILL again; Unkillable for each remaining process
    RUNNING, FAILED     a worker fails                 FAILED     WorkerExited; SIGKILL to its group, neighbors run on
    REPLACING … FAILED  a worker raises an exception   as it is   WorkerRaised
    RUNNING             the last worker exits 0        FINISHED   WorkersFinished
    RUNNING             a worker makes no step         RUNNING    its stacks, then Hung, if enabled (hangs.py)
    RUNNING             WriteStacks, no step was made  RUNNING    the same for all workers
    RUNNING, FAILED     a worker reports collectives   as it is   CollectiveTimes
    RUNNING             BreakWorker (a drill)          RUNNING    SIGKILL or SIGSTOP to the group of one worker
    IDLE … STOPPING     StopWorkers                    STOPPING   SIGKILL to every group
    STOPPING            the last group is empty        IDLE       LauncherHello: no process is left
    REPLACING … FAILED  DrainWorkers                   DRAINING   SIGTERM to every worker that can save
    DRAINING            DrainWorkers                   DRAINING   the grace may become shorter
    DRAINING            the grace is over              DRAINING   SIGKILL to every group
    DRAINING            the last group is empty        IDLE       WorkersDrained
    other phases        DrainWorkers                   as it is   WorkersDrained, as soon as no process is left
    IDLE … STOPPING     AskedToEnd, workers can save   SAVING     Terminating; SIGTERM to every worker
    IDLE … STOPPING     AskedToEnd, none can save      LEAVING    Terminating
    IDLE … CLOSING      AskedToEnd, no save is tried   LEAVING    Terminating; SIGKILL to every group
    SAVING              DrainWorkers                   SAVING     the grace may become shorter
    IDLE … SAVING       ExitLauncher                   LEAVING    SIGKILL to every group
    IDLE … SAVING       … with a grace, they can save  CLOSING    SIGTERM to every worker
    IDLE … SAVING       … with a grace, none can       LEAVING
    RUNNING, FAILED     … with a code, a worker grace  CLOSING    SIGTERM to every worker that handles it
    CLOSING             AskedToEnd                     CLOSING    Terminating; the grace may become shorter
    CLOSING             ExitLauncher with a grace      CLOSING    the grace may become shorter
    SAVING, CLOSING     the last group is empty        LEAVING
    SAVING, CLOSING     the grace is over              LEAVING    SIGKILL to every group
    SAVING, CLOSING     StopWorkers, ExitLauncher      LEAVING    SIGKILL to every group
    LEAVING             the last group is empty        -          Exit; also when LEAVE_WITHIN_S is over
    IDLE                CheckReadiness                 IDLE       see readiness.py
    IDLE                TakeOver, before any round     IDLE       ReplaceCommand
    IDLE, STARTING      ContainerCommandFailed         LEAVING    SIGKILL to every group
    any                 TorchrunEnded                  -          as AskedToEnd
    RUNNING, FAILED     Restore of its round           as it is   ChooseSnapshot, once
    any                 Ping                           as it is   Pong

Rules: a StartWorkers whose token is not newer than the newest is dropped (an equal one is already executed), and so is
one in SAVING, CLOSING and LEAVING. A new round's workers start only when no process of the old ones is left: "the last
group is empty" includes processes that have left their worker's group, which are killed by then. A worker that the
launcher kills has not failed. Before a new round replaces workers, their error files are read, because a worker that
has raised an exception may not have ended. A worker can save while it is alive and has not got SIGKILL. It gets SIGTERM
at most once. After that no worker's end is reported, because exit 0 may then mean "saved", not "finished". So a
training that ends during a drain counts as drained, unless WorkersFinished was sent before. A DrainWorkers of another
round than the newest is answered at once, because none of its workers run; if a newer round starts, the drain gets no
answer. `graces` combines the grace periods.

The worker grace lets the healthy neighbors of a failed worker finish what they write after the failure (a dump of
NCCL's flight recorder, a core file, a checkpoint). SIGTERM would end a worker without a handler at once, so such a
worker gets the time without the signal.

The launcher exits 0 only when the sidecar orders it. Otherwise its code is that of the round's first failed worker, so
that the pod's status shows the failure. A close with a grace sets the exit code, because a worker that ends by the
launcher's SIGTERM has not failed. A later close does not change the code of the first.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Callable, Optional, Union

from understudy_launcher import events as e
from understudy_launcher.graces import Graces
from understudy_launcher.groups import LEFTOVERS, Groups
from understudy_launcher.hangs import HangWatch
from understudy_launcher.learning import Learning
from understudy_launcher.phases import (
    AFTER_SIGTERM,
    EMPTYING,
    ENDING,
    REPORTED_STATE,
    REPORTING,
    STEPPING,
    LauncherPhase,
    OnSigterm,
)
from understudy_launcher.readiness import HUNG, Answer, SelfCheck
from understudy_launcher.rounds import DrainProgress, Round
from understudy_launcher.steps import RoundSteps
from understudy_launcher.warm import OF_THE_ZYGOTE, ForkServerState, ForkServerWatch
from understudy_launcher.warmup import WARMUP, Warmup
from understudy_protocol import launcher as m
from understudy_protocol.enums import NO_ROUND, Drill, Verdict, WorkersState
from understudy_protocol.snapshots import MadeStep, SavedSteps

#: The launcher waits this long for its killed workers, and then exits anyway: they end with pid 1.
LEAVE_WITHIN_S = 1.0
#: At most this many processes that outlive SIGKILL are reported at one time.
MAX_UNKILLABLE = 16
#: Exit codes after SIGTERM: the workers ended in time; they did not; no checkpoint was tried.
ENDED_BY_SIGTERM = 143
KILLED_AT_GRACE_END = 137
NO_CHECKPOINT = 1
_IF_HANDLED = ", only to those that handle it"


class Supervisor:
    """See the module. `pid` is the launcher's own; `grace_s` is the pod's termination grace period.

    step_timeout_s: a worker hangs if it has made a step and then none for this time; 0 disables this. devices: see
    readiness.py. snapshots: the workers have memory for them. learns: see learning.py.
    """

    def __init__(
        self,
        pid: int,
        nproc: int,
        grace_s: float,
        *,
        zygote: bool = False,
        own_stores: bool = False,
        on_sigterm: OnSigterm = OnSigterm.AUTO,
        warmup: bool = False,
        step_timeout_s: float = 0.0,
        devices: bool = False,
        calls_torchrun: bool = False,
        fork_fallback_reason: str = "",
        snapshots: bool = False,
        learns: bool = False,
    ) -> None:
        self.phase = LauncherPhase.IDLE
        self._pid, self._nproc = pid, nproc
        self._round = Round()  # the newest accepted round
        self._groups = Groups()
        self._master_port = 0
        self._graces = Graces(grace_s)
        self._worker_grace_period_s = 0.0
        self._warm = ForkServerWatch(
            zygote,
            own_stores=own_stores,
            calls_torchrun=calls_torchrun,
            fork_fallback_reason=fork_fallback_reason,
        )
        self._learns, self._learning = learns, Learning(learns)
        self._warmup = Warmup(warmup)
        self._has_devices, self._self_check = devices, SelfCheck(self._warm, self._warmup, devices)
        self._on_sigterm, self._step_timeout_s = on_sigterm, step_timeout_s
        self._last_step_at: Optional[float] = None  # when any worker of any round made its last step
        self._stepped = NO_ROUND  # the newest round in which a worker made a step
        self._snapshots = snapshots  # there is memory for them
        self._stored: Optional[m.SnapshotsStored] = None  # the newest report
        #: In the newest round whose workers have reported a step. None: also if that round has counted its steps.
        self._newest_made: Optional[MadeStep] = None
        self._fetched_since = NO_ROUND  # the oldest round since the last round with a choice
        self._newest_read: Optional[e.StepsRead] = None  # of the workers of _spawned: the highest step
        self._spawned = NO_ROUND  # the newest round whose workers were started
        self._is_taken_over: Optional[m.TakeOver] = None  # the order of the job that has claimed this spare
        self._close: Optional[m.ExitLauncher] = None  # in CLOSING
        self._leave_by: Optional[float] = None
        self._exit: Optional[e.Exit] = None
        self._out: list[e.Effect] = []
        self._handlers: dict[type[Any], Callable[[Any, float], None]] = {
            e.LauncherStarted: self._on_started,
            e.CommandReplaced: self._on_command_replaced,
            e.Connected: self._on_connected,
            e.PortReserved: self._on_port,
            m.StartWorkers: self._on_start_workers,
            m.StopWorkers: self._on_stop_workers,
            m.DrainWorkers: self._on_drain_workers,
            m.WriteStacks: self._on_write_stacks,
            m.BreakWorker: self._on_break_worker,
            m.ExitLauncher: self._on_exit_launcher,
            m.RenewStore: self._on_renew_store,
            m.CheckReadiness: self._on_check,
            m.Ping: self._on_ping,
            e.StorageReported: self._on_storage_reported,
            m.Preload: self._on_preload,
            **dict.fromkeys((e.ModulesLearned, e.ModuleRefused, e.LearningEnded), self._on_learning),
            e.ZygoteChecked: self._on_check,
            e.DevicesChecked: self._on_check,
            m.TakeOver: self._on_take_over,
            e.AskedToEnd: self._on_asked_to_end,
            e.WorkerEnded: self._on_worker_ended,
            e.WorkerRaised: self._on_worker_raised,
            e.GroupEmptied: self._on_group_emptied,
            e.LeftoversFound: self._on_leftovers_found,
            e.SurvivorsFound: self._on_survivors_found,
            e.StepsRead: self._on_steps,
            e.CollectivesRead: self._on_collectives,
            e.SnapshotsRead: self._on_snapshots_read,
            m.Restore: self._on_restore,
            **dict.fromkeys(OF_THE_ZYGOTE, self._on_zygote),
            e.ContainerCommandFailed: self._on_command_failed,
            e.TorchrunEnded: self._on_torchrun_ended,
            e.Tick: self._on_tick,
        }

    def handle(self, event: e.Event, now: float) -> list[e.Effect]:
        """The effects of an event at the time `now` (any monotonic clock)."""
        self._handlers[type(event)](event, now)
        effects, self._out = self._out, []
        return effects

    def deadline(self) -> Optional[float]:
        """When a Tick is due; None if none is."""
        steps, hangs = self._steps(), self._hangs()
        times = [
            self._kill_at(),
            self._groups.log_at,
            self._leave_by,
            self._warm.deadline(),
            self._self_check.deadline(),
            self._learning.deadline(),
        ]
        times += [steps.deadline() if steps else None, hangs.deadline() if hangs else None]
        return min(_without_unset(times), default=None)

    # The sidecar ----------------------------------------------------------------------------------------------------

    def _on_started(self, event: e.LauncherStarted, now: float) -> None:
        self._worker_grace_period_s = event.worker_grace_period_s
        self._out.extend([e.ReservePort(), *self._warm.start(now)])
        self._warm_up(now)

    def _on_command_replaced(self, event: e.CommandReplaced, now: float) -> None:
        self._worker_grace_period_s = event.worker_grace_period_s

    def _on_connected(self, _: e.Connected, now: float) -> None:
        """The hello reports the state. Messages that are sent once follow, because the sidecar may have missed them."""
        self._hello()
        self._out.extend(e.Report(message) for message in self._round.history())
        if self._warm.fork_fallback_reason:
            self._report(m.ForkFallback(self._warm.fork_fallback_reason))
        if self._learning.modules:
            self._report(m.Learned(self._learning.modules))
        if self._stored is not None:
            self._report(self._stored)
        if self._graces.pod_by is not None:
            self._report(m.Terminating(max(0.0, self._graces.pod_by - now)))

    def _on_port(self, event: e.PortReserved, now: float) -> None:
        self._master_port = event.port
        self._report_ports()

    def _report_ports(self) -> None:
        self._report(m.NextPort(self._master_port, self._warm.store_port))

    def _on_start_workers(self, start: m.StartWorkers, now: float) -> None:
        newest = self._round.token
        if self.phase in ENDING:
            self._log(f"does not start round={start.token}: the launcher is shutting down")
        elif start.token <= newest:
            self._log(f"ignored StartWorkers of round={start.token}: not newer than round={newest}")
        else:
            has_grace = self._worker_grace_period_s > 0 and self.phase in REPORTING and self._can_save()
            self._round = Round(start)
            self._replace(f"replaces round={newest}", has_grace, now)
            self._advance(now)

    def _replace(self, reason: str, has_grace: bool, now: float) -> None:
        if self._groups.alive and not self._groups.killed:
            self._out.append(e.ReadExceptions())
        if has_grace:
            self._graces.replace(now + self._worker_grace_period_s)
            self._ask_to_save(
                LauncherPhase.REPLACING, f"{reason}, within {self._worker_grace_period_s:g} s", e.Aim.TERM_HANDLER
            )
        elif self.phase is not LauncherPhase.REPLACING:
            self._graces.forget_order()
            self.phase = LauncherPhase.STARTING
            self._kill_all(reason, now)

    def _on_stop_workers(self, stop: m.StopWorkers, now: float) -> None:
        self._round.steps = self._round.hangs = None
        if self.phase in ENDING:
            self._leave(self._own_code(), stop.reason, now)
            return
        self.phase = LauncherPhase.STOPPING
        self._kill_all(f"the sidecar stops the workers ({stop.reason})", now)
        self._advance(now)

    def _on_drain_workers(self, order: m.DrainWorkers, now: float) -> None:
        if order.token != self._round.token:
            self._log(f"no workers of round={order.token} run: already drained")
            self._report(m.WorkersDrained(order.token))
            return
        self._round.drain = DrainProgress.ASKED
        if self.phase in (LauncherPhase.REPLACING, LauncherPhase.STARTING, LauncherPhase.RUNNING, LauncherPhase.FAILED):
            self._ask_to_save(LauncherPhase.DRAINING, f"drains the workers, which have {order.grace_s:g} s to save")
        if self.phase in (LauncherPhase.DRAINING, LauncherPhase.SAVING):
            self._graces.shorten(now + order.grace_s)
        self._advance(now)

    def _on_write_stacks(self, order: m.WriteStacks, now: float) -> None:
        hangs = self._hangs()
        if hangs and order.token == self._round.token:
            self._out.extend(hangs.write_stacks(self._groups.alive, now))

    def _on_break_worker(self, order: m.BreakWorker, now: float) -> None:
        """Its end is reported like any other. Only a worker that has made a step in this round can be found to hang."""
        steps = self._steps()
        ranks = self._groups.alive
        if order.drill is Drill.HANG:
            ranks = ranks & steps.newest.keys() if steps else set()
        if order.token != self._round.token or self.phase is not LauncherPhase.RUNNING or not ranks:
            self._log(f"ignored a drill in round={order.token}: its workers do not run, or have made no step")
            return
        local_rank = max(ranks)
        aim = e.Aim.STOP_GROUP if order.drill is Drill.HANG else e.Aim.KILL_GROUP
        self._log(f"a drill: {aim.value}, local_rank={local_rank}")
        self._out.append(e.Signal(local_rank, aim))

    def _on_exit_launcher(self, order: m.ExitLauncher, now: float) -> None:
        aim = e.Aim.TERM_WORKER
        if self._worker_grace_period_s > 0 and order.grace_s <= 0 and order.code != 0 and self.phase in REPORTING:
            order = replace(order, code=self._closing_code(order), grace_s=self._worker_grace_period_s)
            aim = e.Aim.TERM_HANDLER
        if order.grace_s > 0 and self._close is not None:
            self._graces.shorten(now + order.grace_s)
        elif order.grace_s > 0 and self._can_save():
            self._close = order
            self._graces.replace(now + order.grace_s)
            self._ask_to_save(LauncherPhase.CLOSING, f"{order.reason}; {order.grace_s:g} s to save", aim)
        else:
            self._leave(self._closing_code(order), order.reason, now)

    def _closing_code(self, order: m.ExitLauncher) -> int:
        if self._close is not None:
            return self._close.code
        overruled = order.code != 0 and order.grace_s <= 0 and self._round.first_code is not None
        return self._own_code() if overruled else order.code

    # The pod's end --------------------------------------------------------------------------------------------------

    def _on_asked_to_end(self, event: e.AskedToEnd, now: float) -> None:
        if self._graces.pod_by is not None or self.phase is LauncherPhase.LEAVING:
            self._log(f"ignored another {event.signal}: the launcher is already shutting down")
            return
        self._graces.pod_ends(now, event.grace_s)
        no_save = self._no_save_reason(event)
        if no_save:
            self._report(m.Terminating(0.0, Verdict.FAULTY if event.hardware_finding else Verdict.UNKNOWN))
            self._leave(self._own_code(NO_CHECKPOINT), f"{event.signal}, and no checkpoint is tried: {no_save}", now)
            return
        self._report(m.Terminating(self._graces.pod_s))
        if not self._can_save():
            self._leave(self._own_code(), f"{event.signal}, and no workers ran", now)
        elif self.phase is not LauncherPhase.CLOSING:
            self._ask_to_save(LauncherPhase.SAVING, f"{event.signal}, with a grace period of {self._graces.pod_s:g} s")

    def _on_command_failed(self, event: e.ContainerCommandFailed, now: float) -> None:
        self._leave(event.code, event.reason, now)

    def _on_torchrun_ended(self, event: e.TorchrunEnded, now: float) -> None:
        """The workers of a torchrun end with it, and may save."""
        if self.phase is not LauncherPhase.LEAVING:
            self._on_asked_to_end(e.AskedToEnd("the end of torchrun"), now)

    def _no_save_reason(self, event: e.AskedToEnd) -> str:
        """Why no checkpoint is tried; "" if one may be."""
        if self._on_sigterm is OnSigterm.NEVER:
            return "termination.onSigterm is Never"
        faulty = event.hardware_finding and self._on_sigterm is not OnSigterm.ALWAYS
        return f"the node is faulty: {event.hardware_finding}" if faulty else ""

    def _can_save(self) -> bool:
        """After SIGTERM a worker that is a shell may be dead while the training that it started still saves."""
        savers = self._groups.left if self.phase in AFTER_SIGTERM else self._groups.alive
        return bool(savers) and not self._groups.killed

    def _ask_to_save(self, phase: LauncherPhase, reason: str, aim: e.Aim = e.Aim.TERM_WORKER) -> None:
        signals = self._groups.term(aim) if self._can_save() and self.phase not in AFTER_SIGTERM else []
        self.phase = phase
        self._log(f"{reason}: SIGTERM to {len(signals)} workers{_IF_HANDLED if aim is e.Aim.TERM_HANDLER else ''}")
        self._out.extend(signals)

    def _leave(self, code: int, reason: str, now: float) -> None:
        """Kill all remaining processes, and exit when they have ended."""
        if self.phase is LauncherPhase.LEAVING:
            return
        self.phase = LauncherPhase.LEAVING
        self._exit = e.Exit(code, reason)
        self._leave_by = now + LEAVE_WITHIN_S
        self._kill_all(f"shuts down ({reason})", now)
        self._advance(now)

    def _exit_now(self) -> None:
        self._out.extend(_without_unset([self._exit]))
        self._exit = self._leave_by = None

    def _own_code(self, otherwise: int = ENDED_BY_SIGTERM) -> int:
        if self._close is not None:
            return self._close.code
        return otherwise if self._round.first_code is None else self._round.first_code

    # The workers ----------------------------------------------------------------------------------------------------

    def _on_worker_ended(self, event: e.WorkerEnded, now: float) -> None:
        if event.local_rank == WARMUP:
            self._out.extend([e.Signal(WARMUP, e.Aim.KILL_GROUP), *self._warmup.ended(event, now)])
            return
        self._groups.alive.discard(event.local_rank)
        self._learning.ended(event.local_rank)
        steps = self._steps()
        if steps:
            self._report_steps(steps.ended(event.local_rank, now))
        if self.phase in AFTER_SIGTERM:
            self._worker_ended_after_sigterm(event)
            return
        self._out.append(e.Signal(event.local_rank, e.Aim.KILL_GROUP))  # its DataLoader children
        if self.phase in REPORTING and event.shell_code != 0:
            self.phase = LauncherPhase.FAILED
            self._log(f"worker local_rank={event.local_rank} failed: {event.message}")
            self._report(self._round.failed(event))
        elif self.phase is LauncherPhase.RUNNING and not self._groups.alive:
            self.phase = LauncherPhase.FINISHED
            self._log("all workers exited 0")
            self._report(m.WorkersFinished(self._round.token))

    def _on_worker_raised(self, event: e.WorkerRaised, now: float) -> None:
        """Of the workers that run, or are replaced: a newer round has none yet."""
        self._log(f"worker local_rank={event.local_rank} has raised an exception: {event.message}")
        raised = m.WorkerRaised(self._spawned, event.local_rank, event.message, event.age_s, event.traceback)
        self._report(raised)

    def _worker_ended_after_sigterm(self, event: e.WorkerEnded) -> None:
        """A shell that ended by our SIGTERM does not pass it to the training: send SIGTERM to the rest of its group."""
        aim = e.Aim.TERM_GROUP if event.signal == "SIGTERM" else e.Aim.KILL_GROUP
        self._out.append(e.Signal(event.local_rank, aim))
        if self.phase is LauncherPhase.SAVING:
            self._round.note_code(event)
        self._log(f"worker local_rank={event.local_rank} ended after SIGTERM: {event.message}")

    def _on_group_emptied(self, event: e.GroupEmptied, now: float) -> None:
        self._groups.emptied(event.local_rank)
        self._advance(now)

    def _on_leftovers_found(self, event: e.LeftoversFound, now: float) -> None:
        self._log(f"SIGKILL to workers' processes outside their process groups: {', '.join(event.processes)}")

    def _on_survivors_found(self, event: e.SurvivorsFound, now: float) -> None:
        if not self._groups.killed:
            return
        seconds = self._groups.since_kill_s(now)
        named = [f"{one.name} pid={one.pid} local_rank={one.local_rank} state={one.state}" for one in event.processes]
        ranks = ",".join(str(rank) for rank in sorted(self._groups.left))
        self._log(f"alive {seconds:.0f} s after SIGKILL, probably stuck in the kernel: {', '.join(named) or ranks}")
        for one in event.processes[:MAX_UNKILLABLE]:
            local_rank = None if one.local_rank == WARMUP else one.local_rank
            self._report(m.Unkillable(self._round.token, local_rank, one.pid, seconds, one.state))

    def _kill_all(self, reason: str, now: float) -> None:
        self._warmup.end(reason)
        if self._groups.left:
            workers = len(self._groups.left - {WARMUP, LEFTOVERS})
            what = f"the groups of {workers} workers" if workers else "the warm-up"
            self._log(f"{reason}: SIGKILL to {what}")
        self._out.extend(self._groups.kill(now))

    def _advance(self, now: float) -> None:
        """Continue a phase that waits for the old workers, once all their processes have ended."""
        if self._groups.left:
            return
        if self._groups.leftovers and self._must_be_empty():
            self._out.extend(self._groups.kill(now))
            return
        if self._round.drain is DrainProgress.ASKED:
            self._report(self._round.drained())
        if self.phase is LauncherPhase.REPLACING:
            self.phase = LauncherPhase.STARTING
        if self.phase is LauncherPhase.STARTING and not self._warm.is_loading:
            self._spawn(now)
        elif self.phase is LauncherPhase.STOPPING:
            self.phase = LauncherPhase.IDLE
            self._hello()
        elif self.phase is LauncherPhase.DRAINING:
            self.phase = LauncherPhase.IDLE
            self._log("all workers have ended: drained")
        elif self.phase in (LauncherPhase.SAVING, LauncherPhase.CLOSING):
            why = self._close.reason if self._close else "SIGTERM"
            self._leave(self._own_code(), f"{why}, and all workers have ended", now)
        elif self.phase is LauncherPhase.LEAVING:
            self._exit_now()

    def _must_be_empty(self) -> bool:
        """Whether leftovers must end first. Not in SAVING and CLOSING: the end of the pod follows and kills them."""
        if self.phase in (LauncherPhase.SAVING, LauncherPhase.CLOSING):
            return False
        return self._round.drain is DrainProgress.ASKED or self.phase in EMPTYING

    def _spawn(self, now: float) -> None:
        start = self._round.start
        assert start is not None
        hosts_store = start.rank_offset == 0 and not start.agent_store
        self.phase = LauncherPhase.RUNNING
        self._groups.spawned(self._nproc)
        self._round.steps = RoundSteps(start.token, self._last_step_at)
        self._round.hangs = HangWatch(start, self._round.steps, self._step_timeout_s, now)
        self._out.extend([e.ReleasePort()] if hosts_store else [])
        if self._newest_read is not None:
            read = self._newest_read
            self._newest_made = None if read.is_counted else MadeStep(self._spawned, read.step)
            self._newest_read = None
        self._spawned = start.token
        self._out.extend([e.ReadSnapshots(start)] if self._snapshots else [])
        records = self._learning.spawned(self._warm.forks, now)
        self._out.append(
            e.Spawn(start, is_warmup_done=self._warm.state is ForkServerState.READY, records_imports=records)
        )
        self._log(f"workers started ranks={start.rank_offset}-{start.rank_offset + self._nproc - 1}/{start.world_size}")
        if not self._snapshots:
            self._round.saved = None if self._newest_made is None else SavedSteps((), self._newest_made)
            self._report(m.WorkersStarted(start.token, self._round.saved))
        self._out.extend([e.ReservePort()] if hosts_store else [])
        if start.rank_offset == 0 and start.agent_store and start.master_port == self._warm.store_port:
            self._renew_store()

    def _on_snapshots_read(self, read: e.SnapshotsRead, now: float) -> None:
        if read.token == self._round.token:
            self._round.saved = SavedSteps(read.whole, self._newest_made)
            self._fetched_since = self._fetched_since if self._fetched_since != NO_ROUND else read.token
            self._report(m.WorkersStarted(read.token, self._round.saved, self._fetched_since))

    def _on_restore(self, order: m.Restore, now: float) -> None:
        saved, chosen = self._round.saved, order.choice.saved
        if order.token != self._round.token or saved is None or saved.choice is not None:
            return
        self._round.saved, self._fetched_since = replace(saved, choice=order.choice), NO_ROUND
        self._out.append(e.ChooseSnapshot(order.choice))
        no_snapshot = f"restores no snapshot: {order.choice.reason}"
        self._log(f"restores step {chosen.step} of round={chosen.token}" if chosen else no_snapshot)

    def _on_steps(self, read: e.StepsRead, now: float) -> None:
        newest = self._newest_read
        if newest is None or (not read.is_counted, read.step) > (not newest.is_counted, newest.step):
            self._newest_read = read
        self._last_step_at = read.stepped_at if self._last_step_at is None else max(self._last_step_at, read.stepped_at)
        self._out.extend(self._learning.stepped(read.local_rank, now))
        steps = self._steps()
        if steps:
            self._stepped = self._round.token
            self._report_steps(steps.on_steps_read(read, now))

    def _on_collectives(self, read: e.CollectivesRead, now: float) -> None:
        if self._steps():
            token = self._round.token
            self._report(
                m.CollectiveTimes(token, read.local_rank, read.window, read.step_ns, read.collectives, read.delays_ns)
            )

    def _report_steps(self, stepped: Optional[m.Stepped]) -> None:
        self._out.extend(e.Report(message) for message in _without_unset([stepped]))

    def _steps(self) -> Optional[RoundSteps]:
        """The steps, in phases in which they count: a drained worker may finish a step before it saves."""
        return self._round.steps if self.phase in STEPPING else None

    def _hangs(self) -> Optional[HangWatch]:
        """None once a worker has failed: its neighbors then stop making steps anyway."""
        return self._round.hangs if self.phase is LauncherPhase.RUNNING else None

    def _on_renew_store(self, _: m.RenewStore, now: float) -> None:
        """The sidecar was restarted or follows another coordinator; the previous one may have named the store."""
        if self._warm.store_port:
            self._renew_store(perhaps_named=True)

    def _renew_store(self, *, perhaps_named: bool = False) -> None:
        self._out.extend(self._warm.next_store(self._store_in_use(), perhaps_named=perhaps_named))
        self._report_ports()

    def _store_in_use(self) -> tuple[int, ...]:
        start = self._round.start
        return (start.master_port,) if start and start.agent_store and start.rank_offset == 0 else ()

    def _on_zygote(self, event: Any, now: float) -> None:
        offered, why_fresh = self._warm.store_port, self._warm.fork_fallback_reason
        self._out.extend(self._warm.handle(event, self._store_in_use(), now))
        if self._warm.store_port != offered:
            self._report_ports()
        if self._warm.fork_fallback_reason != why_fresh:
            self._report(m.ForkFallback(self._warm.fork_fallback_reason))
        self._learn(event, now)
        self._warm_up(now)
        self._out.extend(self._self_check.on_change())
        self._advance(now)

    def _learn(self, event: Any, now: float) -> None:
        """Apply an event of the zygote to the learning of modules."""
        if isinstance(event, (e.ZygoteEnded, e.TorchrunCalled)):
            self._learning = Learning(self._learns)
        elif isinstance(event, e.ZygoteLost):
            self._learning.lost_zygote()
        elif isinstance(event, e.SecondZygoteLost):
            self._out.extend(self._learning.on_second_lost(event))
        elif isinstance(event, e.ZygoteReady):
            self._out.extend(self._learning.on_ready(now))

    def _on_preload(self, order: m.Preload, now: float) -> None:
        self._out.extend(self._learning.preload(order.modules, self._warm.forks, now))

    def _on_learning(self, event: Union[e.ModulesLearned, e.ModuleRefused, e.LearningEnded], now: float) -> None:
        if isinstance(event, e.ModulesLearned):
            self._out.extend(self._learning.on_learned(event))
        elif isinstance(event, e.ModuleRefused):
            self._out.extend(self._learning.on_refused(event, now))
        else:
            self._out.extend(self._learning.on_ended())

    def _on_check(self, event: Union[m.CheckReadiness, Answer], now: float) -> None:
        of_devices = event.devices_only if isinstance(event, m.CheckReadiness) else isinstance(event, e.DevicesChecked)
        if of_devices or self.phase is LauncherPhase.IDLE:
            self._out.extend(self._self_check.handle(event, now))

    def _on_storage_reported(self, event: e.StorageReported, now: float) -> None:
        self._stored = event.stored
        self._report(event.stored)

    def _on_ping(self, ping: m.Ping, now: float) -> None:
        self._report(m.Pong(ping.number))

    def _on_take_over(self, order: m.TakeOver, now: float) -> None:
        if order == self._is_taken_over:
            return  # the sidecar was restarted
        if self.phase is not LauncherPhase.IDLE or self._round.start is not None:
            self._log("ignored a TakeOver: a job can claim only a spare, and only before its first round")
            return
        self._is_taken_over = order
        self._self_check.forget()
        self._out.extend([e.Log("claimed by a job"), e.ReplaceCommand(order)])

    def _warm_up(self, now: float) -> None:
        if self.phase is LauncherPhase.IDLE and self._round.start is None and not self._warm.is_loading:
            effects = self._warmup.start(now)
            if effects:
                self._groups.warmup_spawned()
            self._out.extend(effects)

    # Time -------------------------------------------------------------------------------------------------------------

    def _kill_at(self) -> Optional[float]:
        """When the workers' time to save is over."""
        return self._graces.over_at() if self.phase in AFTER_SIGTERM and not self._groups.killed else None

    def _on_tick(self, _: e.Tick, now: float) -> None:
        steps, hangs = self._steps(), self._hangs()
        if hangs:
            self._out.extend(hangs.on_time(self._groups.alive, now))
        if steps:
            self._report_steps(steps.due(now))
            self._out.extend([e.ReadSteps()] if steps.is_due(now) else [])
        if self._groups.is_late(now):
            self._out.extend([*self._groups.kill(now), e.FindSurvivors()])
        self._on_zygote(e.Tick(), now)
        self._out.extend(self._learning.on_time(now))
        if self._self_check.hangs(now):
            self._out.append(e.EndZygote())
            self._on_zygote(e.ZygoteLost(HUNG, is_final=False), now)
        self._out.extend(self._self_check.on_late(now))
        kill_at = self._kill_at()
        if kill_at is not None and now >= kill_at:
            self._grace_is_over(now)
        if self._leave_by is not None and now >= self._leave_by:
            self._exit_now()

    def _grace_is_over(self, now: float) -> None:
        too_long = "the workers did not end within the grace period"
        if self.phase is LauncherPhase.REPLACING:
            self.phase = LauncherPhase.STARTING
        if self.phase in (LauncherPhase.STARTING, LauncherPhase.DRAINING):
            self._kill_all(too_long, now)
        else:
            why = f"{self._close.reason}; {too_long}" if self._close else too_long
            self._leave(self._own_code(KILLED_AT_GRACE_END), why, now)

    # Messages ---------------------------------------------------------------------------------------------------------

    def _hello(self) -> None:
        known = self._round
        ran = WorkersState.FAILED if known.failures else WorkersState.RUNNING
        state = REPORTED_STATE.get(self.phase, ran)
        hello = m.LauncherHello(
            self._pid,
            known.token,
            known.group_rank,
            state,
            self._master_port,
            is_draining=known.drain is DrainProgress.ASKED,
            store_port=self._warm.store_port,
            stepped=self._stepped,
            saved=known.saved,
            fetched_since=self._fetched_since,
            has_devices=self._has_devices,
        )
        self._report(hello)

    def _report(self, message: Any) -> None:
        self._out.append(e.Report(message))

    def _log(self, text: str) -> None:
        self._out.append(e.Log(f"round={self._round.token if self._round.start else None} {text}"))


def _without_unset(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if value is not None]

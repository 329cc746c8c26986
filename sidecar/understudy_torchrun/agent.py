"""Translates between torchrun's agent and the launcher's supervisor (supervise.py): sans-IO, `handle(event, now)`.

The supervisor decides as it does for the launcher's own workers. Torchrun's workers belong to its agent, which can be
instructed only when it calls. So orders wait for the next call, and that call also shows the result.

    state                 event                             next        what it does
    --------------------  --------------------------------  ----------  -------------------------------------------
    AWAY                  WantsRound, workers were to end   RENDEZVOUS  none of them is left
    AWAY                  WantsRound, without an order      RENDEZVOUS  a worker has failed; none of them is left
    RENDEZVOUS            Spawn                             AWAY        BeginRound
    AWAY                  the last worker has been seen     AWAY        WorkersStarted
    AWAY                  PollsMembers                      AWAY        ContinueTraining; WorkersStarted, if unseen
    AWAY                  PollsMembers, workers are to end  POLL        the signal that waited for this is sent
    POLL                  the last worker has ended         AWAY        none of them is left; Interrupt
    AWAY                  no call, for UNCLEAR_S            AWAY        a worker that ended unseen has failed
    AWAY                  a neighbor fails before a call    AWAY        a worker that ended unseen has failed
    AWAY                  WorkersSucceeded                  BARRIER     all workers exited 0
    BARRIER               Spawn                             -           RestartRendezvous: no agent returns
    other states          Exit                              AWAY        LeaveRendezvous
    AWAY                  Exit                              AWAY        LeaveRendezvous, at the next call
    AWAY                  SIGTERM, workers may save         AWAY        ForwardSignal: torchrun ends them, and itself
    AWAY, POLL            SIGTERM, no save is tried         as it is    SIGKILL to every worker, then ExitNow
    RENDEZVOUS … BARRIER  HandlerClosed                     AWAY        a signal has ended the call

A drill (BreakWorker) signals one worker at once, because a fault does not wait for a call either.

Rules: the supervisor reports a round's workers as started when it orders their start. That report waits until the agent
has started them: all of them have been seen, one has made a step, or the agent's next call shows it. Until then the
hello reports STARTING. A worker's failure is reported as soon as it is seen, with the known details: the agent notices
it a little later, and may then take 30 s to end the neighbors. If the agent reaps a worker first, its next call shows
how the worker ended; the agent calls at once, unless it ends the neighbors. Only the agent knows that all workers have
succeeded. Signals to workers wait for PollsMembers, because a worker that dies before it costs torchrun one of its
restarts; but not if a worker has already failed, and not longer than START_LIMIT_S. When the agent itself stops its
workers (after a failure, or its own SIGTERM), it sends them SIGTERM, and we send SIGKILL when the supervisor orders it.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace
from enum import Enum
from typing import Any, Callable, Optional

from understudy_launcher import events as e
from understudy_launcher.groups import LEFTOVERS
from understudy_launcher.phases import AFTER_SIGTERM, ENDING, LauncherPhase, OnSigterm
from understudy_launcher.supervise import Supervisor
from understudy_protocol.enums import WorkersState
from understudy_protocol.launcher import (
    BreakWorker,
    LauncherHello,
    StartWorkers,
    TakeOver,
    WorkerExited,
    WorkersStarted,
)
from understudy_torchrun import rendezvous_calls as c

#: How long a signal waits for the agent's next poll; by default the agent polls ten times a second.
START_LIMIT_S = 2.0
#: The agent has this long for its next call after a worker's end, also on a busy machine. It needs milliseconds.
UNCLEAR_S = 2.0
#: Phases of the supervisor in which the running workers have to end.
_TO_END = (
    LauncherPhase.STARTING,
    LauncherPhase.STOPPING,
    LauncherPhase.DRAINING,
    LauncherPhase.SAVING,
    LauncherPhase.CLOSING,
    LauncherPhase.LEAVING,
)
#: The signal by which torchrun ends all workers once one of them has failed.
BY_TORCHRUN = "SIGTERM"
#: Signals that no lost peer causes. (NCCL's watchdog ends a worker by SIGABRT when it has lost one.)
_CRASHES = frozenset({"SIGKILL", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE"})
_UNREPORTED = "a worker failed; see the error that torchrun logged"


def causes_first(ends: Iterable[e.WorkerEnded]) -> list[e.WorkerEnded]:
    """Order workers whose ends were seen at the same time: crashes first, then the others, and last those that torchrun
    may have ended. A crash does not record its time, but workers that lost a peer do, in their error files.
    """
    return sorted(ends, key=lambda end: (end.signal == BY_TORCHRUN, end.signal not in _CRASHES, end.at))


class AgentState(Enum):
    """The agent's position."""

    AWAY = "with its workers, or on its way"
    RENDEZVOUS = "in next_rendezvous()"
    POLL = "in num_nodes_waiting(), until its workers have ended"
    BARRIER = "in its exit barrier"


class Agent:
    """nproc: from the job's spec."""

    def __init__(
        self,
        pid: int,
        nproc: int,
        grace_s: float,
        on_sigterm: OnSigterm = OnSigterm.AUTO,
        step_timeout_s: float = 0.0,
        fork_fallback_reason: str = "",
    ) -> None:
        """fork_fallback_reason: in mode Auto, why torchrun runs the workers, and not the launcher; "" in mode
        Torchrun.
        """
        self.state = AgentState.AWAY
        self.supervisor = Supervisor(
            pid,
            nproc,
            grace_s,
            own_stores=True,
            on_sigterm=on_sigterm,
            step_timeout_s=step_timeout_s,
            fork_fallback_reason=fork_fallback_reason,
        )
        self._ranks = range(nproc)
        self._runs = False  # workers run, since the answer BeginRound
        self._alive: set[int] = set()  # the watched workers that run
        self._seen: set[int] = set()  # the round's workers that were seen to run or to have ended
        self._start_report: Optional[e.Report] = None  # waits until the workers are seen to run
        self._unclear: Optional[e.WorkerEnded] = None  # the first whose exit code is unknown
        self._unclear_until: Optional[float] = None  # then it counts as failed
        self._begin: Optional[StartWorkers] = None  # not answered yet
        self._waiting: Optional[e.Aim] = None  # a signal that waits for PollsMembers
        self._waits_until: Optional[float] = None
        self._exit: Optional[e.Exit] = None
        self._ended_by_torchrun = False  # torchrun has got SIGTERM
        self._ends_now = False
        self._empty = False  # the supervisor has to be informed that no worker is left
        self._out: list[c.Effect] = []
        self._now = 0.0
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            TakeOver: lambda order: None,  # the launcher has executed it: torchrun is of the job's command
            c.WantsRound: self._on_wants_round,
            c.PollsMembers: self._on_polls_members,
            c.WorkersSucceeded: self._on_workers_succeeded,
            c.HandlerClosed: self._on_handler_closed,
            c.WorkersSeen: self._on_workers_seen,
            e.WorkerEnded: self._on_worker_ended,
            e.WorkerRaised: self._on_worker_raised,
            e.StepsRead: self._on_steps_read,
            e.CollectivesRead: self._on_collectives_read,
            e.AskedToEnd: self._on_asked_to_end,
            e.Tick: self._on_tick,
        }

    def handle(self, event: Any, now: float) -> list[c.Effect]:
        """The effects of a call of the agent, or of an event for the supervisor."""
        self._now = now
        self._handlers.get(type(event), self._to_supervisor)(event)
        while self._empty:
            self._report_nothing_left()
        effects, self._out = self._out, []
        return effects

    def deadline(self) -> Optional[float]:
        """When a Tick is due; None if none is."""
        times = [self.supervisor.deadline(), self._waits_until, self._unclear_until]
        return min((at for at in times if at is not None), default=None)

    @property
    def ends(self) -> bool:
        """Whether the job is closed, or the pod ends: the process exits soon."""
        return self.supervisor.phase in ENDING

    # The agent's calls ----------------------------------------------------------------------------------------------

    def _on_wants_round(self, call: c.WantsRound) -> None:
        self.state, self._unclear_until = AgentState.RENDEZVOUS, None
        if self._runs and self.supervisor.phase is LauncherPhase.RUNNING:
            self._to_supervisor(self._failure(call.at))
        if self._runs:
            self._nothing_runs()
        if self._exit is not None:
            self._leave(self._exit)
        elif self._begin is not None:
            self._answer_begin(self._begin)

    def _on_polls_members(self, _: c.PollsMembers) -> None:
        self.state, self._unclear_until = AgentState.POLL, None
        self._report_start()
        self._signal_waiting()
        if self._exit is not None:
            self._leave(self._exit)
        elif self._runs and self.supervisor.phase in _TO_END:
            self._continue_once_all_have_ended()
        else:
            self._answer(c.ContinueTraining())

    def _on_workers_succeeded(self, call: c.WorkersSucceeded) -> None:
        self.state, self._unclear_until = AgentState.BARRIER, None
        self._report_start()
        for rank in self._ranks:
            self._to_supervisor(e.WorkerEnded(rank, 0, None, 0, "exit code 0", call.at))
        self._nothing_runs()
        if self._exit is not None:
            self._leave(self._exit)

    def _on_handler_closed(self, _: c.HandlerClosed) -> None:
        self.state = AgentState.AWAY

    def _answer_begin(self, start: StartWorkers) -> None:
        self._begin, self._unclear, self._unclear_until = None, None, None
        self._runs = True
        self._seen.clear()
        self._answer(c.BeginRound(start))

    def _answer(self, answer: c.Answer) -> None:
        self.state = AgentState.AWAY
        self._out.append(answer)

    def _leave(self, end: e.Exit) -> None:
        self._answer(c.LeaveRendezvous(end.code, end.reason))

    # The workers ----------------------------------------------------------------------------------------------------

    def _on_workers_seen(self, seen: c.WorkersSeen) -> None:
        self._alive |= set(seen.local_ranks)
        self._note_seen(seen.local_ranks)

    def _note_seen(self, local_ranks: Collection[int]) -> None:
        self._seen.update(local_ranks)
        if self._seen.issuperset(self._ranks):
            self._report_start()

    def _report_start(self) -> None:
        """The workers run, or have run. Nothing is reported for a round that has to end."""
        report = self._start_report
        if report is not None and self._runs and self._begin is None and self.supervisor.phase is LauncherPhase.RUNNING:
            self._start_report = None
            self._out.append(report)

    def _on_worker_ended(self, event: e.WorkerEnded) -> None:
        self._alive.discard(event.local_rank)
        by_torchrun = event.signal == BY_TORCHRUN
        # the agent has not called since the unclear end
        follows = event.shell_code != 0 and self._unclear_until is not None
        if self._unclear is not None and (by_torchrun or follows) and self.supervisor.phase is LauncherPhase.RUNNING:
            self._unclear_until = None
            self._to_supervisor(replace(self._unclear, shell_code=1))
        phase = self.supervisor.phase
        if event.exit_code is None and event.signal is None:
            self._unclear = self._unclear or event
            if phase is LauncherPhase.RUNNING and self.state is AgentState.AWAY:
                self._unclear_until = self._unclear_until or self._now + UNCLEAR_S
        if phase in AFTER_SIGTERM or (phase is LauncherPhase.RUNNING and event.shell_code != 0):
            self._to_supervisor(event)
        self._note_seen([event.local_rank])
        if self.state is AgentState.POLL:
            self._continue_once_all_have_ended()
        elif (self._ended_by_torchrun or self._ends_now) and not self._alive:
            self._nothing_runs()

    def _on_worker_raised(self, event: e.WorkerRaised) -> None:
        """Not after a SIGTERM that torchrun sends, and not of workers that the next ones replace."""
        if self._begin is None and not (self._ended_by_torchrun or self._ends_now):
            self._to_supervisor(event)

    def _on_steps_read(self, event: e.StepsRead) -> None:
        if self._begin is None:  # else it is about the previous workers, whose folder remains until the next ones begin
            self._report_start()
            self._to_supervisor(event)

    def _on_collectives_read(self, event: e.CollectivesRead) -> None:
        if self._begin is None:
            self._to_supervisor(event)

    def _continue_once_all_have_ended(self) -> None:
        if self._alive or not self._runs:
            return
        self._nothing_runs()
        self._report_nothing_left()
        if self.state is AgentState.POLL:  # and the answer was not LeaveRendezvous
            self._answer(c.Interrupt())

    def _nothing_runs(self) -> None:
        self._runs, self._empty, self._start_report = False, True, None
        self._alive.clear()
        self._drop_waiting()

    def _report_nothing_left(self) -> None:
        self._empty = False
        for rank in (*self._ranks, LEFTOVERS):
            self._to_supervisor(e.GroupEmptied(rank))

    def _failure(self, at: float) -> e.WorkerEnded:
        """A failed worker that only the agent knows."""
        seen = self._unclear or e.WorkerEnded(0, None, None, 1, _UNREPORTED, at)
        return replace(seen, shell_code=1)

    # Signals --------------------------------------------------------------------------------------------------------

    def _on_asked_to_end(self, event: e.AskedToEnd) -> None:
        held_back = self._runs and self.state is AgentState.AWAY and not self._ended_by_torchrun
        self._ends_now = self._ends_now or self._runs
        self._to_supervisor(event)  # torchrun sends SIGTERM to the workers; SIGKILL is sent now
        if self.supervisor.phase is not LauncherPhase.LEAVING:
            self._ends_now = False
        elif self._ends_now and not self._alive:
            self._nothing_runs()
        if held_back and self.supervisor.phase is LauncherPhase.SAVING:
            self._ended_by_torchrun = True
            self._drop_waiting()
            self._out.append(c.ForwardSignal())

    def _on_signal(self, aim: e.Aim, before: LauncherPhase) -> None:
        """Signal all workers."""
        if self._begin is not None:  # no worker has been started
            self._begin, self._empty, self._start_report = None, True, None
        if not self._runs:
            return
        agent_ends_them = before is LauncherPhase.FAILED or self._ended_by_torchrun
        if aim is e.Aim.TERM_WORKER and (agent_ends_them or self._ends_now):
            return
        if agent_ends_them or self._ends_now or self.state is AgentState.POLL:
            self._drop_waiting()
            self._send(aim)
        else:
            self._waiting = aim
            self._waits_until = self._waits_until or self._now + START_LIMIT_S

    def _signal_waiting(self) -> None:
        aim = self._waiting
        self._drop_waiting()
        if aim is not None:
            self._send(aim)

    def _drop_waiting(self) -> None:
        self._waiting = self._waits_until = None

    def _send(self, aim: e.Aim) -> None:
        if c.SignalWorkers(aim) not in self._out:
            self._out.append(c.SignalWorkers(aim))

    # The supervisor ---------------------------------------------------------------------------------------------------

    def _on_tick(self, tick: e.Tick) -> None:
        self._to_supervisor(tick)
        if self._unclear_until is not None and self._now >= self._unclear_until:
            self._unclear_until = None
            if self._unclear is not None and self._runs and self.supervisor.phase is LauncherPhase.RUNNING:
                self._to_supervisor(replace(self._unclear, shell_code=1))
        if self._waits_until is not None and self._now >= self._waits_until:
            self._signal_waiting()

    def _to_supervisor(self, event: Any) -> None:
        before = self.supervisor.phase
        for effect in self.supervisor.handle(event, self._now):
            if isinstance(effect, e.Spawn) and self.state is AgentState.BARRIER:
                self._answer(c.RestartRendezvous())
                return  # the restarted process reports the rest
            if isinstance(effect, e.Spawn):
                self._spawn(effect.start)
            elif isinstance(effect, e.Exit):
                self._end(effect)
            elif isinstance(effect, e.Report):
                self._report(effect)
            elif not isinstance(effect, e.Signal) or isinstance(event, BreakWorker):
                self._out.append(effect)
            elif not isinstance(event, e.WorkerEnded):
                self._on_signal(effect.aim, before)
            elif effect.aim is e.Aim.KILL_GROUP and self._runs and self.state is not AgentState.BARRIER:
                self._out.append(effect)  # kills the worker's children

    def _report(self, report: e.Report) -> None:
        message = report.message
        if isinstance(message, WorkersStarted):
            self._start_report = report
            return
        if isinstance(message, WorkerExited):
            self._start_report = None
        elif isinstance(message, LauncherHello) and self._start_report is not None:
            report = e.Report(replace(message, workers=WorkersState.STARTING))
        self._out.append(report)

    def _spawn(self, start: StartWorkers) -> None:
        if self.state is AgentState.RENDEZVOUS:
            self._answer_begin(start)
        else:
            self._begin = start

    def _end(self, effect: e.Exit) -> None:
        if self._ends_now:
            self._out.append(c.ExitNow(effect.code, effect.reason))
        elif self.state is not AgentState.AWAY:
            self._leave(effect)
        elif not self._ended_by_torchrun:
            self._exit = effect

"""The member: between one pod's launcher and the job's coordinator.

    state        event                               next         what it does
    -----------  ----------------------------------  -----------  ---------------------------------------------------
    NO_LAUNCHER  the launcher connects               APART        dials the coordinator
    APART        linked to a coordinator             JOINED       Join: who it is and what it knows
    JOINED       Assign of a newer round             JOINED       Ack; the launcher starts the round's workers
    JOINED       Standby                             JOINED       the launcher stops what still runs
    JOINED       the link ends                       APART        dials again
    JOINED       nothing heard for HEARD_S           APART        hangs up, and dials again
    APART        no coordinator for FENCE_S          APART        the launcher stops its workers: they may be replaced
    any          Close                               CLOSED       CloseAck; the launcher exits with the close's code
    any          the launcher ends                   NO_LAUNCHER  Gone, and hangs up; after the Close: finishes

Rules: the order of everything is the token; an older one is dropped. The first close stays. A member counts only while
its launcher is connected.
"""

from enum import Enum

from understudy_protocol import launcher as l
from understudy_protocol import membership as m
from understudy_protocol.words import CLOSE_EXIT_CODES, NO_ROUND, RoundToken, WorkersState
from understudy_sidecar.membership.events import (
    Dial,
    Finish,
    FromCoordinator,
    FromLauncher,
    HangupCoordinator,
    LauncherDown,
    LauncherUp,
    LeaveAsked,
    LinkDown,
    LinkUp,
    MemberEffect,
    MemberEvent,
    RecordClose,
    Say,
    Tick,
    ToCoordinator,
    ToLauncher,
)

#: A member that has heard no coordinator in office for so long kills its workers: it may have been replaced.
FENCE_S = 30.0
#: Three of the coordinator's heartbeats: who is silent so long hangs (its kernel may acknowledge all the same).
HEARD_S = 15.0


class State(Enum):
    NO_LAUNCHER = "no-launcher"
    APART = "apart"
    JOINED = "joined"
    CLOSED = "closed"


class Member:
    """See the module. Identity: pod uid and name, node, ip, and the completion index (None: a spare)."""

    def __init__(self, pod_uid: str, pod_name: str, node: str, ip: str, index: int | None, now: float) -> None:
        self.identity = (pod_uid, pod_name, node, ip, index)
        self.state = State.NO_LAUNCHER
        self.token = NO_ROUND
        self.group_rank: int | None = None
        self.workers = WorkersState.IDLE
        self.master_port = 0
        self.closed: m.Close | None = None
        self._last_heard = now
        self._dialing = False
        self._leaving: m.Leaving | None = None
        self._first_step_sent = NO_ROUND
        self._out: list[MemberEffect] = []

    def handle(self, event: MemberEvent, now: float) -> list[MemberEffect]:
        match event:
            case LauncherUp(hello):
                self._on_launcher(hello)
            case FromLauncher(message):
                self._on_launcher_message(message)
            case LauncherDown():
                self._on_launcher_down()
            case LinkUp():
                self._on_link(now)
            case FromCoordinator(message):
                self._last_heard = now
                self._on_coordinator_message(message)
            case LinkDown():
                self._on_link_down()
            case LeaveAsked(reason, grace_s):
                self._leave(reason, grace_s)
            case Tick():
                pass
        self._redial(now)
        self._fence(now)
        effects, self._out = self._out, []
        return effects

    def deadline(self) -> float | None:
        """When a coordinator that stays silent is given up, or the fence falls; None while neither is to come."""
        if self.state is State.JOINED:
            return self._last_heard + HEARD_S
        return self._last_heard + FENCE_S if self._fenceable() else None

    # The launcher's side -------------------------------------------------------------------------------------------

    def _on_launcher(self, hello: l.LauncherHello) -> None:
        if hello.token > self.token:  # a sidecar that was restarted learns here what runs
            self.token, self.group_rank = hello.token, hello.group_rank
        if hello.token == self.token:  # its rank may have been given away since
            self.workers = hello.workers
        self.master_port = hello.master_port
        if self.closed is not None:
            self._exit_launcher()
        elif self.state is State.NO_LAUNCHER:
            self.state = State.APART
            self._dial()

    def _on_launcher_message(self, message: object) -> None:
        match message:
            case l.LauncherHello():
                self._on_launcher(message)
            case l.NextPort(port):
                self.master_port = port
                self._tell(m.Port(port))
            case l.WorkersStarted(token) if token == self.token:
                self.workers = WorkersState.RUNNING
                self._tell(m.Started(token))
            case l.WorkersFinished(token) if token == self.token:
                self.workers = WorkersState.FINISHED
                self._tell(m.Finished(token))
            case l.WorkerExited(token, local_rank, exit_code, signal, text, at) if token == self.token:
                self.workers = WorkersState.FAILED
                self._tell(m.WorkerFailed(token, local_rank, exit_code, signal, text, at))
            case l.Stepped(token, step, total, median_s, at) if token == self.token:
                self._on_step(m.Progress(token, step, total, median_s, at))
            case l.Terminating(grace_s):
                self._leave("the trainer container got SIGTERM", grace_s)
            case _:
                pass  # of a round that is over

    def _on_step(self, progress: m.Progress) -> None:
        """All members tell their first step of a round, only rank 0's tells the others: O(1) for the coordinator."""
        if self._first_step_sent < progress.token or self.group_rank == 0:
            self._first_step_sent = progress.token
            self._tell(progress)

    def _on_launcher_down(self) -> None:
        self.workers = WorkersState.IDLE
        if self.closed is not None:
            self._out.append(Finish())
            return
        self._tell(m.Gone("its launcher has ended"))
        self._out.append(HangupCoordinator("the launcher has ended"))
        self.state, self._dialing = State.NO_LAUNCHER, False

    # The coordinator's side ------------------------------------------------------------------------------------------

    def _on_link(self, now: float) -> None:
        self._dialing = False
        self._last_heard = now
        if self.state is State.NO_LAUNCHER:
            self._out.append(HangupCoordinator("no launcher is connected"))
            return
        if self.state is not State.CLOSED:
            self.state = State.JOINED
        uid, name, node, ip, index = self.identity
        join = m.Join(uid, name, node, ip, index, self.token, self.group_rank, self.workers, self.master_port)
        self._out.append(ToCoordinator(join))
        if self._leaving is not None:
            self._out.append(ToCoordinator(self._leaving))

    def _on_link_down(self) -> None:
        if self.state is State.JOINED:
            self.state = State.APART
        if self.state is State.APART:
            self._dial()

    def _on_coordinator_message(self, message: object) -> None:
        match message:
            case m.Heartbeat(number):
                self._out.append(ToCoordinator(m.HeartbeatAck(number)))
            case m.Assign():
                self._on_assign(message)
            case m.Standby(token):
                self._on_standby(token)
            case m.Close():
                self._on_close(message)
            case _:
                pass  # Welcome: heard, that is all

    def _on_assign(self, assign: m.Assign) -> None:
        if self.state is not State.JOINED:
            return
        if assign.token < self.token:
            self._out.append(Say(f"dropped an assignment of round {assign.token}: round {self.token} is known"))
            return
        if assign.token > self.token:
            self.token, self.group_rank = assign.token, assign.group_rank
            self.workers = WorkersState.STARTING
            self._out.append(ToLauncher(_start(assign)))
            self._out.append(Say(f"round {assign.token}: group rank {assign.group_rank} ({assign.reason})"))
        self._out.append(ToCoordinator(m.Ack(assign.token)))

    def _on_standby(self, token: RoundToken) -> None:
        self.group_rank = None
        if self.workers is not WorkersState.IDLE:
            self._stop(f"round {token} gave its ranks to another member")

    def _on_close(self, close: m.Close) -> None:
        self._out.append(ToCoordinator(m.CloseAck()))
        if self.closed is not None:
            return
        self.closed = close
        self.state = State.CLOSED
        self._out.append(Say(f"closed: {close.reason.value}: {close.message}"))
        self._out.append(RecordClose(close))
        self._exit_launcher()

    # Both -----------------------------------------------------------------------------------------------------------

    def _exit_launcher(self) -> None:
        assert self.closed is not None
        code = CLOSE_EXIT_CODES[self.closed.reason]
        self._out.append(ToLauncher(l.ExitLauncher(code, f"{self.closed.reason.value}: {self.closed.message}")))

    def _leave(self, reason: str, grace_s: float) -> None:
        if self._leaving is None and self.closed is None:
            self._leaving = m.Leaving(reason, grace_s)
            self._tell(self._leaving)

    def _stop(self, reason: str) -> None:
        self.workers = WorkersState.IDLE
        self._out.append(ToLauncher(l.StopWorkers(reason)))
        self._out.append(Say(f"stops its workers: {reason}"))

    def _redial(self, now: float) -> None:
        if self.state is State.JOINED and now - self._last_heard >= HEARD_S:
            self._out.append(HangupCoordinator(f"the coordinator was not heard for {now - self._last_heard:.0f} s"))
            self.state = State.APART
            self._dial()

    def _fenceable(self) -> bool:
        alive = (WorkersState.STARTING, WorkersState.RUNNING)
        return self.closed is None and self.workers in alive and self.state is not State.NO_LAUNCHER

    def _fence(self, now: float) -> None:
        if self._fenceable() and now - self._last_heard >= FENCE_S:
            self._stop(f"no coordinator in office was heard for {now - self._last_heard:.0f} s")

    def _dial(self) -> None:
        if not self._dialing:
            self._dialing = True
            self._out.append(Dial())

    def _tell(self, message: object) -> None:
        if self.state in (State.JOINED, State.CLOSED):
            self._out.append(ToCoordinator(message))


def _start(assign: m.Assign) -> l.StartWorkers:
    return l.StartWorkers(
        assign.token,
        assign.group_rank,
        assign.group_world_size,
        assign.rank_offset,
        assign.world_size,
        assign.master_addr,
        assign.master_port,
    )

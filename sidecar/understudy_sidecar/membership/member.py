"""The member: between one pod's launcher and the job's coordinator.

    state         event                               next          what it does
    ------------  ----------------------------------  ------------  ----------------------------------------------------
    NO_LAUNCHER   the launcher connects               DISCONNECTED  calls the coordinator, or its standby coordinators
    DISCONNECTED  a call is answered                  DISCONNECTED  Join, with its identity and state
    DISCONNECTED  Welcome of the newest term          JOINED        follows this coordinator
    DISCONNECTED  Welcome of an older term            DISCONNECTED  hangs up, and calls the next host
    DISCONNECTED  RequestVote                         DISCONNECTED  VoteGranted, its vote stored before; or VoteDenied
    DISCONNECTED  Redirect, or no answer              DISCONNECTED  Disconnecting, hangs up, and calls the next host
    DISCONNECTED  no coordinator for the fence time   DISCONNECTED  the launcher stops its workers: they may be replaced
    JOINED        Assign of a newer round             JOINED        Ack; the launcher starts the round's workers
    JOINED        Standby                             JOINED        the launcher stops all running workers
    JOINED        Drain                               JOINED        the launcher ends its workers, which may save
    JOINED        WriteStacks                         JOINED        the launcher writes the stacks of its workers
    JOINED        ConfigChange                        JOINED        stores it, and sends ConfigChangeAck
    JOINED        Redirect                            DISCONNECTED  leadership is transferred: calls that standby
    JOINED        the link ends                       DISCONNECTED  calls the standby coordinators
    JOINED        three heartbeats are missing        DISCONNECTED  Disconnecting, hangs up, and calls the next host
    JOINED        its fault gets no answer            DISCONNECTED  Disconnecting, hangs up, and calls the next host
    DISCONNECTED  Evicted, by the newest term         EVICTED       hangs up; the launcher exits with a code of its own
    JOINED        Evicted                             EVICTED       the same
    EVICTED       the launcher ended                  EVICTED       finishes
    EVICTED       the launcher connects               EVICTED       it exits with that code
    any           Close                               CLOSED        CloseAck; the launcher exits with the close's code
    CLOSED        ShutdownComplete, launcher ended    CLOSED        finishes
    CLOSED        LINGER_S after the launcher ended   CLOSED        finishes: members that missed the close may ask here
    CLOSED        the launcher connects               CLOSED        it exits with the close's code
    CLOSED        no launcher connects for LINGER_S   CLOSED        finishes
    any           the launcher ends                   NO_LAUNCHER   Gone, and hangs up
    JOINED        the launcher does not respond       NO_LAUNCHER   the same (launcher_watch.py)
    JOINED        a killed process does not end       NO_LAUNCHER   the same: no round could start here
    NO_LAUNCHER   it responds, no process is left     DISCONNECTED  calls the coordinator, or its standby coordinators
    any           its sidecar cannot store its state  EVICTED       Gone, and hangs up; the launcher exits (core.py)

Rules: messages are ordered by their token; the member drops older ones. The first close is final. A member counts only
while its launcher is connected. An evicted member calls no coordinator. The operator reports the node's verdict in two
ways, through the coordinator and, a minute later, in the pod's annotation: the member keeps the newer one. The launcher
keeps a duplicate of the socket to the coordinator, so that the membership survives a crash of the sidecar alone.
voter.py has the hard state.
"""

from dataclasses import replace
from enum import Enum

from understudy_protocol import launcher as l
from understudy_protocol import membership as m
from understudy_protocol.enums import (
    CLOSE_EXIT_CODES,
    EVICTED_EXIT_CODE,
    NO_ROUND,
    NO_TERM,
    CloseReason,
    RoundToken,
    Term,
    WorkersState,
)
from understudy_sidecar.membership.calling import Calls
from understudy_sidecar.membership.events import (
    CalledBy,
    ClosedByOperator,
    Dial,
    Finish,
    FromCoordinator,
    FromLauncher,
    FromWorker,
    HangupCoordinator,
    KeepLink,
    LauncherDown,
    LauncherUp,
    LeadershipAssumed,
    LeaveRequested,
    LinkDown,
    LinkUp,
    Log,
    MemberEffect,
    MemberEvent,
    RecordClose,
    RecordHardState,
    RecordLauncher,
    RecordVerdict,
    Tick,
    ToCoordinator,
    ToLauncher,
    Unfit,
    VerdictAnnotated,
)
from understudy_sidecar.membership.identity import Identity
from understudy_sidecar.membership.launcher_watch import LauncherWatch
from understudy_sidecar.membership.lease import Lease
from understudy_sidecar.membership.voter import Voter

#: After this many missing heartbeats a member calls another coordinator: a hung one's kernel may still acknowledge.
HEARTBEATS = 3
#: A coordinator answers a reported fault in a moment; if no message comes for this long, it hangs.
FAULT_ANSWER_S = 6.0
#: How long the sidecar of a closed job answers members that missed the close.
LINGER_S = 3.0
DEFAULT_HEARTBEAT_S = 5.0
_SAVES = (CloseReason.SUSPENDED, CloseReason.DELETED)


class State(Enum):
    NO_LAUNCHER = "no-launcher"
    DISCONNECTED = "apart"
    JOINED = "joined"
    EVICTED = "given-up"
    CLOSED = "closed"


class Member:
    """See the module."""

    def __init__(
        self,
        identity: Identity,
        voter: Voter,
        now: float,
        closed: m.Close | None = None,
        verdict: m.NodeVerdict | None = None,
        *,
        launcher_known: bool = False,
    ) -> None:
        """closed, verdict: stored by an earlier process of this sidecar; the launcher may not know of the close.

        launcher_known: a launcher was connected to that process: it still runs, and will connect again.
        """
        self.identity = identity
        self.voter = voter
        self.state = State.NO_LAUNCHER if closed is None else State.CLOSED
        self.token = NO_ROUND
        self.group_rank: int | None = None
        self.workers = WorkersState.IDLE
        self.master_port = 0
        self.store_port = 0
        self._store_term: Term | None = None  # the coordinators of this term know of the store
        self._joined_term = NO_TERM  # the term in its newest Join
        self.closed = closed
        self.coordinator: m.StandbyCoordinator | None = None  # the leader, as far as this member knows
        self._verdict = verdict  # the newest about its node
        self._group_world_size = 0  # members of its round
        self._domain = ""
        self._heartbeat_s = DEFAULT_HEARTBEAT_S
        self._lease = Lease(now)
        self._renews_lease = True  # the coordinator confirms this member's answers
        self._launcher_known = launcher_known
        is_awaited = launcher_known and closed is None
        self._launcher_due = now + identity.launcher_timeout_s if is_awaited else None
        self._calls = Calls()
        self._last_coordinator_ip = ""  # IP of the last coordinator
        self._named_ip = ""  # first host of the newest call, because another member or sidecar named it
        self._first_call_ip = ""  # first host of the call when its launcher connects
        self._connected = self._dialing = False
        self._host = ""  # of the newest connection
        self._answer_until: float | None = None  # for the called sidecar
        self._has_voted = False  # for the called candidate
        self._fault_reported_at: float | None = None
        self._failure: m.WorkerFailed | None = None
        self._leaving: m.Leaving | None = None
        self._leaving_until = 0.0
        self._joined_situation: tuple[object, ...] = ()
        self._first_step_sent = NO_ROUND
        self._shutdown_complete = False
        self.replacement_reason = ""  # why it takes no part any more, so that its pod must be replaced
        self._finish_at: float | None = None if closed is None else now + LINGER_S
        self._launcher_ended = False
        self._hang_reported = False
        self._stepped = NO_ROUND  # the newest round in which a worker of this pod has made a step
        self._disconnected_at: float | None = None  # when its last coordinator was lost
        self._disconnected_silently = False
        self._watch = LauncherWatch(identity.launcher_timeout_s)
        self._launcher_silent = False
        self.unable_reason = ""  # why it can take part in no round, although its launcher is connected
        self._has_unkillable = False  # a process of an earlier round has outlived its SIGKILL for too long
        self._replicas: dict[int, m.Replicas] = {}  # the newest report of each rank that ran here
        self._fork_fallback_reason = ""  # why workers are not forked, as the launcher reports
        self._now = now
        self._out: list[MemberEffect] = []

    def handle(self, event: MemberEvent, now: float) -> list[MemberEffect]:
        self._now = now
        match event:
            case LauncherUp() | FromLauncher() | FromWorker() | LauncherDown():
                self._from_trainer(event, now)
            case LinkUp(host):
                self._on_link(host, now)
            case FromCoordinator(message):
                self._on_message(message, now)
            case LinkDown(silent):
                self._on_link_down(silent)
            case LeaveRequested(reason, grace_s, verdict):
                self._on_leave(m.Leaving(reason, grace_s, verdict), now)
            case LeadershipAssumed(elected):
                self._on_leadership_assumed(elected=elected)
            case CalledBy(ip):
                self._on_called_by(ip)
            case Unfit(reason):
                self._on_unfit(reason)
            case VerdictAnnotated(verdict):
                self._on_annotated(verdict)
            case ClosedByOperator(close):
                self._on_close(close, now)
            case Tick():
                pass
        self._on_time(now)
        effects, self._out = self._out, []
        return effects

    def _from_trainer(self, event: LauncherUp | FromLauncher | FromWorker | LauncherDown, now: float) -> None:
        if isinstance(event, LauncherUp | FromLauncher):
            self._watch.on_message(now)
            self._on_launcher_response()
        match event:
            case LauncherUp(hello):
                self._launcher_due = None
                if not self._launcher_known:
                    self._launcher_known = True
                    self._out.append(RecordLauncher(True))
                self._on_launcher(hello)
                self._keep_link()
            case FromLauncher(message):
                self._on_launcher_message(message, now)
            case FromWorker(replicas):
                self._on_replicas(replicas)
            case LauncherDown():
                self._launcher_known = False
                self._out.append(RecordLauncher(False))
                self._on_launcher_down(now)

    @property
    def may_vote_here(self) -> bool:
        """Whether it looks for a coordinator, and is in no pool of a candidate that has its vote."""
        return self.state is State.DISCONNECTED and not self._has_voted

    def deadline(self) -> float | None:
        """The next time at which a timeout or the fence expires, or the sidecar ends; None if there is none."""
        times = [self._finish_at, self._launcher_due, self._watch.deadline()]
        if self.state is State.DISCONNECTED and self._connected:
            times.append(self._answer_until)
        if self.state is State.JOINED:
            times.append(self._lease.renewed_at + HEARTBEATS * self._heartbeat_s)
            if self._fault_reported_at is not None:
                times.append(self._fault_reported_at + FAULT_ANSWER_S)
        if self._may_fence():
            times.append(self._lease.renewed_at + self.identity.fence_s)
        return min((at for at in times if at is not None), default=None)

    # The launcher's side -------------------------------------------------------------------------------------------

    def _on_launcher(self, hello: l.LauncherHello) -> None:
        if hello.token > self.token:  # a restarted sidecar learns here which round runs
            self.token, self.group_rank = hello.token, hello.group_rank
        if hello.token == self.token:  # not if its rank was given away since
            self.workers = hello.workers
        self.master_port, self.store_port = hello.master_port, hello.store_port
        self._stepped = hello.stepped
        self._launcher_ended = False
        if self._fork_fallback_reason:  # the launcher reports it again after its hello
            self._fork_fallback_reason = ""
            self._send(m.ForkFallback(""))
        if self.closed is not None or self.replacement_reason:
            self._finish_at = None
            self._exit_launcher()
        else:
            self._rejoin()

    def _on_launcher_message(self, message: object, now: float) -> None:
        if isinstance(message, l.ForkFallback):
            self._fork_fallback_reason = message.reason
            self._send(m.ForkFallback(message.reason))
            return
        self._handle_launcher_message(message, now)
        if self._has_unkillable and isinstance(message, l.WorkersStarted | l.WorkersDrained):  # none is left
            self._has_unkillable = False
            self._rejoin("the process that was alive after SIGKILL has ended")

    def _handle_launcher_message(self, message: object, now: float) -> None:
        match message:
            case l.LauncherHello():
                self._has_unkillable = False
                self._on_launcher(message)
            case l.NextPort(port, store_port):
                self.master_port, self.store_port = port, store_port
                self._send(m.Port(port, store_port))
            case l.Unkillable():
                self._on_unkillable(message)
            case l.WorkersStarted(token) if token == self.token:
                self.workers = WorkersState.RUNNING
                self._send(m.Started(token))
            case l.WorkersFinished(token) if token == self.token:
                self.workers = WorkersState.FINISHED
                self._send(m.Finished(token))
            case l.WorkersDrained(token) if token == self.token:
                if self.workers is not WorkersState.FINISHED:
                    self.workers = WorkersState.IDLE
                self._send(m.Drained(token))
            case l.WorkerExited(token, local_rank, exit_code, signal, text, at) if token == self.token:
                self._on_failure(m.WorkerFailed(token, local_rank, exit_code, signal, text, at), now)
            case l.Stepped(token, step, total, median_s, at, pause_s) if token == self.token:
                self._on_step(m.Progress(token, step, total, median_s, at, pause_s))
            case l.Hung(token, local_rank, step, at, silent_s) if token == self.token:
                self._hang_reported = True
                self._send(m.Hung(token, local_rank, step, at, silent_s))
            case l.Terminating(grace_s, verdict):
                self._on_leave(m.Leaving("the trainer container got SIGTERM", grace_s, verdict), now)
            case _:
                pass  # of a round that is over

    def _on_failure(self, failure: m.WorkerFailed, now: float) -> None:
        self.workers = WorkersState.FAILED
        self._failure = self._failure or failure
        if self.state is State.JOINED and self._fault_reported_at is None:
            self._fault_reported_at = now
        self._send(failure)

    def _on_step(self, progress: m.Progress) -> None:
        """Send the first step of a round, and only for rank 0 all others: O(1) for the coordinator.

        A step after a reported hang is sent too: it cancels that report.
        """
        self._stepped = progress.token
        if self._first_step_sent < progress.token or self.group_rank == 0 or self._hang_reported:
            self._first_step_sent, self._hang_reported = progress.token, False
            self._send(progress)

    def _on_replicas(self, replicas: m.Replicas) -> None:
        if replicas.token != self.token:
            self._out.append(Log(f"ignored a report about rollouts from a worker of round {replicas.token}"))
            return
        self._replicas[replicas.rank] = replicas
        self._send(replicas)

    def _ping_launcher(self, now: float) -> None:
        ping = self._watch.due_ping(now)
        if ping is None:
            return
        self._out.append(ToLauncher(ping))
        if not self._watch.responds(now) and not self._launcher_silent:
            self._launcher_silent = True
            self._leave_job(f"its launcher has not responded for {self._watch.timeout_s:g} s")

    def _on_launcher_response(self) -> None:
        if self._launcher_silent:
            self._launcher_silent = False
            if self.state is State.DISCONNECTED:
                self.unable_reason = ""
            self._rejoin("its launcher responds again")

    def _on_unkillable(self, report: l.Unkillable) -> None:
        """Leave the job: the next round would wait for as long as that process lives, which may be forever."""
        if self._has_unkillable or report.seconds < self.identity.launcher_timeout_s:
            return
        self._has_unkillable = True
        which = "a process" if report.local_rank is None else f"the worker of local rank {report.local_rank}"
        state = f"pid {report.pid}, state {report.state}"
        reason = f"{which} ({state}) is alive {report.seconds:.0f} s after SIGKILL: it is stuck in the kernel"
        self._leave_job(reason, report.local_rank)

    def _leave_job(self, reason: str, local_rank: int | None = None) -> None:
        """It can take part in no round: its pod must be replaced. Without a coordinator, its next Join reports it."""
        if self.state not in (State.DISCONNECTED, State.JOINED):
            return
        self.unable_reason = reason
        self._out.append(Log(f"leaves the job: {reason}"))
        if self.state is State.DISCONNECTED:
            return
        self._send(m.Gone(reason, local_rank, launcher_is_alive=True))
        self._hang_up(reason)
        self.state, self.coordinator = State.NO_LAUNCHER, None

    def _rejoin(self, reason: str = "") -> None:
        """Look for the coordinator again if the launcher responds and no killed process is left."""
        if self.state is not State.NO_LAUNCHER or self._launcher_silent or self._has_unkillable:
            return
        if reason:
            self._out.append(Log(f"rejoins: {reason}"))
        self.state, self.unable_reason = State.DISCONNECTED, ""
        self._calls.reset()
        self._dial(self._first_call_ip)

    def _on_launcher_down(self, now: float) -> None:
        self._watch.on_disconnected()
        self._launcher_silent = self._has_unkillable = False
        self.workers = WorkersState.IDLE
        self._launcher_ended = True
        if self.closed is not None:
            self._finish_at = now if self._shutdown_complete else now + LINGER_S
            return
        if self.replacement_reason:
            self._finish_at = now
            return
        self._send(m.Gone("its launcher has ended"))
        self._hang_up("the launcher has ended")
        self.state, self.coordinator = State.NO_LAUNCHER, None

    # The link -------------------------------------------------------------------------------------------------------

    def _on_link(self, host: str, now: float) -> None:
        self._dialing, self._connected, self._host = False, True, host
        if self.state is State.NO_LAUNCHER:
            self._hang_up("no launcher is connected")
            return
        self._answer_until = now + self._calls.on_answer(host)
        self._send_join(now)

    def _send_join(self, now: float) -> None:
        """Send the Join; again on the same link if its content has changed before the Welcome came."""
        identity, hard_state = self.identity, self.voter.hard_state
        leaving = self._leaving and replace(self._leaving, grace_s=max(0.0, self._leaving_until - now))
        disconnected_s = None if self._disconnected_at is None else now - self._disconnected_at
        self._joined_situation, self._joined_term = self._situation(), hard_state.term
        self._out.append(
            ToCoordinator(
                m.Join(
                    identity.pod_uid,
                    identity.pod_name,
                    identity.node,
                    identity.ip,
                    identity.index,
                    self.token,
                    self.group_rank,
                    self.workers,
                    self.master_port,
                    hard_state.term,
                    hard_state.config_version,
                    True,
                    self._domain,
                    self._group_world_size,
                    self._failure,
                    leaving,
                    self.store_port,
                    self.voter.history,
                    self._verdict,
                    identity.warm,
                    self._stepped,
                    disconnected_s,
                    self._disconnected_silently,
                    self.unable_reason,
                )
            )
        )

    def _situation(self) -> tuple[object, ...]:
        return (
            self.token,
            self.group_rank,
            self.workers,
            self.master_port,
            self.store_port,
            self._leaving,
            self.unable_reason,
        )

    def _on_link_down(self, silent: bool) -> None:
        self._connected = self._has_voted = False
        self._answer_until = self._fault_reported_at = None
        if self.state is State.JOINED:
            self.state, self._disconnected_at, self._disconnected_silently = State.DISCONNECTED, self._now, silent
            self._calls.reset()
        if self.state is State.DISCONNECTED:
            self.coordinator = None
            self._dial()

    def _disconnect_and_dial(self, reason: str, named_ip: str = "", *, silent: bool = False) -> None:
        """Disconnect from the called sidecar or the coordinator, and call the next host."""
        if self.state not in (State.DISCONNECTED, State.JOINED):
            return
        self._send(
            m.Disconnecting(reason), while_joining=True
        )  # also while joining: the called candidate may have become the coordinator
        if self.state is State.JOINED:
            self._disconnected_at, self._disconnected_silently = self._now, silent
            self._calls.reset()
        self.state, self.coordinator = State.DISCONNECTED, None
        self._hang_up(reason)
        self._dial(named_ip)

    def _on_called_by(self, ip: str) -> None:
        """Another member has no coordinator either. If this one knows no standby coordinator, it calls that member."""
        if (
            self.state is State.DISCONNECTED
            and not self._connected
            and not self.voter.hard_state.standby_coordinators
            and self._named_ip != ip
        ):
            self._disconnect_and_dial(f"called by {ip}, and no standby coordinator is known", ip)

    def _on_leadership_assumed(self, *, elected: bool) -> None:
        """A candidate keeps its callers when it is elected: if this member is one of them, it is a member by now."""
        self._first_call_ip = self.identity.ip
        self._calls.reset()
        if elected and self._connected and self._host == self.identity.ip:
            return
        self._disconnect_and_dial("its own sidecar became the coordinator", self.identity.ip)

    def _hang_up(self, reason: str) -> None:
        if self._connected or self._dialing:
            self._out.append(HangupCoordinator(reason))
        self._connected = self._dialing = self._has_voted = False
        self._answer_until = self._fault_reported_at = None

    def _dial(self, named_ip: str = "") -> None:
        hard_state = self.voter.hard_state
        standbys = (*hard_state.standby_coordinators, *hard_state.former_standby_coordinators)
        hosts, delay_s = self._calls.next(standbys, self.identity.ip, named_ip, self._last_coordinator_ip)
        self._dialing, self._named_ip = True, named_ip
        self._out.append(Dial(hosts, delay_s))

    # The coordinator's side ------------------------------------------------------------------------------------------

    def _on_message(self, message: object, now: float) -> None:
        if not self._connected:
            return  # this member has already hung up
        match message:
            case m.Close():
                self._on_close(message, now)
            case m.ShutdownComplete():
                self._shutdown_complete = True
                self._finish_at = now if self._finish_at is not None and self._launcher_ended else self._finish_at
            case m.Welcome():
                self._on_welcome(message, now)
            case m.Evicted(term, reason) if self.state in (State.DISCONNECTED, State.JOINED):
                self._on_evicted(term, reason)
            case m.RequestVote() if self.state is State.DISCONNECTED:
                self._on_request_vote(message, now)
            case m.Redirect(_, ip) if self.state in (State.DISCONNECTED, State.JOINED):
                self._disconnect_and_dial(f"redirected to {ip or 'another coordinator, whose address is unknown'}", ip)
            case _ if self.state is State.JOINED:
                self._fault_reported_at = None
                if not self._renews_lease:
                    self._lease.begin(now)
                self._on_coordinator_message(message, now)
            case _:
                pass

    def _on_welcome(self, welcome: m.Welcome, now: float) -> None:
        if self.state is State.CLOSED:
            return
        known_term = self.voter.hard_state.term
        if welcome.term == NO_TERM:  # version 1 has no terms: only the operator appointed coordinators
            self._send_to_version_1()
        elif not self.voter.follow(welcome.term):
            self._disconnect_and_dial(f"term {welcome.term} is older than {known_term}")
            return
        if self.voter.hard_state.term != known_term:
            self._out.append(RecordHardState(self.voter.hard_state))
        self.state, self._answer_until = State.JOINED, None
        self._lease.begin(now)
        self._renews_lease = welcome.renews_lease
        self._keep_link()
        self._offer_store(welcome.term)
        if welcome.verdict is not None:
            self._keep_verdict(welcome.verdict)
        self._heartbeat_s = welcome.heartbeat_s
        self._domain = welcome.domain or self._domain
        self.coordinator = m.StandbyCoordinator(welcome.pod_uid, welcome.ip) if welcome.ip else None
        self._last_coordinator_ip = welcome.ip
        if self._joined_situation != self._situation():
            self._send_join(now)
        if self.unable_reason:
            self._hang_up(self.unable_reason)
            self.state, self.coordinator = State.NO_LAUNCHER, None
            return
        self._out += [ToCoordinator(replicas) for replicas in self._replicas.values()]
        if self._fork_fallback_reason:
            self._send(m.ForkFallback(self._fork_fallback_reason))

    def _offer_store(self, term: Term) -> None:
        """Each coordinator gets a new store: two that do not know of each other may use one number for two rounds."""
        if term == self._store_term:
            self._send(m.Port(self.master_port, self.store_port))  # the Join does not report it
        elif self._store_term is not None or self._joined_term != NO_TERM:
            self.store_port = 0
            self._out.append(ToLauncher(l.RenewStore()))
        self._store_term = term

    def _keep_link(self) -> None:
        """Only after the Welcome: the launcher's current duplicate, of an earlier sidecar, may be the membership."""
        if self.state is State.JOINED:
            self._out.append(KeepLink())

    def _send_to_version_1(self) -> None:
        """Send as messages the fields of a Join that version 1 does not read."""
        self._out += [ToCoordinator(message) for message in (self._failure, self._leaving) if message is not None]

    def _on_request_vote(self, request: m.RequestVote, now: float) -> None:
        before = self.voter.hard_state
        if not self.voter.grant_vote(request):
            self._out.append(ToCoordinator(m.VoteDenied(before.term, before.config_version)))
            return
        if self.voter.hard_state != before:
            self._out.append(RecordHardState(self.voter.hard_state))
            self._out.append(Log(f"votes in term {request.term} for the candidate {request.pod_uid}"))
        self._has_voted = True
        self._out.append(ToCoordinator(m.VoteGranted(request.term)))

    def _on_coordinator_message(self, message: object, now: float) -> None:
        match message:
            case m.Heartbeat(number):
                self._lease.on_answer(number, now)
                self._out.append(ToCoordinator(m.HeartbeatAck(number)))
            case m.LeaseRenewal(number):
                self._lease.on_confirmation(number)
            case m.Assign():
                self._on_assign(message)
            case m.Standby(token):
                self._on_standby(token)
            case m.Drain(token, grace_s) if token == self.token and self.group_rank is not None:
                self._out.append(ToLauncher(l.DrainWorkers(token, grace_s)))
            case m.WriteStacks(token) if token == self.token and self.group_rank is not None:
                self._out.append(ToLauncher(l.WriteStacks(token)))
            case m.NodeVerdict() as verdict:
                self._keep_verdict(verdict)
                self._out.append(Log(f"node health verdict: {_describe_verdict(verdict)}"))
            case m.ConfigChange() as change:
                if self.voter.acknowledge(change):
                    self._out.append(RecordHardState(self.voter.hard_state))
                    self._out.append(ToCoordinator(m.ConfigChangeAck(change.config_version)))
            case m.LeaderSnapshot() as leader_snapshot:
                if self.voter.store_leader_snapshot(leader_snapshot):
                    self._out.append(RecordHardState(self.voter.hard_state))
            case _:
                pass

    def _on_assign(self, assign: m.Assign) -> None:
        if assign.token < self.token:
            self._out.append(Log(f"ignored an assignment of round {assign.token}: round {self.token} is newer"))
            return
        if assign.token > self.token:
            self.token, self.group_rank = assign.token, assign.group_rank
            self._group_world_size, self.workers, self._failure = assign.group_world_size, WorkersState.STARTING, None
            if assign.agent_store and assign.group_rank == 0:
                self.store_port = 0  # a store is used for one round
            self._out.append(ToLauncher(_start(assign)))
            self._out.append(Log(f"round {assign.token}: group rank {assign.group_rank} ({assign.reason})"))
        self._out.append(ToCoordinator(m.Ack(assign.token)))

    def _on_standby(self, token: RoundToken) -> None:
        self.group_rank, self._failure = None, None
        if self.workers is not WorkersState.IDLE:
            self._stop(f"round {token} assigned its ranks to another member")

    def _on_evicted(self, term: Term, reason: str) -> None:
        known_term = self.voter.hard_state.term
        if not self.voter.follow(term):
            self._disconnect_and_dial(f"term {term} is older than {known_term}")
            return
        self._end_pod(reason)

    def _on_unfit(self, reason: str) -> None:
        if self.closed is None and not self.replacement_reason:
            self._send(m.Gone(reason))
            self._end_pod(reason)

    def _end_pod(self, reason: str) -> None:
        """End the pod, so that the operator replaces it: this member takes no part in the job any more."""
        self.replacement_reason, self._fault_reported_at = reason, None
        self.state, self.coordinator = State.EVICTED, None
        self._hang_up(f"replaced: {reason}")
        self._out.append(Log(f"replaced: {reason}"))
        self._exit_launcher()

    def _keep_verdict(self, verdict: m.NodeVerdict) -> None:
        """Keep the operator's newest verdict, whichever way it came."""
        if verdict.at and self._verdict is not None and verdict.at < self._verdict.at:
            return
        self._verdict = verdict
        self._out.append(RecordVerdict(verdict))

    def _on_annotated(self, verdict: m.NodeVerdict) -> None:
        if self._verdict is None or verdict.at > self._verdict.at:
            self._keep_verdict(verdict)
            self._out.append(Log(f"node health verdict from the pod's annotation: {_describe_verdict(verdict)}"))

    # The end --------------------------------------------------------------------------------------------------------

    def _on_close(self, close: m.Close, now: float) -> None:
        if self.closed is not None:
            self._send(m.CloseAck(), while_joining=True)
            return
        self.closed = close
        self._answer_until = self._fault_reported_at = None
        self._out.append(RecordClose(close))
        self._send(m.CloseAck(), while_joining=True)
        self._out.append(Log(f"closed: {close.reason.value}: {close.message}"))
        if self.state is State.NO_LAUNCHER:
            self._finish_at = now if self._launcher_ended else now + LINGER_S
        else:
            self._exit_launcher()
        self.state = State.CLOSED

    def _exit_launcher(self) -> None:
        if self.closed is None:
            self._out.append(ToLauncher(l.ExitLauncher(EVICTED_EXIT_CODE, f"replaced: {self.replacement_reason}")))
            return
        reason = self.closed.reason
        grace_s = self.identity.grace_s if reason in _SAVES else 0.0
        order = l.ExitLauncher(CLOSE_EXIT_CODES[reason], f"{reason.value}: {self.closed.message}", grace_s)
        self._out.append(ToLauncher(order))

    def _on_leave(self, leaving: m.Leaving, now: float) -> None:
        if self._leaving is None and self.closed is None:
            self._leaving, self._leaving_until = leaving, now + leaving.grace_s
            self._send(leaving)

    # Both -----------------------------------------------------------------------------------------------------------

    def _stop(self, reason: str) -> None:
        self.workers = WorkersState.IDLE
        self._out.append(ToLauncher(l.StopWorkers(reason)))
        self._out.append(Log(f"stops its workers: {reason}"))

    def _on_time(self, now: float) -> None:
        self._ping_launcher(now)
        if self._finish_at is not None and now >= self._finish_at:
            self._finish_at = None
            self._out.append(Finish())
        if self._launcher_due is not None and now >= self._launcher_due:
            self._launcher_due = None
            self.unable_reason = f"its launcher has not connected for {self.identity.launcher_timeout_s:g} s"
            self._out.append(Log(f"{self.unable_reason} since the sidecar restarted"))
        if self.state is State.JOINED:
            silent_s = now - self._lease.renewed_at
            if silent_s >= HEARTBEATS * self._heartbeat_s:
                self._disconnect_and_dial(
                    f"the coordinator has confirmed no heartbeat for {silent_s:.0f} s", silent=True
                )
            elif self._fault_reported_at is not None and now >= self._fault_reported_at + FAULT_ANSWER_S:
                self._disconnect_and_dial(f"the coordinator has not responded to a fault for {FAULT_ANSWER_S:g} s")
        elif self.state is State.DISCONNECTED and self._answer_until is not None and now >= self._answer_until:
            self._disconnect_and_dial("the called sidecar did not answer in time")
        if self._may_fence() and now - self._lease.renewed_at >= self.identity.fence_s:
            self._stop(f"no coordinator has renewed the lease for {now - self._lease.renewed_at:.0f} s")

    def _may_fence(self) -> bool:
        running_states = (WorkersState.STARTING, WorkersState.RUNNING)
        is_training = (
            self.closed is None and self.workers in running_states and self.state in (State.DISCONNECTED, State.JOINED)
        )
        return is_training and self.identity.fence_s > 0

    def _send(self, message: object, *, while_joining: bool = False) -> None:
        """Send to the coordinator; a new one reads the facts in the Join. while_joining: also before its Welcome."""
        if self._connected and (while_joining or self.state in (State.JOINED, State.CLOSED)):
            self._out.append(ToCoordinator(message))


def _describe_verdict(verdict: m.NodeVerdict) -> str:
    finding = verdict.verdict.value if verdict.fault_class is None else verdict.fault_class.value
    return f"{finding} {verdict.reason}".rstrip()


def _start(assign: m.Assign) -> l.StartWorkers:
    return l.StartWorkers(
        assign.token,
        assign.group_rank,
        assign.group_world_size,
        assign.rank_offset,
        assign.world_size,
        assign.master_addr,
        assign.master_port,
        assign.agent_store,
    )

"""The member: between one pod's launcher and the job's coordinator.

    state        event                               next         what it does
    -----------  ----------------------------------  -----------  ---------------------------------------------------
    NO_LAUNCHER  the launcher connects               APART        calls the coordinator, or its heirs
    APART        a call is answered                  APART        Join: who it is and what it knows
    APART        Welcome of the newest office        JOINED       is followed from now on
    APART        Welcome of an older office          APART        hangs up, and calls on
    APART        Candidacy                           APART        Grant, stored before; or Refusal
    APART        Elsewhere, or no answer             APART        Apart, hangs up, and calls on
    APART        no coordinator for the fence time   APART        the launcher stops its workers: they may be replaced
    JOINED       Assign of a newer round             JOINED       Ack; the launcher starts the round's workers
    JOINED       Standby                             JOINED       the launcher stops what still runs
    JOINED       Drain                               JOINED       the launcher ends its workers, which may save
    JOINED       WriteStacks                         JOINED       the launcher writes the stacks of its workers
    JOINED       Succession                          JOINED       stores it, and acknowledges
    JOINED       Elsewhere                           APART        the office is handed over: calls that heir
    JOINED       the link ends                       APART        calls the heirs
    JOINED       three heartbeats are missing        APART        Apart, hangs up, and calls the heirs
    JOINED       its fault has found no answer       APART        Apart, hangs up, and calls the heirs
    APART        GivenUp, by the newest office       GIVEN_UP     hangs up; the launcher exits with a code of its own
    JOINED       GivenUp                             GIVEN_UP     the same
    GIVEN_UP     the launcher ended                  GIVEN_UP     finishes
    GIVEN_UP     the launcher connects               GIVEN_UP     it exits with that code
    any          Close                               CLOSED       CloseAck; the launcher exits with the close's code
    CLOSED       Adjourned, and the launcher ended   CLOSED       finishes
    CLOSED       LINGER_S after the launcher ended   CLOSED       finishes: who has not heard of the close may ask here
    CLOSED       the launcher connects               CLOSED       it exits with the close's code
    CLOSED       no launcher connects for LINGER_S   CLOSED       finishes
    any          the launcher ends                   NO_LAUNCHER  Gone, and hangs up
    JOINED       the launcher does not respond       NO_LAUNCHER  the same (launcher_watch.py)
    JOINED       a killed process does not end       NO_LAUNCHER  the same: no round could start here
    NO_LAUNCHER  it responds, and nothing is left    APART        calls the coordinator, or its heirs
    any          its sidecar cannot store its state  GIVEN_UP     Gone, and hangs up; the launcher exits (core.py)

Rules: the order of everything is the token; an older one is dropped. The first close stays. A member counts only while
its launcher is connected. A pod that was given up looks for nobody any more. The operator tells of
the node in two ways, through the coordinator and by the pod's annotation, which comes a minute late: of the two the
newer word counts. The launcher keeps a duplicate of the
socket that leads to the coordinator, so that the end of the sidecar alone ends no membership. What it has promised
about offices is in voter.py.
"""

from dataclasses import replace
from enum import Enum

from understudy_protocol import launcher as l
from understudy_protocol import membership as m
from understudy_protocol.words import (
    CLOSE_EXIT_CODES,
    GIVEN_UP_EXIT_CODE,
    NO_OFFICE,
    NO_ROUND,
    CloseReason,
    Office,
    RoundToken,
    WorkersState,
)
from understudy_sidecar.membership.calling import Calls
from understudy_sidecar.membership.events import (
    Annotated,
    CalledBy,
    Dial,
    Ended,
    Finish,
    FromCoordinator,
    FromLauncher,
    FromWorker,
    HangupCoordinator,
    InOffice,
    KeepLink,
    LauncherDown,
    LauncherUp,
    LeaveAsked,
    LinkDown,
    LinkUp,
    MemberEffect,
    MemberEvent,
    RecordClose,
    RecordLauncher,
    RecordVerdict,
    RecordVow,
    Say,
    Tick,
    ToCoordinator,
    ToLauncher,
    Unfit,
)
from understudy_sidecar.membership.identity import Identity
from understudy_sidecar.membership.launcher_watch import LauncherWatch
from understudy_sidecar.membership.lease import Lease
from understudy_sidecar.membership.voter import Voter

#: Who misses so many of the coordinator's heartbeats looks for another: its kernel may acknowledge all the same.
HEARTBEATS = 3
#: A fault that was told is answered in a moment; a coordinator that is not heard at all for so long after it hangs.
FAULT_ANSWER_S = 6.0
#: How long the sidecar of a closed job stays for those who may ask, where its coordinator could not tell everybody.
LINGER_S = 3.0
DEFAULT_HEARTBEAT_S = 5.0
_SAVES = (CloseReason.SUSPENDED, CloseReason.DELETED)


class State(Enum):
    NO_LAUNCHER = "no-launcher"
    APART = "apart"
    JOINED = "joined"
    GIVEN_UP = "given-up"
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
        """closed, verdict: what an earlier process of this sidecar has stored; the launcher may not know of the close.

        launcher_known: a launcher was connected to that process, so that it runs, and connects again.
        """
        self.identity = identity
        self.voter = voter
        self.state = State.NO_LAUNCHER if closed is None else State.CLOSED
        self.token = NO_ROUND
        self.group_rank: int | None = None
        self.workers = WorkersState.IDLE
        self.master_port = 0
        self.store_port = 0
        self._store_office: Office | None = None  # whose coordinators know of the store
        self._introduced_office = NO_OFFICE  # that the newest Join told
        self.closed = closed
        self.coordinator: m.Heir | None = None  # in office, as far as this member knows
        self._verdict = verdict  # the newest about its node
        self._world = 0  # members of its round
        self._domain = ""
        self._heartbeat_s = DEFAULT_HEARTBEAT_S
        self._lease = Lease(now)
        self._renews = True  # the coordinator confirms what this member answers
        self._launcher_known = launcher_known
        awaited = launcher_known and closed is None
        self._launcher_due = now + identity.launcher_timeout_s if awaited else None
        self._calls = Calls()
        self._followed = ""  # IP of the last coordinator
        self._named = ""  # IP that the newest call begins with, because somebody has named it
        self._called_first = ""  # when its launcher has connected
        self._linked = self._dialing = False
        self._host = ""  # of the newest connection
        self._answer_until: float | None = None  # of the one that was called
        self._granted = False  # an office, to the one that was called
        self._fault_told_at: float | None = None
        self._failure: m.WorkerFailed | None = None
        self._leaving: m.Leaving | None = None
        self._leaving_until = 0.0
        self._introduced: tuple[object, ...] = ()
        self._first_step_sent = NO_ROUND
        self._adjourned = False
        self.replaced = ""  # why it takes part in nothing any more, so that its pod has to be replaced
        self._finish_at: float | None = None if closed is None else now + LINGER_S
        self._launcher_ended = False
        self._hang_told = False
        self._stepped = NO_ROUND  # the newest round in which a worker of this pod has made a step
        self._disconnected_at: float | None = None  # when its last coordinator was lost
        self._disconnected_silently = False
        self._watch = LauncherWatch(identity.launcher_timeout_s)
        self._launcher_silent = False
        self.unable = ""  # why it can take part in no round, although its launcher is connected
        self._unkillable = False  # a process of an earlier round has outlived its SIGKILL for too long
        self._replicas: dict[int, m.Replicas] = {}  # the newest word of each rank that was here
        self._starts_fresh = ""  # why workers are not forked, as the launcher says
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
            case LeaveAsked(reason, grace_s, verdict):
                self._leave(m.Leaving(reason, grace_s, verdict), now)
            case InOffice(elected):
                self._on_own_office(elected=elected)
            case CalledBy(ip):
                self._on_called_by(ip)
            case Unfit(reason):
                self._on_unfit(reason)
            case Annotated(verdict):
                self._on_annotated(verdict)
            case Ended(close):
                self._on_close(close, now)
            case Tick():
                pass
        self._on_time(now)
        effects, self._out = self._out, []
        return effects

    def _from_trainer(self, event: LauncherUp | FromLauncher | FromWorker | LauncherDown, now: float) -> None:
        if isinstance(event, LauncherUp | FromLauncher):
            self._watch.heard(now)
            self._launcher_responds()
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
        """Whether it looks for a coordinator, and waits for nobody whom it has given its vote already."""
        return self.state is State.APART and not self._granted

    def deadline(self) -> float | None:
        """When silence has lasted too long, or the fence falls, or the sidecar ends; None while nothing is to come."""
        times = [self._finish_at, self._launcher_due, self._watch.deadline()]
        if self.state is State.APART and self._linked:
            times.append(self._answer_until)
        if self.state is State.JOINED:
            times.append(self._lease.renewed_at + HEARTBEATS * self._heartbeat_s)
            if self._fault_told_at is not None:
                times.append(self._fault_told_at + FAULT_ANSWER_S)
        if self._fenceable():
            times.append(self._lease.renewed_at + self.identity.fence_s)
        return min((at for at in times if at is not None), default=None)

    # The launcher's side -------------------------------------------------------------------------------------------

    def _on_launcher(self, hello: l.LauncherHello) -> None:
        if hello.token > self.token:  # a sidecar that was restarted learns here what runs
            self.token, self.group_rank = hello.token, hello.group_rank
        if hello.token == self.token:  # its rank may have been given away since
            self.workers = hello.workers
        self.master_port, self.store_port = hello.master_port, hello.store_port
        self._stepped = hello.stepped
        self._launcher_ended = False
        if self._starts_fresh:  # a launcher that finds so tells it after its hello
            self._starts_fresh = ""
            self._tell(m.StartsFresh(""))
        if self.closed is not None or self.replaced:
            self._finish_at = None
            self._exit_launcher()
        else:
            self._join_again()

    def _on_launcher_message(self, message: object, now: float) -> None:
        if isinstance(message, l.FreshWorkers):
            self._starts_fresh = message.reason
            self._tell(m.StartsFresh(message.reason))
            return
        self._hear_launcher(message, now)
        if self._unkillable and isinstance(message, l.WorkersStarted | l.WorkersDrained):  # nothing is left
            self._unkillable = False
            self._join_again("the process that was alive after SIGKILL has ended")

    def _hear_launcher(self, message: object, now: float) -> None:
        match message:
            case l.LauncherHello():
                self._unkillable = False
                self._on_launcher(message)
            case l.NextPort(port, store_port):
                self.master_port, self.store_port = port, store_port
                self._tell(m.Port(port, store_port))
            case l.Unkillable():
                self._on_unkillable(message)
            case l.WorkersStarted(token) if token == self.token:
                self.workers = WorkersState.RUNNING
                self._tell(m.Started(token))
            case l.WorkersFinished(token) if token == self.token:
                self.workers = WorkersState.FINISHED
                self._tell(m.Finished(token))
            case l.WorkersDrained(token) if token == self.token:
                if self.workers is not WorkersState.FINISHED:
                    self.workers = WorkersState.IDLE
                self._tell(m.Drained(token))
            case l.WorkerExited(token, local_rank, exit_code, signal, text, at) if token == self.token:
                self._on_failure(m.WorkerFailed(token, local_rank, exit_code, signal, text, at), now)
            case l.Stepped(token, step, total, median_s, at, pause_s) if token == self.token:
                self._on_step(m.Progress(token, step, total, median_s, at, pause_s))
            case l.Hung(token, local_rank, step, at, silent_s) if token == self.token:
                self._hang_told = True
                self._tell(m.Hung(token, local_rank, step, at, silent_s))
            case l.Terminating(grace_s, verdict):
                self._leave(m.Leaving("the trainer container got SIGTERM", grace_s, verdict), now)
            case _:
                pass  # of a round that is over

    def _on_failure(self, failure: m.WorkerFailed, now: float) -> None:
        self.workers = WorkersState.FAILED
        self._failure = self._failure or failure
        if self.state is State.JOINED and self._fault_told_at is None:
            self._fault_told_at = now
        self._tell(failure)

    def _on_step(self, progress: m.Progress) -> None:
        """All members tell their first step of a round, only rank 0's tells the others: O(1) for the coordinator.

        But a step takes back what was said of a hang.
        """
        self._stepped = progress.token
        if self._first_step_sent < progress.token or self.group_rank == 0 or self._hang_told:
            self._first_step_sent, self._hang_told = progress.token, False
            self._tell(progress)

    def _on_replicas(self, replicas: m.Replicas) -> None:
        if replicas.token != self.token:
            self._out.append(Say(f"ignored a report about rollouts from a worker of round {replicas.token}"))
            return
        self._replicas[replicas.rank] = replicas
        self._tell(replicas)

    def _look_at_launcher(self, now: float) -> None:
        ping = self._watch.due(now)
        if ping is None:
            return
        self._out.append(ToLauncher(ping))
        if not self._watch.responds(now) and not self._launcher_silent:
            self._launcher_silent = True
            self._drop_out(f"its launcher has not responded for {self._watch.timeout_s:g} s")

    def _launcher_responds(self) -> None:
        if self._launcher_silent:
            self._launcher_silent = False
            if self.state is State.APART:
                self.unable = ""
            self._join_again("its launcher responds again")

    def _on_unkillable(self, told: l.Unkillable) -> None:
        """The next round would wait for as long as that process lives, which may be forever."""
        if self._unkillable or told.seconds < self.identity.launcher_timeout_s:
            return
        self._unkillable = True
        which = "a process" if told.local_rank is None else f"the worker of local rank {told.local_rank}"
        state = f"pid {told.pid}, state {told.state}"
        reason = f"{which} ({state}) is alive {told.seconds:.0f} s after SIGKILL: it is stuck in the kernel"
        self._drop_out(reason, told.local_rank)

    def _drop_out(self, reason: str, local_rank: int | None = None) -> None:
        """It can take part in no round: its pod is to be replaced. Without a coordinator, its next Join says so."""
        if self.state not in (State.APART, State.JOINED):
            return
        self.unable = reason
        self._out.append(Say(f"leaves the job: {reason}"))
        if self.state is State.APART:
            return
        self._tell(m.Gone(reason, local_rank, launcher_lives=True))
        self._hang_up(reason)
        self.state, self.coordinator = State.NO_LAUNCHER, None

    def _join_again(self, why: str = "") -> None:
        """Look for the coordinator, if nothing speaks against it any more."""
        if self.state is not State.NO_LAUNCHER or self._launcher_silent or self._unkillable:
            return
        if why:
            self._out.append(Say(f"rejoins: {why}"))
        self.state, self.unable = State.APART, ""
        self._calls.fresh()
        self._dial(self._called_first)

    def _on_launcher_down(self, now: float) -> None:
        self._watch.gone()
        self._launcher_silent = self._unkillable = False
        self.workers = WorkersState.IDLE
        self._launcher_ended = True
        if self.closed is not None:
            self._finish_at = now if self._adjourned else now + LINGER_S
            return
        if self.replaced:
            self._finish_at = now
            return
        self._tell(m.Gone("its launcher has ended"))
        self._hang_up("the launcher has ended")
        self.state, self.coordinator = State.NO_LAUNCHER, None

    # The link -------------------------------------------------------------------------------------------------------

    def _on_link(self, host: str, now: float) -> None:
        self._dialing, self._linked, self._host = False, True, host
        if self.state is State.NO_LAUNCHER:
            self._hang_up("no launcher is connected")
            return
        self._answer_until = now + self._calls.called(host)
        self._introduce(now)

    def _introduce(self, now: float) -> None:
        """Who it is, and what it knows; again on the same link where that has changed before the Welcome came."""
        me, vow = self.identity, self.voter.vow
        leaving = self._leaving and replace(self._leaving, grace_s=max(0.0, self._leaving_until - now))
        disconnected_s = None if self._disconnected_at is None else now - self._disconnected_at
        self._introduced, self._introduced_office = self._situation(), vow.office
        self._out.append(
            ToCoordinator(
                m.Join(
                    me.pod_uid,
                    me.pod_name,
                    me.node,
                    me.ip,
                    me.index,
                    self.token,
                    self.group_rank,
                    self.workers,
                    self.master_port,
                    vow.office,
                    vow.electorate,
                    True,
                    self._domain,
                    self._world,
                    self._failure,
                    leaving,
                    self.store_port,
                    self.voter.history,
                    self._verdict,
                    me.warm,
                    self._stepped,
                    disconnected_s,
                    self._disconnected_silently,
                    self.unable,
                )
            )
        )

    def _situation(self) -> tuple[object, ...]:
        return self.token, self.group_rank, self.workers, self.master_port, self.store_port, self._leaving, self.unable

    def _on_link_down(self, silent: bool) -> None:
        self._linked = self._granted = False
        self._answer_until = self._fault_told_at = None
        if self.state is State.JOINED:
            self.state, self._disconnected_at, self._disconnected_silently = State.APART, self._now, silent
            self._calls.fresh()
        if self.state is State.APART:
            self.coordinator = None
            self._dial()

    def _look_again(self, reason: str, named: str = "", *, silent: bool = False) -> None:
        """Leave who was called, or is followed, and look for who is in office."""
        if self.state not in (State.APART, State.JOINED):
            return
        self._tell(m.Apart(reason), linked=True)  # also in a hall: its heir may have come into office by now
        if self.state is State.JOINED:
            self._disconnected_at, self._disconnected_silently = self._now, silent
            self._calls.fresh()
        self.state, self.coordinator = State.APART, None
        self._hang_up(reason)
        self._dial(named)

    def _on_called_by(self, ip: str) -> None:
        """Another member looks for a coordinator, too. One that knows no standby coordinator calls it back."""
        if self.state is State.APART and not self._linked and not self.voter.vow.heirs and self._named != ip:
            self._look_again(f"called by {ip}, and no standby coordinator is known", ip)

    def _on_own_office(self, *, elected: bool) -> None:
        """A candidate keeps its callers when it is elected: if this member is one of them, it is a member by now."""
        self._called_first = self.identity.ip
        self._calls.fresh()
        if elected and self._linked and self._host == self.identity.ip:
            return
        self._look_again("its own sidecar became the coordinator", self.identity.ip)

    def _hang_up(self, reason: str) -> None:
        if self._linked or self._dialing:
            self._out.append(HangupCoordinator(reason))
        self._linked = self._dialing = self._granted = False
        self._answer_until = self._fault_told_at = None

    def _dial(self, named: str = "") -> None:
        vow = self.voter.vow
        heirs = (*vow.heirs, *vow.former_heirs)
        hosts, delay_s = self._calls.next(heirs, self.identity.ip, named, self._followed)
        self._dialing, self._named = True, named
        self._out.append(Dial(hosts, delay_s))

    # The coordinator's side ------------------------------------------------------------------------------------------

    def _on_message(self, message: object, now: float) -> None:
        if not self._linked:
            return  # it was hung up on
        match message:
            case m.Close():
                self._on_close(message, now)
            case m.Adjourned():
                self._adjourned = True
                self._finish_at = now if self._finish_at is not None and self._launcher_ended else self._finish_at
            case m.Welcome():
                self._on_welcome(message, now)
            case m.GivenUp(office, reason) if self.state in (State.APART, State.JOINED):
                self._on_given_up(office, reason)
            case m.Candidacy() if self.state is State.APART:
                self._on_candidacy(message, now)
            case m.Elsewhere(_, ip) if self.state in (State.APART, State.JOINED):
                self._look_again(f"redirected to {ip or 'another coordinator, whose address is unknown'}", ip)
            case _ if self.state is State.JOINED:
                self._fault_told_at = None
                if not self._renews:
                    self._lease.begin(now)
                self._on_coordinator_message(message, now)
            case _:
                pass

    def _on_welcome(self, welcome: m.Welcome, now: float) -> None:
        if self.state is State.CLOSED:
            return
        known = self.voter.vow.office
        if welcome.office == NO_OFFICE:  # version 1 told none: the operator alone gave offices then
            self._tell_version_1()
        elif not self.voter.follow(welcome.office):
            self._look_again(f"term {welcome.office} is older than {known}")
            return
        if self.voter.vow.office != known:
            self._out.append(RecordVow(self.voter.vow))
        self.state, self._answer_until = State.JOINED, None
        self._lease.begin(now)
        self._renews = welcome.renews
        self._keep_link()
        self._offer_store(welcome.office)
        if welcome.verdict is not None:
            self._keep_verdict(welcome.verdict)
        self._heartbeat_s = welcome.heartbeat_s
        self._domain = welcome.domain or self._domain
        self.coordinator = m.Heir(welcome.pod_uid, welcome.ip) if welcome.ip else None
        self._followed = welcome.ip
        if self._introduced != self._situation():
            self._introduce(now)
        if self.unable:
            self._hang_up(self.unable)
            self.state, self.coordinator = State.NO_LAUNCHER, None
            return
        self._out += [ToCoordinator(told) for told in self._replicas.values()]
        if self._starts_fresh:
            self._tell(m.StartsFresh(self._starts_fresh))

    def _offer_store(self, office: Office) -> None:
        """To each office another store: two coordinators may give one number to two rounds, if one hears of neither."""
        if office == self._store_office:
            self._tell(m.Port(self.master_port, self.store_port))  # it does not go by the Join
        elif self._store_office is not None or self._introduced_office != NO_OFFICE:
            self.store_port = 0
            self._out.append(ToLauncher(l.RenewStore()))
        self._store_office = office

    def _keep_link(self) -> None:
        """Not before it is welcome: what the launcher keeps of a former sidecar's may be the membership."""
        if self.state is State.JOINED:
            self._out.append(KeepLink())

    def _tell_version_1(self) -> None:
        """What it does not read in a Join."""
        self._out += [ToCoordinator(told) for told in (self._failure, self._leaving) if told is not None]

    def _on_candidacy(self, candidacy: m.Candidacy, now: float) -> None:
        before = self.voter.vow
        if not self.voter.grant(candidacy):
            self._out.append(ToCoordinator(m.Refusal(before.office, before.electorate)))
            return
        if self.voter.vow != before:
            self._out.append(RecordVow(self.voter.vow))
            self._out.append(Say(f"votes in term {candidacy.office} for the candidate {candidacy.pod_uid}"))
        self._granted = True
        self._out.append(ToCoordinator(m.Grant(candidacy.office)))

    def _on_coordinator_message(self, message: object, now: float) -> None:
        match message:
            case m.Heartbeat(number):
                self._lease.answered(number, now)
                self._out.append(ToCoordinator(m.HeartbeatAck(number)))
            case m.LeaseRenewal(number):
                self._lease.confirmed(number)
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
                self._out.append(Say(f"node health verdict: {_in_words(verdict)}"))
            case m.Succession() as succession:
                if self.voter.acknowledge(succession):
                    self._out.append(RecordVow(self.voter.vow))
                    self._out.append(ToCoordinator(m.SuccessionAck(succession.electorate)))
            case m.Estate() as estate:
                if self.voter.inherit(estate):
                    self._out.append(RecordVow(self.voter.vow))
            case _:
                pass

    def _on_assign(self, assign: m.Assign) -> None:
        if assign.token < self.token:
            self._out.append(Say(f"ignored an assignment of round {assign.token}: round {self.token} is newer"))
            return
        if assign.token > self.token:
            self.token, self.group_rank = assign.token, assign.group_rank
            self._world, self.workers, self._failure = assign.group_world_size, WorkersState.STARTING, None
            if assign.agent_store and assign.group_rank == 0:
                self.store_port = 0  # it is offered to one round
            self._out.append(ToLauncher(_start(assign)))
            self._out.append(Say(f"round {assign.token}: group rank {assign.group_rank} ({assign.reason})"))
        self._out.append(ToCoordinator(m.Ack(assign.token)))

    def _on_standby(self, token: RoundToken) -> None:
        self.group_rank, self._failure = None, None
        if self.workers is not WorkersState.IDLE:
            self._stop(f"round {token} assigned its ranks to another member")

    def _on_given_up(self, office: Office, reason: str) -> None:
        known = self.voter.vow.office
        if not self.voter.follow(office):
            self._look_again(f"term {office} is older than {known}")
            return
        self._end_pod(reason)

    def _on_unfit(self, reason: str) -> None:
        if self.closed is None and not self.replaced:
            self._tell(m.Gone(reason))
            self._end_pod(reason)

    def _end_pod(self, reason: str) -> None:
        """So that the operator replaces it: this member takes part in nothing any more."""
        self.replaced, self._fault_told_at = reason, None
        self.state, self.coordinator = State.GIVEN_UP, None
        self._hang_up(f"replaced: {reason}")
        self._out.append(Say(f"replaced: {reason}"))
        self._exit_launcher()

    def _keep_verdict(self, verdict: m.NodeVerdict) -> None:
        """The operator's newest word, by whichever way it came."""
        if verdict.at and self._verdict is not None and verdict.at < self._verdict.at:
            return
        self._verdict = verdict
        self._out.append(RecordVerdict(verdict))

    def _on_annotated(self, verdict: m.NodeVerdict) -> None:
        if self._verdict is None or verdict.at > self._verdict.at:
            self._keep_verdict(verdict)
            self._out.append(Say(f"node health verdict from the pod's annotation: {_in_words(verdict)}"))

    # The end --------------------------------------------------------------------------------------------------------

    def _on_close(self, close: m.Close, now: float) -> None:
        if self.closed is not None:
            self._tell(m.CloseAck(), linked=True)
            return
        self.closed = close
        self._answer_until = self._fault_told_at = None
        self._out.append(RecordClose(close))
        self._tell(m.CloseAck(), linked=True)
        self._out.append(Say(f"closed: {close.reason.value}: {close.message}"))
        if self.state is State.NO_LAUNCHER:
            self._finish_at = now if self._launcher_ended else now + LINGER_S
        else:
            self._exit_launcher()
        self.state = State.CLOSED

    def _exit_launcher(self) -> None:
        if self.closed is None:
            self._out.append(ToLauncher(l.ExitLauncher(GIVEN_UP_EXIT_CODE, f"replaced: {self.replaced}")))
            return
        reason = self.closed.reason
        grace_s = self.identity.grace_s if reason in _SAVES else 0.0
        order = l.ExitLauncher(CLOSE_EXIT_CODES[reason], f"{reason.value}: {self.closed.message}", grace_s)
        self._out.append(ToLauncher(order))

    def _leave(self, leaving: m.Leaving, now: float) -> None:
        if self._leaving is None and self.closed is None:
            self._leaving, self._leaving_until = leaving, now + leaving.grace_s
            self._tell(leaving)

    # Both -----------------------------------------------------------------------------------------------------------

    def _stop(self, reason: str) -> None:
        self.workers = WorkersState.IDLE
        self._out.append(ToLauncher(l.StopWorkers(reason)))
        self._out.append(Say(f"stops its workers: {reason}"))

    def _on_time(self, now: float) -> None:
        self._look_at_launcher(now)
        if self._finish_at is not None and now >= self._finish_at:
            self._finish_at = None
            self._out.append(Finish())
        if self._launcher_due is not None and now >= self._launcher_due:
            self._launcher_due = None
            self.unable = f"its launcher has not connected for {self.identity.launcher_timeout_s:g} s"
            self._out.append(Say(f"{self.unable} since the sidecar restarted"))
        if self.state is State.JOINED:
            silent_s = now - self._lease.renewed_at
            if silent_s >= HEARTBEATS * self._heartbeat_s:
                self._look_again(f"the coordinator has confirmed no heartbeat for {silent_s:.0f} s", silent=True)
            elif self._fault_told_at is not None and now >= self._fault_told_at + FAULT_ANSWER_S:
                self._look_again(f"the coordinator has not responded to a fault for {FAULT_ANSWER_S:g} s")
        elif self.state is State.APART and self._answer_until is not None and now >= self._answer_until:
            self._look_again("the called sidecar did not answer in time")
        if self._fenceable() and now - self._lease.renewed_at >= self.identity.fence_s:
            self._stop(f"no coordinator has renewed the lease for {now - self._lease.renewed_at:.0f} s")

    def _fenceable(self) -> bool:
        alive = (WorkersState.STARTING, WorkersState.RUNNING)
        trains = self.closed is None and self.workers in alive and self.state in (State.APART, State.JOINED)
        return trains and self.identity.fence_s > 0

    def _tell(self, message: object, *, linked: bool = False) -> None:
        """To the coordinator that is followed; a new one learns it all from the Join. linked: to whoever was called."""
        if self._linked and (linked or self.state in (State.JOINED, State.CLOSED)):
            self._out.append(ToCoordinator(message))


def _in_words(verdict: m.NodeVerdict) -> str:
    what = verdict.verdict.value if verdict.fault_class is None else verdict.fault_class.value
    return f"{what} {verdict.reason}".rstrip()


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

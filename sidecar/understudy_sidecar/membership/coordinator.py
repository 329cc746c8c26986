"""The coordinator of a job: forms rounds, replaces lost members, closes the rendezvous.

    state     event                                            next      what it does
    --------  -----------------------------------------------  --------  --------------------------------------------
    SETTLING  a former round is claimed whole, and trains      RUNNING   adopts it; nobody restarts
    SETTLING  a former round is claimed, and broken            WAITING   the next one follows (settling.py)
    WAITING   every rank can be filled                         RUNNING   Assign to each active (rounds.py)
    WAITING   an elastic job's patience is over                RUNNING   Assign to fewer actives
    WAITING   a job trained before it has told a round         SETTLING  asks what its members know
    RUNNING   a worker failed (which rung: ladder.py)          WAITING   same members, next round at once (InPlace)
    RUNNING   so does one, right at the start of the round     WAITING   the same after a pause (backoff.py)
    RUNNING   one of a pod that is to be given up              WAITING   asks whether everybody else is there
    WAITING   everybody else has answered                      WAITING   GivenUp; its rank is vacant (escalation.py)
    RUNNING   a worker failed, and there is no majority        WAITING   counted once one is back (escalation.py)
    RUNNING   a worker failed, at the end of the ladder        CLOSED    Close(Failed)
    WAITING   all fail alike, as in the rounds before          CLOSED    Close(Failed) (script_fault.py)
    RUNNING   workers hang                                     WAITING   as if the slowest had failed (hangs.py)
    RUNNING   no worker makes a step in time                   RUNNING   WriteStacks; then as where workers hang
    RUNNING   weights could not be updated (rollouts.py)       CLOSED    Close(Failed)
    RUNNING   an active was lost                               WAITING   its rank is vacant; a spare takes it soon
    RUNNING   workers of some actives do not start in time     WAITING   these are lost (rounds.py)
    RUNNING   an active leaves                                 RUNNING   drains the others (leaving.py)
    RUNNING   an active's node turns bad, a spare is there     WAITING   GivenUp, perhaps after a drain (proactive.py)
    RUNNING   all workers of all actives exited 0              CLOSED    Close(Succeeded)
    any       the operator ends the job                        CLOSED    Close(Suspended or Deleted)
    CLOSED    every member acknowledged, or 3 s passed         CLOSED    Adjourn
    any       its own pod leaves, has ended, or is given up    -         Elsewhere to all: the first heir; Resign
    any       a newer office is known                          -         Resign
    any       the operator says who supersedes it              -         Elsewhere to all; Resign
    any       no majority was heard for half the fence time    -         Resign
    WAITING   for RESIGN_S, and no operator watches            -         Resign, where no electorate counts yet

Rules: one push a round, no barrier. Messages of another round than the running one are dropped. The first close stays.
Silence is no loss as long as the coordinator itself may be the one that is cut off: without a majority it loses nobody,
and counts no fault of a worker.
"""

from understudy_protocol import membership as m
from understudy_protocol.observer import (
    Appoint,
    End,
    FreshStarts,
    MemberView,
    Nodes,
    Snapshot,
    StepProgress,
    Superseded,
)
from understudy_protocol.pod import JobShape
from understudy_protocol.words import CloseReason, Fault, Office, RoundToken, Strategy, WorkersState
from understudy_sidecar.membership import (
    ending,
    escalation,
    faults,
    hangs,
    joining,
    leaving,
    proactive,
    rollouts,
    rounds,
    settling,
    succession,
)
from understudy_sidecar.membership.desk import Desk, Doubt, State
from understudy_sidecar.membership.electorate import Electorate, ElectorateKeeper, Tally
from understudy_sidecar.membership.events import (
    Adjourn,
    CoordinatorEffect,
    CoordinatorEvent,
    Dropped,
    Hangup,
    Received,
    Resign,
    Tick,
    Told,
    Watched,
)
from understudy_sidecar.membership.roster import Member
from understudy_sidecar.membership.silence import Silent

#: How long a coordinator without an electorate that nobody watches waits, before it takes itself for replaced.
RESIGN_S = 15.0
#: A round whose workers have run for so long is no failed start, even if the script reports no steps.
STARTED_WELL_S = 60.0
#: In a job of more than FEW members a look at them all waits for as long as the one before took, about.
FEW = 100
LOOK_S_A_MEMBER = 2e-6
#: Characters of a StartsFresh reason that the snapshot repeats. A member may send any text.
FRESH_TOLD = 500
#: What members say without anything that follows from it, unless it is the last of them.
_QUIET = (m.Ack, m.Started, m.HeartbeatAck, m.SuccessionAck)
#: An event that comes so much later than it was due shows that this process stood still, and not who is silent.
LATE_S = 1.0


class Coordinator:
    """See the module. Made by `appointed` or `elected`."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self._observers = 0
        self._forlorn_since: float | None = None  # waiting, not watched, and no electorate
        self._minority_since: float | None = None
        self._kept_silent = False  # a member is silent, and was not lost because a majority is missing
        self._lacks_quorum = False
        self._due = desk.since  # when the next event is due at the latest
        self._settled = False  # nothing has happened since `_due` was looked at that could make it earlier
        self._over = False  # resigned or adjourned

    @classmethod
    def appointed(
        cls, shape: JobShape, pod_uid: str, ip: str, appoint: Appoint, now: float, estate: m.Estate | None = None
    ) -> "Coordinator":
        """By the operator, in an epoch of its own. estate: of a former coordinator; what is used of it: whom it names,
        and which round has stepped.
        """
        office = Office(appoint.epoch, 1)
        token = RoundToken(0, 0, appoint.at_least_round)
        desk = Desk(shape, pod_uid, ip, office, now, token, ElectorateKeeper(office))
        desk.first = appoint.at_least_round < 0
        desk.state = State.WAITING if desk.first else State.SETTLING
        desk.may_come = frozenset(appoint.may_come)
        desk.book.counts.update(appoint.recoveries_by_strategy)
        desk.former_estate, desk.appointment = estate, appoint
        if estate is not None:
            desk.stepped = estate.stepped
        return cls(desk)

    @classmethod
    def elected(
        cls, shape: JobShape, pod_uid: str, ip: str, office: Office, estate: m.Estate, now: float
    ) -> "Coordinator":
        """By a majority of the estate's electorate; of both its lists if it was pending, and is for this one too."""
        settled = Electorate(estate.electorate, frozenset(estate.voters), frozenset(estate.former_voters))
        token = RoundToken(0, 0, estate.token.round)
        desk = Desk(shape, pod_uid, ip, office, now, token, ElectorateKeeper(office, settled))
        desk.state, desk.first, desk.former_holder = State.SETTLING, False, estate.holder
        desk.former_estate, desk.stepped = estate, estate.stepped
        desk.book.counts.update(estate.recoveries_by_strategy)
        if estate.history is None:
            desk.offences.inherit_charges(estate.charges)
        else:
            escalation.inherit(desk, estate.history, now)
        desk.roster.set_electorate(settled)
        return cls(desk)

    def appoint(self, appoint: Appoint, now: float) -> list[CoordinatorEffect]:
        """The operator gives it another epoch while it is in office: who follows it goes on doing so."""
        desk = self.desk
        desk.now = now
        desk.office = Office(appoint.epoch, 1)
        desk.keeper = ElectorateKeeper(desk.office)  # an epoch begins without an electorate
        joining.end_doubt(desk, now)  # it was one of the former electorate's
        desk.roster.set_electorate(Electorate())
        desk.may_come = frozenset(appoint.may_come)
        desk.say(f"appointed as coordinator of term {desk.office}, and was the coordinator before")
        for member in desk.roster.members.values():
            joining.welcome(desk, member)
        desk.members_changed(now)
        self._settled = False
        self._on_time(now)
        effects, desk.out = desk.out, []
        return effects

    @property
    def office(self) -> Office:
        return self.desk.office

    @property
    def state(self) -> State:
        return self.desk.state

    @property
    def token(self) -> RoundToken:
        return self.desk.token

    @property
    def closed(self) -> m.Close | None:
        return self.desk.closed

    # The machine -------------------------------------------------------------------------------------------------

    def handle(self, event: CoordinatorEvent, now: float) -> list[CoordinatorEffect]:
        desk = self.desk
        desk.now, looked = now, desk.look
        if now > self._due + LATE_S and desk.closed is None:
            self._stood_still(now)
        match event:
            case Received(link, message):
                self._on_received(link, message, now)
            case Dropped(link, silent):
                joining.on_dropped(desk, link, silent, now)
            case Watched(observers):
                self._observers = observers
            case Told(Nodes(facts, at)):
                desk.learn_nodes(facts, at)
            case Told(Superseded(office, uid, ip)) if office > desk.office and uid != desk.pod_uid:
                desk.broadcast(desk.roster.links(), m.Elsewhere(uid, ip))
                desk.out.append(Resign(f"the operator has appointed {uid} as coordinator of term {office}"))
            case Told(End(reason, message)):
                ending.close(desk, reason, message, now)
            case Told() | Tick():
                pass
        quiet = isinstance(event, Received) and isinstance(event.message, _QUIET) and desk.closed is None
        if quiet and now < self._due and not desk.out and desk.look == looked:
            return []  # nothing follows from it, and nothing is due: members say such things by the thousand
        self._settled = False
        if not self._over:
            self._on_time(now)
        effects, desk.out = desk.out, []
        self._over = self._over or any(isinstance(effect, Resign) for effect in effects)
        return effects

    def deadline(self) -> float | None:
        """When the next Tick is wanted; None once it has adjourned or resigned."""
        if self._over:
            return None
        if not self._settled:
            self._due, self._settled = self._next_due(), True
        return self._due

    def _next_due(self) -> float:
        desk = self.desk
        if desk.state is State.CLOSED:
            return desk.close_until
        times = [desk.silence.deadline(desk.roster, desk.steps), leaving.deadline(desk), hangs.deadline(desk)]
        times += [desk.succession_due, escalation.deadline(desk)]
        times += [at for at in (*self._ripens(), rounds.start_expires(desk)) if at > desk.now]
        if desk.start_due is not None and desk.state is State.RUNNING:
            times.append(desk.start_due)
        if desk.started_at is not None:
            times.append(desk.started_at + STARTED_WELL_S)
        if desk.left_in_doubt and desk.doubt is None:
            times.append(desk.may_return_until)
        if self._forlorn_since is not None:
            times.append(self._forlorn_since + RESIGN_S)
        if self._minority_since is not None:
            times.append(self._minority_since + self._minority_s())
        if desk.look and desk.state in (State.SETTLING, State.WAITING):
            times.append(desk.look_at)
        return min(at for at in times if at is not None)

    def snapshot(self) -> Snapshot:
        """All that an observer is told: O(members)."""
        desk = self.desk
        members = tuple(
            MemberView(x.uid, x.name, x.join.node, x.join.index, x.group_rank, x.workers)
            for x in desk.roster.members.values()
        )
        return Snapshot(
            RoundToken(desk.office.epoch, desk.office.term, desk.round_number),
            desk.pod_uid,
            members,
            tuple(desk.lost.values()),
            desk.book.newest(),
            {strategy.value: desk.book.counts[strategy.value] for strategy in Strategy},
            desk.progress,
            rounds.waits_for(desk),
            desk.closed,
            desk.size,
            tuple(heir.pod_uid for heir in desk.heirs),
            tuple(sorted(desk.keeper.settled.voters)),
            rollouts.view(desk),
            self._fresh_starts(),
            self._lacks_quorum,
        )

    def _fresh_starts(self) -> FreshStarts | None:
        found = [x for x in self.desk.roster.members.values() if x.starts_fresh]
        return FreshStarts(len(found), found[0].name, found[0].starts_fresh) if found else None

    # Messages ----------------------------------------------------------------------------------------------------

    def _on_received(self, link: int, message: object, now: float) -> None:
        desk = self.desk
        if isinstance(message, m.Join):
            if message.office > desk.office:
                desk.out.append(Resign(f"{message.pod_name} knows the newer term {message.office}"))
            else:
                joining.on_join(desk, link, message, now)
            return
        member = desk.roster.by_link(link)
        if member is None:
            desk.out.append(Hangup(link, "the first message of a connection has to be a Join"))
            return
        member.last_heard = now
        if isinstance(message, m.Drained | m.WorkerFailed | m.Finished) and (
            proactive.on_ended(desk, member, message, now) or leaving.on_ended(desk, member, message)
        ):
            return
        self._on_message(member, message, now)
        if isinstance(message, m.WorkerFailed):
            escalation.end_faulty_script(desk, member, message, now)

    def _on_message(self, member: Member, message: object, now: float) -> None:
        desk = self.desk
        match message:
            case m.Ack() | m.Started() | m.Finished() | m.WorkerFailed():
                self._on_phase(member, message, now)
            case m.Progress(token=token) if desk.is_current(member, token):
                self._on_progress(member, message, now)
            case m.Hung(token=token) if desk.is_current(member, token):
                hangs.on_hung(desk, member, message, now)
            case m.Replicas():
                rollouts.on_replicas(desk, member, message)
            case m.SuccessionAck():
                succession.acknowledged(desk, member, message, now)
            case m.Port() | m.StartsFresh():
                self._on_pod_told(member, message)
            case m.Leaving():
                leaving.on_leaving(desk, member, message, now)
            case m.Apart(reason):
                joining.on_apart(desk, member, reason, now)
            case m.Gone() if desk.closed is None:
                leaving.on_gone(desk, member, message, now)
            case m.Gone() | m.CloseAck():
                desk.close_pending.discard(member.uid)
            case m.HeartbeatAck(number):
                self._on_heartbeat_ack(member, number)
            case _:
                pass  # of a round that is over

    def _on_pod_told(self, member: Member, message: m.Port | m.StartsFresh) -> None:
        match message:
            case m.Port(port, store_port):
                member.master_port, member.store_port = port, store_port
            case m.StartsFresh(reason):
                member.starts_fresh = reason[:FRESH_TOLD]
                self.desk.version += 1

    def _on_phase(self, member: Member, message: "m.Ack | m.Started | m.Finished | m.WorkerFailed", now: float) -> None:
        desk = self.desk
        if message.token == desk.token:  # also if the round has broken meanwhile
            faults.acked(desk, member)
        if not desk.is_current(member, message.token):
            if isinstance(message, m.WorkerFailed):
                escalation.failed_too(desk, member, message, now)
            if message.token == member.join.token and not isinstance(message, m.Ack):
                joining.on_claimed_phase(desk, member, message)
            return
        match message:
            case m.Started():
                faults.started(desk, member, now)
            case m.Finished():
                faults.finished(desk, member)
            case m.WorkerFailed():
                hangs.on_worker_failed(desk, member, message, now)

    def _on_progress(self, member: Member, message: m.Progress, now: float) -> None:
        desk = self.desk
        if member.workers is WorkersState.STARTING:
            member.workers = WorkersState.RUNNING
            desk.roster.starting.discard(member.uid)
            desk.version += 1
        desk.started_at = None
        desk.backoff.stepped()
        desk.steps.stepped(message.median_step_s, now)
        desk.progress = StepProgress(message.step, message.total, now)
        hangs.on_step(desk, member)
        faults.stepped(desk, member, message, now)

    # Doubt ----------------------------------------------------------------------------------------------------------

    def _stood_still(self, now: float) -> None:
        """Members may have left meanwhile, and what comes in now may be old: ask who still follows this coordinator."""
        desk = self.desk
        desk.silence.forgive(desk.roster, now)
        desk.say(f"did not run for {now - self._due:.1f} s: asks all members whether they still follow it")
        self._due = now
        desk.doubt = Doubt(desk.ask(desk.roster.links()), Tally(desk.keeper.newest))

    def _on_heartbeat_ack(self, member: Member, number: int) -> None:
        doubt = self.desk.doubt
        if number > self.desk.heartbeat:
            return
        member.answers(number)
        self.desk.send(member, m.LeaseRenewal(number))
        escalation.answered(self.desk, member, number)
        if doubt is not None and number >= doubt.heartbeat:
            doubt.heard.add(member.uid)
            if not doubt.heard.electorate.exists or doubt.heard.carries():
                joining.end_doubt(self.desk, self.desk.now)

    # Time -----------------------------------------------------------------------------------------------------------

    def _on_time(self, now: float) -> None:
        desk = self.desk
        if desk.state is State.CLOSED:
            self._adjourn_if_done(now)
            return
        joining.lose_left(desk, now)
        self._lose(desk.silence.lost(desk.roster, desk.steps, desk.state is not State.RUNNING, now), now)
        proactive.on_time(desk, now)
        leaving.on_time(desk, now)
        hangs.on_time(desk, now)
        escalation.on_time(desk, now)
        rollouts.on_time(desk, now)
        if desk.start_due is not None and now >= desk.start_due:
            desk.start_due = None
            desk.version += 1
        rounds.lose_late_starters(desk, now)
        if desk.started_at is not None and now >= desk.started_at + STARTED_WELL_S:
            desk.backoff.ran()
            desk.started_at = None
        if desk.state is State.RUNNING and desk.roster.all_finished():
            faults.recovered(desk, desk.book.running(now), now)
            ending.close(desk, CloseReason.SUCCEEDED, "all workers of all members exited 0", now)
        self._look(now)
        if self.state is State.CLOSED:
            self._adjourn_if_done(now)
            return
        self._resign_if_alone(now)
        self._ask(now)
        succession.tell_succession(desk, now)

    def _lose(self, silent: list[Silent], now: float) -> None:
        """Unless it may be this coordinator that is cut off."""
        if silent and not self.desk.has_majority():
            self._kept_silent = True
            self.desk.silence.forgive(self.desk.roster, now)
            return
        for entry in silent:
            faults.lose(self.desk, entry.member, Fault.NODE, entry.reason, now)

    def _look(self, now: float) -> None:
        """Whether a round follows from what has changed; at 10,000 members not at each of their messages."""
        desk = self.desk
        if desk.state not in (State.SETTLING, State.WAITING) or now < desk.look_at:
            return
        if not desk.look and not any(desk.looked_at < at <= now for at in self._ripens()):
            return
        desk.look, desk.looked_at = False, now
        many = len(desk.roster.linked)
        desk.look_at = now + LOOK_S_A_MEMBER * many if many > FEW else now
        if desk.state is State.SETTLING and desk.doubt is None and now >= desk.may_return_until:
            settling.settle(desk, now)
        if desk.state is State.WAITING:
            rounds.try_form(desk, now)

    def _ripens(self) -> list[float]:
        """Times at which a round may follow though nothing else happens."""
        desk = self.desk
        if desk.state is State.SETTLING:
            return [desk.since + settling.RETURN_S, desk.since + settling.SETTLE_S, desk.may_return_until]
        if desk.state is not State.WAITING:
            return []
        times = [desk.since + rounds.FIRST_ROUND_PATIENCE_S] if desk.first else []
        times += [at for at in (rounds.shrinks_at(desk),) if at is not None]
        times += [desk.gathers_until, desk.backoff.ends_at]
        times += desk.expiries()
        return times + ([desk.draining.until] if desk.draining is not None else [])

    def _ask(self, now: float) -> None:
        desk = self.desk
        asked, silent = desk.silence.to_ask(desk.roster, desk.steps, now, desk.heartbeat + 1)
        self._lose(silent, now)
        if asked:
            desk.ask([x.link for x in asked if x.link is not None])

    def _resign_if_alone(self, now: float) -> None:
        desk = self.desk
        if not desk.keeper.newest.exists:
            self._minority_since = None
            self._note_quorum()
            forlorn = desk.state is not State.RUNNING and not self._observers
            self._forlorn_since = (self._forlorn_since or now) if forlorn else None
            if self._forlorn_since is not None and now >= self._forlorn_since + RESIGN_S:
                desk.out.append(Resign(f"no round could be formed for {RESIGN_S:g} s, and no operator is connected"))
            return
        self._forlorn_since = None
        self._minority_since = None if desk.has_majority() else self._minority_since or now
        self._note_quorum()
        if self._minority_since is not None and now >= self._minority_since + self._minority_s():
            desk.out.append(Resign(f"fewer than a majority of its voters responded for {self._minority_s():g} s"))

    def _note_quorum(self) -> None:
        """Observers learn at once that this coordinator needs a majority that it does not have."""
        if self._minority_since is None:
            self._kept_silent = False
        needs = self.desk.state is not State.RUNNING or self._kept_silent
        lacks = needs and self._minority_since is not None and self.desk.doubt is None
        if lacks != self._lacks_quorum:
            self._lacks_quorum = lacks
            self.desk.version += 1

    def _minority_s(self) -> float:
        return (self.desk.shape.fence_s or 30.0) / 2

    def _adjourn_if_done(self, now: float) -> None:
        if ending.all_know(self.desk, now):
            self.desk.broadcast(self.desk.roster.links(), m.Adjourned())
            self.desk.out.append(Adjourn())
            self._over = True

"""The coordinator of a job: forms rounds, replaces lost members, closes the rendezvous.

    state     event                                            next      what it does
    --------  -----------------------------------------------  --------  ------------------------------------------
    WAITING   every rank can be filled                         RUNNING   Assign to each active
    WAITING   a former round is claimed whole (new in office)  RUNNING   adopts it; nobody restarts
    RUNNING   a worker failed, in-place budget left            RUNNING   same members, next round (InPlace)
    RUNNING   a worker failed, budget spent                    CLOSED    Close(Failed)
    RUNNING   an active was lost                               WAITING   its rank is vacant; a spare takes it at once
    RUNNING   all workers of all actives exited 0              CLOSED    Close(Succeeded)
    CLOSED    every member acknowledged, or 3 s passed         CLOSED    Adjourn
    WAITING   for RESIGN_S, and no operator watches            -         Resign

Rules: one push a round, no barrier. Messages of another round than the running one are dropped. While a member is
leaving (its workers may still save), worker failures wait for it. The first close stays. An operator that is up watches
its coordinator: one that is not watched may have been replaced while it was frozen or out of reach. As long as its
round runs that does no harm; once it can only wait it makes way.
"""

from collections import Counter
from collections.abc import Mapping
from enum import Enum

from understudy_protocol import membership as m
from understudy_protocol.observer import Cause, Lost, MemberView, Snapshot, StepProgress
from understudy_protocol.pod import JobShape
from understudy_protocol.words import NO_ROUND, CloseReason, Fault, RoundToken, Strategy, WorkersState
from understudy_sidecar.membership.events import (
    Adjourn,
    CoordinatorEffect,
    CoordinatorEvent,
    Dropped,
    Hangup,
    Received,
    Resign,
    Say,
    Send,
    Tick,
    Watched,
)
from understudy_sidecar.membership.placement import Candidate, place
from understudy_sidecar.membership.recoveries import RecoveryBook
from understudy_sidecar.membership.roster import Member, Roster
from understudy_sidecar.membership.silence import Patience, SilenceWatch
from understudy_sidecar.membership.stall import StepWatch
from understudy_sidecar.membership.succession import former_round

#: How long the first round waits for the pods that were made for its ranks before spares may take them.
FIRST_ROUND_PATIENCE_S = 30.0
#: How long a coordinator that is new in office waits for the members of the running round to come back.
SETTLE_S = 10.0
CLOSE_ACK_S = 3.0
#: How long a coordinator that nobody watches waits for members, before it takes itself for replaced.
RESIGN_S = 15.0
#: A round whose script has reported no step for so long will never report one: its start ends the recovery.
STEPLESS_S = 60.0
LOST_KEPT = 1000


class State(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    CLOSED = "closed"


class Coordinator:
    """See the module. `version` grows with every change that an observer may want to know."""

    def __init__(
        self,
        shape: JobShape,
        pod_uid: str,
        epoch: int,
        at_least_round: int,
        now: float,
        *,
        counts: Mapping[str, int] | None = None,
        patience: Patience | None = None,
    ) -> None:
        self.shape = shape
        self.pod_uid = pod_uid
        self.office = (epoch, 1)
        self.state = State.WAITING
        self.version = 0
        self.closed: m.Close | None = None
        self.token = RoundToken(0, 0, at_least_round)  # of the running or newest round, perhaps an older office's
        self.roster = Roster(shape.actives)
        self.book = RecoveryBook(
            shape.in_place_max_restarts, shape.in_place_window_s, counts=Counter(dict(counts or {}))
        )
        self.waiting_for = ""
        self._first = at_least_round < 0
        self._since = self._seen = now
        self._settling = True
        self._vacant_since: float | None = None
        self._steps = StepWatch()
        self._started_at: float | None = None  # when all workers of the running round were spawned
        self._silence = SilenceWatch(patience or Patience())
        self._lost: dict[str, Lost] = {}
        self._progress: StepProgress | None = None
        self._heartbeat = 0
        self._observers = 0
        self._forlorn_since: float | None = None  # waiting, and not watched
        self._resigned = False
        self._close_until: float | None = None
        self._adjourned = False
        self._out: list[CoordinatorEffect] = []

    # The machine -------------------------------------------------------------------------------------------------

    def handle(self, event: CoordinatorEvent, now: float) -> list[CoordinatorEffect]:
        match event:
            case Received(link, m.Join() as join):
                self._on_join(link, join, now)
            case Received(link, message):
                member = self.roster.by_link(link)
                if member is None:
                    self._out.append(Hangup(link, "the first message of a link is its Join"))
                else:
                    member.last_heard, member.unanswered = now, 0
                    self._on_message(member, message, now)
            case Dropped(link, silent):
                self._on_dropped(link, silent, now)
            case Watched(observers):
                self._observers = observers
            case Tick():
                pass
        self._on_time(now)
        effects, self._out = self._out, []
        return effects

    def deadline(self) -> float | None:
        """When the next Tick is wanted; None once it has adjourned or resigned."""
        if self._resigned:
            return None
        if self.state is State.CLOSED:
            return None if self._adjourned else self._close_until
        times = [self._silence.deadline(self.roster, self._steps)]
        times += [x.leaving_until for x in self.roster.members.values() if x.leaving_until is not None]
        if self._started_at is not None:
            times.append(self._started_at + STEPLESS_S)
        if self._forlorn_since is not None:
            times.append(self._forlorn_since + RESIGN_S)
        if self.state is State.WAITING:
            times += [at for at in (self._since + FIRST_ROUND_PATIENCE_S, self._since + SETTLE_S) if at > self._seen]
        return min(times)

    def snapshot(self) -> Snapshot:
        """All that an observer is told."""
        members = tuple(
            MemberView(x.uid, x.name, x.join.node, x.join.index, x.group_rank, x.workers)
            for x in self.roster.members.values()
        )
        counts = {strategy.value: self.book.counts[strategy.value] for strategy in Strategy}
        return Snapshot(
            RoundToken(*self.office, self.token.round),
            self.pod_uid,
            members,
            tuple(self._lost.values()),
            self.book.newest(),
            counts,
            self._progress,
            self.waiting_for,
            self.closed,
        )

    # Members come and go -------------------------------------------------------------------------------------------

    def _on_join(self, link: int, join: m.Join, now: float) -> None:
        self.version += 1
        known = self.roster.members.get(join.pod_uid)
        if known is not None and known.link is not None:
            self._out.append(Hangup(known.link, "superseded by a newer connection of the same pod"))
        if self.closed is not None:
            self._out.append(Send(link, self.closed))
        if known is not None:
            self._resume(known, link, join, now)
        else:
            self._admit(link, join, now)

    def _resume(self, member: Member, link: int, join: m.Join, now: float) -> None:
        """A member came back on a new link before it counted as lost."""
        member.join, member.link, member.last_heard = join, link, now
        member.master_port, member.suspect_since, member.unanswered = join.master_port, None, 0
        if member.assign is not None and self.state is State.RUNNING and join.token < member.assign.token:
            self._out.append(Send(link, member.assign))
            return
        self._out.append(Send(link, m.Welcome(self.token)))
        member.workers = join.workers
        if member.group_rank is None or self.state is not State.RUNNING:
            return
        member.acked = True
        if join.workers is WorkersState.FINISHED:
            self._finish(member)
        elif join.workers in (WorkersState.IDLE, WorkersState.FAILED):
            self._worker_failed(member, None, "its workers ended while it was out of touch", now)

    def _admit(self, link: int, join: m.Join, now: float) -> None:
        member = Member(join, link, now, now, join.workers, join.master_port)
        self.roster.members[join.pod_uid] = member
        self._lost.pop(join.pod_uid, None)
        claims = join.token > NO_ROUND and join.group_rank is not None
        if self.state is State.WAITING and self._settling and claims:
            self._out.append(Send(link, m.Welcome(self.token)))
            self._first = False
            return
        if (claims or join.workers is not WorkersState.IDLE) and self.closed is None:
            self._out.append(Send(link, m.Standby(self.token)))
            self._out.append(
                Say(f"{join.pod_name} comes back from round {join.token}, its rank is taken: it stands by")
            )
        else:
            self._out.append(Send(link, m.Welcome(self.token)))

    def _on_dropped(self, link: int, silent: bool, now: float) -> None:
        member = self.roster.by_link(link)
        if member is None:
            return
        self.version += 1
        member.link = None
        if self.closed is not None:
            member.close_acked = True
        elif silent:
            member.suspect_since = now
            self._out.append(Say(f"{member.name} on {member.join.node} went silent: a suspect"))
        else:
            self._lose(member, Fault.POD, "its connection ended", now)

    def _lose(self, member: Member, fault: Fault, reason: str, now: float) -> None:
        self.version += 1
        rank = member.group_rank
        self._out.append(Say(f"{member.name} on {member.join.node} is lost ({fault.value}): {reason}"))
        if member.link is not None:
            self._out.append(Hangup(member.link, f"counted as lost: {reason}"))
        lost = Lost(member.uid, member.name, member.join.node, fault, reason, now)
        self._lost[member.uid] = lost
        while len(self._lost) > LOST_KEPT:
            self._lost.pop(next(iter(self._lost)))
        self.roster.remove(member.uid)
        if rank is None or rank in self.roster.finished:
            return
        cause = Cause(rank * self.shape.nproc_per_node, member.name, member.join.node, None, None, reason)
        if self._explains(member):
            self.book.revise(fault, cause)
            self._break(cause, fault, now)
        else:
            self._fault(fault, cause, now)

    def _explains(self, lost: Member) -> bool:
        """Whether a lost member is the likely cause of the worker failure that is being recovered from."""
        blamed = self.book.blames_worker()
        return blamed is not None and (not lost.acked or lost.last_heard <= blamed.detected_at)

    # A member's messages -------------------------------------------------------------------------------------------

    def _on_message(self, member: Member, message: object, now: float) -> None:
        match message:
            case m.HeartbeatAck():
                pass
            case m.CloseAck():
                member.close_acked = True
            case m.Port(port):
                member.master_port = port
            case m.Leaving(reason, grace_s):
                self.version += 1
                member.leaving_until = now + grace_s
                self._out.append(Say(f"{member.name} is leaving: {reason}"))
            case m.Gone(reason):
                self._on_gone(member, reason, now)
            case m.Ack(token) | m.Started(token) | m.Finished(token) if self._current(member, token):
                self._on_phase(member, message, now)
            case m.WorkerFailed(token=token) as failed if self._current(member, token):
                self._worker_failed(member, failed, failed.message, now)
            case m.Progress(token, step, total, median_s, _) if self._current(member, token):
                self._on_progress(member, step, total, median_s, now)
            case m.Started(token) | m.Finished(token) | m.WorkerFailed(token=token) if token == member.join.token:
                self._on_claimed_phase(member, message)
            case _:
                pass  # of a round that is over

    def _current(self, member: Member, token: RoundToken) -> bool:
        return self.state is State.RUNNING and token == self.token and member.group_rank is not None

    def _on_claimed_phase(self, member: Member, message: object) -> None:
        """Of the former coordinator's round, before it is adopted: the claim that came with the Join has changed."""
        if self.state is State.WAITING and self._settling:
            phases = {m.Started: WorkersState.RUNNING, m.Finished: WorkersState.FINISHED}
            member.workers = phases.get(type(message), WorkersState.FAILED)

    def _on_gone(self, member: Member, reason: str, now: float) -> None:
        if self.closed is not None:
            member.close_acked = True
        else:
            self._lose(member, Fault.POD, reason, now)

    def _on_phase(self, member: Member, message: object, now: float) -> None:
        member.acked = True
        if all(x.acked for x in self.roster.active()):
            self._silence.all_acked()
        if isinstance(message, m.Started):
            self.version += 1
            member.workers = WorkersState.RUNNING
            if all(x.workers is WorkersState.RUNNING for x in self.roster.active()):
                self._started_at = now
        elif isinstance(message, m.Finished):
            self._finish(member)

    def _finish(self, member: Member) -> None:
        self.version += 1
        member.workers = WorkersState.FINISHED
        if member.group_rank is not None:
            self.roster.finished.add(member.group_rank)

    def _on_progress(self, member: Member, step: int, total: int | None, median_s: float, now: float) -> None:
        if member.workers is WorkersState.STARTING:
            member.workers = WorkersState.RUNNING
        self._started_at = None
        self._steps.stepped(median_s, now)
        self._progress = StepProgress(step, total, now)
        self.version += 1
        self._recovered(now)

    def _recovered(self, at: float) -> None:
        for done in self.book.stepped(at):
            how = done.strategy.value if done.strategy is not None else "nothing"
            took = at - done.detected_at
            self._out.append(Say(f"recovered from {done.fault.value} by {how}, round {done.round}: {took:.2f} s"))

    # Faults and rounds ----------------------------------------------------------------------------------------------

    def _worker_failed(self, member: Member, failed: m.WorkerFailed | None, message: str, now: float) -> None:
        """failed: None if nobody saw which worker it was."""
        self.version += 1
        member.workers = WorkersState.FAILED
        active = self.roster.active()
        if any(x.leaving_until is not None for x in active):
            return  # a consequence of the leave; its end brings the next round
        suspects = [x for x in active if x.suspect_since is not None]
        for suspect in suspects:
            self._lose(suspect, Fault.NODE, "its connection went silent and workers of its peers failed", now)
        if suspects:
            return
        rank = None
        if failed is not None:
            rank = (member.group_rank or 0) * self.shape.nproc_per_node + failed.local_rank
        exit_code, signal = (None, None) if failed is None else (failed.exit_code, failed.signal)
        cause = Cause(rank, member.name, member.join.node, exit_code, signal, message)
        self._fault(Fault.PROCESS, cause, now)
        if not self.book.charge(now):
            limit = f"{self.shape.in_place_max_restarts} in-place restarts within {self.shape.in_place_window_s:g} s"
            who = f"rank {rank} on {member.name}" if rank is not None else member.name
            self._close(CloseReason.FAILED, f"{limit} are spent; the last failure: {who}: {message}", now)

    def _fault(self, fault: Fault, cause: Cause, now: float) -> None:
        self.book.begin(fault, cause, self.token.round + 1, now)
        self._break(cause, fault, now)

    def _break(self, cause: Cause, fault: Fault, now: float) -> None:
        """The running round is over, if one runs."""
        if self.state is State.RUNNING:
            self.state = State.WAITING
            self._vacant_since, self._started_at = now, None
        where = f"{cause.pod} on {cause.node}"
        self._out.append(Say(f"fault {fault.value} in round {self.token}: {where}: {cause.message}"))

    def _advance(self, now: float) -> None:
        """WAITING: form the next round if every rank can be filled."""
        if self._settling and not self._first and not self._settle(now):
            return
        roster = self.roster
        allowed = not self._first or now >= self._since + FIRST_ROUND_PATIENCE_S
        waiting = [Candidate(x.uid, x.join.index) for x in roster.waiting()]
        placement = place(roster.vacant(), waiting, spares_allowed=allowed)
        absent = [x.name for x in roster.active() if x.link is None or x.leaving_until is not None]
        if placement.missing or absent:
            self._wait_for(placement.missing, absent)
        else:
            self._form(placement.taken, now)

    def _wait_for(self, missing: tuple[int, ...], absent: list[str]) -> None:
        parts = []
        if missing:
            few = ", ".join(map(str, missing[:5])) + (", …" if len(missing) > 5 else "")
            parts.append(f"{len(missing)} of {self.shape.actives} pods (group ranks {few})")
        if absent:
            parts.append("the end or return of " + ", ".join(absent[:5]))
        text = " and ".join(parts)
        if text != self.waiting_for:
            self.version += 1
            self.waiting_for = text
            self._out.append(Say(f"waiting for {text}"))

    def _settle(self, now: float) -> bool:
        """New in office over a job that already trained: adopt its round, or know what is missing. False: wait."""
        former = former_round(self.roster.members.values(), self.shape.actives)
        if not former.whole and now < self._since + SETTLE_S:
            return False
        self._settling = False
        for rank, member in former.seats.items():
            self.roster.seat(member, rank)
        for member in self.roster.waiting():
            if member.join.group_rank is not None and member.link is not None:
                self._out.append(Send(member.link, m.Standby(self.token)))
        self.token = max(former.token, self.token, key=lambda token: token.round)
        if former.trains:
            self._adopt()
            return False
        cause = Cause(None, "", "", None, None, "the former coordinator was lost, and members of its round with it")
        self.book.begin(Fault.POD, cause, self.token.round + 1, now)
        self._vacant_since = self._since
        return True

    def _adopt(self) -> None:
        self.state = State.RUNNING
        self.waiting_for = ""
        self.version += 1
        self._out.append(Say(f"round {self.token} of the former coordinator goes on"))
        for member in self.roster.active():
            if member.workers is WorkersState.FINISHED:
                self._finish(member)

    def _form(self, taken: dict[int, str], now: float) -> None:
        strategy = self._strategy(taken)
        self._settling = self._first = False
        self.state = State.RUNNING
        self.version += 1
        self.waiting_for = ""
        self.token = RoundToken(*self.office, self.token.round + 1)
        self.book.formed(self.token.round, strategy)
        for rank, uid in taken.items():
            self.roster.seat(self.roster.members[uid], rank)
        self.roster.finished.clear()
        self._steps.new_round()
        self._started_at = None
        self._silence.new_round(now)
        master = self.roster.active()[0]
        for member in self.roster.active():
            self._assign(member, master)
        world = self.shape.actives * self.shape.nproc_per_node
        why = f" ({strategy.value})" if self.book.open else ""
        self._out.append(Say(f"round {self.token}{why}: {self.shape.actives} members, world size {world}"))

    def _strategy(self, taken: dict[int, str]) -> Strategy:
        if not taken:
            return Strategy.IN_PLACE
        joined = (self.roster.members[uid].joined_at for uid in taken.values())
        late = self._vacant_since is not None and any(at > self._vacant_since for at in joined)
        return Strategy.POD_RECREATE if late else Strategy.SPARE_SWAP

    def _assign(self, member: Member, master: Member) -> None:
        assert member.group_rank is not None
        nproc = self.shape.nproc_per_node
        member.acked, member.workers = False, WorkersState.STARTING
        member.assign = m.Assign(
            self.token,
            member.group_rank,
            self.shape.actives,
            member.group_rank * nproc,
            self.shape.actives * nproc,
            master.join.ip,
            master.master_port,
            self.book.open[-1].cause.message if self.book.open else "first round",
        )
        if member.link is not None:
            self._out.append(Send(member.link, member.assign))

    def _close(self, reason: CloseReason, message: str, now: float) -> None:
        if self.closed is not None:
            return
        self.state = State.CLOSED
        self.version += 1
        self.waiting_for = ""
        self.closed = m.Close(reason, message)
        self._close_until = now + CLOSE_ACK_S
        self._out.append(Say(f"closed: {reason.value}: {message}"))
        self._out += [Send(x.link, self.closed) for x in self.roster.members.values() if x.link is not None]

    # Time -----------------------------------------------------------------------------------------------------------

    def _on_time(self, now: float) -> None:
        self._seen = now
        if self.state is not State.CLOSED:
            standing = self.state is State.WAITING
            for silent in self._silence.lost(self.roster, self._steps, standing, now):
                self._lose(silent.member, Fault.NODE, silent.reason, now)
            overdue = [x for x in self.roster.members.values() if x.leaving_until and now >= x.leaving_until]
            for member in overdue:
                self._lose(member, Fault.POD, "it was asked to leave, and its grace period is over", now)
        if self._started_at is not None and now >= self._started_at + STEPLESS_S:
            self._recovered(self._started_at)
            self._started_at = None
        if self.state is State.RUNNING and self.roster.all_finished():
            self._recovered(now)
            self._close(CloseReason.SUCCEEDED, "all workers of all members exited 0", now)
        if self.state is State.WAITING:
            self._advance(now)
        if self.state is State.CLOSED:
            self._adjourn_if_done(now)
            return
        self._resign_if_forlorn(now)
        asked = self._silence.to_ask(self.roster, self._steps, now)
        if asked:
            self._heartbeat += 1
            self._out += [Send(x.link, m.Heartbeat(self._heartbeat, self.token)) for x in asked if x.link is not None]

    def _resign_if_forlorn(self, now: float) -> None:
        if self.state is not State.WAITING or self._observers:
            self._forlorn_since = None
        elif self._forlorn_since is None:
            self._forlorn_since = now
        elif now >= self._forlorn_since + RESIGN_S and not self._resigned:
            self._resigned = True
            self._out.append(Resign(f"it has waited for {RESIGN_S:g} s, and no operator watches"))

    def _adjourn_if_done(self, now: float) -> None:
        waiting = [x for x in self.roster.members.values() if x.link is not None and not x.close_acked]
        assert self._close_until is not None
        if not self._adjourned and (not waiting or now >= self._close_until):
            self._adjourned = True
            self._out.append(Adjourn())

"""The coordinator of a job: forms rounds, replaces lost members, closes the rendezvous.

    phase       event                                            next        what it does
    ----------  -----------------------------------------------  ----------  -------------------------------------------
    REBUILDING  a previous round is complete, and trains           RUNNING     adopts the round; no worker restarts
    REBUILDING  a previous round is incomplete, or broken          WAITING     forms the next one (rebuilding.py)
    WAITING     every rank can be filled                         RUNNING     Assign to each active (rounds.py)
    WAITING     an elastic job's spare timeout is over           RUNNING     Assign to fewer actives
    WAITING     the operator did not know of a round             REBUILDING  collects claims
    RUNNING     a worker failed (step of the ladder: ladder.py)  WAITING     next round at once, same members (InPlace)
    RUNNING     a worker failed right at the start of the round  WAITING     the same after a pause (backoff.py)
    RUNNING     a worker failed, and its pod is to be evicted    WAITING     pings all other actives
    WAITING     all other actives have answered                  WAITING     Evicted; its rank is vacant (escalation.py)
    RUNNING     a worker failed, and there is no majority        WAITING     counts it once one is back (escalation.py)
    RUNNING     a worker failed, at the end of the ladder        CLOSED      Close(Failed)
    WAITING     all fail alike, as in the rounds before          CLOSED      Close(Failed) (script_fault.py)
    RUNNING     workers hang                                     WAITING     as if the slowest had failed (hangs.py)
    RUNNING     no worker makes a step in time                   RUNNING     WriteStacks; then as if workers hang
    RUNNING     the others wait for one rank in each step        RUNNING     reports it (slow_ranks.py)
    RUNNING     weights could not be updated (rollouts.py)       CLOSED      Close(Failed)
    RUNNING     an active was lost                               WAITING     its rank is vacant; a spare takes it soon
    RUNNING     workers of some actives do not start in time     WAITING     these actives are lost (rounds.py)
    RUNNING     an active leaves                                 RUNNING     drains the others (leaving.py)
    RUNNING     a node gets a finding, and a spare waits         WAITING     Evicted, maybe after a drain (proactive.py)
    RUNNING     a user drains a pod, and a spare waits           WAITING     Evicted, after a drain (proactive.py)
    RUNNING     the operator orders a drill (drills.py)          RUNNING     BreakWorker
    RUNNING     all workers of all actives exited 0              CLOSED      Close(Succeeded)
    any         the operator ends the job                        CLOSED      Close(Suspended or Deleted)
    CLOSED      every member acknowledged, or 3 s passed         CLOSED      ShutdownComplete
    any         its own pod leaves, has ended, or is evicted     -           Redirect to a standby; StepDown
    any         a newer term is known                            -           StepDown
    any         the operator reports a newer coordinator         -           Redirect to all; StepDown
    any         no majority responded for half the fence time    -           StepDown
    WAITING     for STEP_DOWN_S, and no operator is connected    -           StepDown if no voter configuration exists

Rules: one message per member and round, no barrier. The coordinator drops messages of other rounds than the running
one. The first close is final. Without a majority of the voters the coordinator may itself be partitioned: it then
counts no silent member as lost, and no fault of a worker.
"""

from dataclasses import replace

from understudy_protocol import membership as m
from understudy_protocol.enums import RoundToken, Term
from understudy_protocol.observer import Appoint, End, Nodes, Snapshot, Superseded
from understudy_protocol.pod import JobShape
from understudy_sidecar.membership import (
    config_change,
    copies,
    drills,
    ending,
    escalation,
    eviction,
    hangs,
    joining,
    leaving,
    proactive,
    quorum,
    raised,
    rebuilding,
    restoring,
    rollouts,
    round_progress,
    rounds,
    worker_faults,
)
from understudy_sidecar.membership.coordinator_state import CoordinatorState, PreviousTerm
from understudy_sidecar.membership.events import (
    CompleteShutdown,
    CoordinatorEffect,
    CoordinatorEvent,
    Dropped,
    FromOperator,
    ObserversChanged,
    Received,
    StepDown,
    Tick,
    Unreachable,
    WatchMachines,
)
from understudy_sidecar.membership.operator_snapshot import take_snapshot
from understudy_sidecar.membership.roster import MemberRecord
from understudy_sidecar.membership.round_state import RoundPhase, RoundState
from understudy_sidecar.membership.voter_config import VoterConfig, VoterConfigs

#: Messages that need no further checks, unless one of them completes a set.
_WITHOUT_CONSEQUENCES = (m.Ack, m.Started, m.HeartbeatAck, m.ConfigChangeAck, m.CollectiveTimes)
_ENDS_OF_WORKERS = (m.Drained, m.WorkerFailed, m.Finished)
#: A member that reports the end of a worker, or a hang, was connected then. Other messages may answer older ones.
_OF_WORKERS = (*_ENDS_OF_WORKERS, m.WorkerRaised, m.Hung)
_WAITS = (RoundPhase.REBUILDING, RoundPhase.WAITING)
#: If an event comes this much later than it was due, this process was paused, and members' silence proves nothing.
LATE_S = 1.0


class Coordinator:
    """See the module. Created by `appointed` or `elected`."""

    def __init__(self, state: CoordinatorState) -> None:
        self.state = state
        self._due = state.since  # when the next event is due at the latest
        self._due_is_current = False  # no event since `_due` was computed can have made it earlier
        self._is_over = False  # stepped down, or shutdown is complete

    @classmethod
    def appointed(
        cls,
        shape: JobShape,
        pod_uid: str,
        ip: str,
        appoint: Appoint,
        now: float,
        leader_snapshot: m.LeaderSnapshot | None = None,
    ) -> "Coordinator":
        """Appointed by the operator, in a new epoch. leader_snapshot: of a previous coordinator; only its names, the
        round that has stepped, and the newest choice of a snapshot are used.
        """
        term = Term(appoint.epoch, 1)
        is_first = appoint.at_least_round < 0
        round_ = RoundState(
            RoundToken(0, 0, appoint.at_least_round),
            shape.actives,
            phase=RoundPhase.WAITING if is_first else RoundPhase.REBUILDING,
            is_first=is_first,
        )
        previous = PreviousTerm("", leader_snapshot, appoint, frozenset(appoint.running_pods))
        state = CoordinatorState(shape, pod_uid, ip, term, now, round_, VoterConfigs(term), previous)
        state.recovery_log.restore_counts(appoint.recoveries_by_strategy)
        if leader_snapshot is not None:
            round_.restore_step(leader_snapshot.stepped)
            restoring.restore_choice(state, leader_snapshot)
        return cls(state)

    @classmethod
    def elected(
        cls, shape: JobShape, pod_uid: str, ip: str, term: Term, leader_snapshot: m.LeaderSnapshot, now: float
    ) -> "Coordinator":
        """Elected by a majority of the snapshot's voters, or of both its lists while they are pending."""
        committed = VoterConfig(
            leader_snapshot.config_version, frozenset(leader_snapshot.voters), frozenset(leader_snapshot.old_voters)
        )
        token = RoundToken(0, 0, leader_snapshot.token.round)
        round_ = RoundState(token, shape.actives, phase=RoundPhase.REBUILDING, is_first=False)
        previous = PreviousTerm(leader_snapshot.coordinator_uid, leader_snapshot)
        state = CoordinatorState(shape, pod_uid, ip, term, now, round_, VoterConfigs(term, committed), previous)
        round_.restore_step(leader_snapshot.stepped)
        restoring.restore_choice(state, leader_snapshot)
        state.recovery_log.restore_counts(leader_snapshot.recoveries_by_strategy)
        if leader_snapshot.history is not None:
            eviction.restore_history(state, leader_snapshot.history, now)
        state.roster.set_voter_config(committed)
        return cls(state)

    def has_missed(self, appoint: Appoint) -> bool:
        """Whether another coordinator has formed a round meanwhile: what this one knows of the round is outdated."""
        other = appoint.coordinator_uid not in ("", self.state.pod_uid, self.state.previous.coordinator_uid)
        return self.closed is None and (other or appoint.at_least_round > self.state.round.number)

    def appoint(self, appoint: Appoint, now: float) -> list[CoordinatorEffect]:
        """The operator appoints the running coordinator for another epoch: its members stay connected."""
        state = self.state
        state.now = now
        state.begin_epoch(appoint)
        self._end_check_quorum(now)  # it was based on the previous voter configuration
        state.log(f"appointed as coordinator of term {state.term}, and was the coordinator before")
        for member in state.roster.members.values():
            joining.send_welcome(state, member)
        state.on_members_changed(now)
        self._due_is_current = False
        self._on_time(now)
        return state.take_effects()

    @property
    def term(self) -> Term:
        return self.state.term

    @property
    def phase(self) -> RoundPhase:
        return self.state.round.phase

    @property
    def token(self) -> RoundToken:
        return self.state.round.token

    @property
    def closed(self) -> m.Close | None:
        return self.state.ending.close

    @property
    def has_voters(self) -> bool:
        """Whether a voter configuration is in effect."""
        return self.state.voter_configs.committed.exists

    def leader_snapshot(self) -> m.LeaderSnapshot:
        return config_change.take_leader_snapshot(self.state)

    def snapshot(self) -> Snapshot:
        """The state for observers. O(members)."""
        return take_snapshot(self.state)

    # The machine -------------------------------------------------------------------------------------------------

    def handle(self, event: CoordinatorEvent, now: float) -> list[CoordinatorEffect]:
        state, check = self.state, self.state.round_check
        state.now, check_requested = now, check.is_requested
        is_plain_answer = self._is_plain_answer(event)
        if now > self._due + LATE_S and state.ending.close is None:
            quorum.on_pause(state, now - self._due, now)
            self._due = now
        match event:
            case Received(link, message):
                self._on_received(link, message, now)
            case Dropped(link, silent):
                joining.on_dropped(state, link, silent, now)
            case Unreachable(links):
                quorum.on_unreachable(state, links, now)
            case ObserversChanged(observers):
                quorum.on_observers(state, observers)
            case FromOperator(Nodes() as nodes):
                self._on_nodes(nodes)
            case FromOperator(Superseded(term, uid, ip)) if term > state.term and uid != state.pod_uid:
                state.broadcast(state.roster.links(), m.Redirect(uid, ip))
                state.step_down(f"the operator reports {uid or 'a coordinator'} of the newer term {term}")
            case FromOperator(End(reason, message)):
                ending.close(state, reason, message, now)
            case FromOperator() | Tick():
                pass
        has_no_consequences = (
            isinstance(event, Received)
            and isinstance(event.message, _WITHOUT_CONSEQUENCES)
            and state.ending.close is None
            and state.restores.holders_until is None
        )
        has_no_consequences = has_no_consequences and (is_plain_answer or not state.has_effects)
        if has_no_consequences and now < self._due and check.is_requested == check_requested:
            return state.take_effects()  # nothing else is due; there are thousands of such messages
        self._due_is_current = False
        if not self._is_over:
            self._on_time(now)
        effects = state.take_effects()
        self._is_over = self._is_over or any(isinstance(effect, StepDown) for effect in effects)
        return effects

    def _is_plain_answer(self, event: CoordinatorEvent) -> bool:
        """Whether the event is an answer to a heartbeat that no check-quorum counts: only its confirmation follows."""
        is_answer = isinstance(event, Received) and isinstance(event.message, m.HeartbeatAck)
        return is_answer and self.state.quorum.check is None

    def deadline(self) -> float | None:
        """When the next Tick is due; None after the shutdown or after it has stepped down."""
        if self._is_over:
            return None
        if not self._due_is_current:
            self._due, self._due_is_current = self._next_due(), True
        return self._due

    def _next_due(self) -> float:
        state = self.state
        if state.round.phase is RoundPhase.CLOSED:
            return state.ending.until
        times = [state.silence.deadline(state.roster, state.steps), leaving.deadline(state), hangs.deadline(state)]
        times += [state.config_changes.due, escalation.deadline(state)]
        times += (round_progress.deadline(state), restoring.deadline(state), copies.deadline(state))
        times += quorum.deadlines(state)
        if state.round.phase is not RoundPhase.RUNNING:
            times += [at for at in self._round_check_times() if at > state.now]
            times.append(state.round_check.deadline())
        elif (expires := rounds.start_expires(state)) > state.now:
            times.append(expires)
        return min(at for at in times if at is not None)

    # Messages ----------------------------------------------------------------------------------------------------

    def _on_nodes(self, nodes: Nodes) -> None:
        state = self.state
        state.round_check.request()
        state.notify_observers()
        state.previous = replace(state.previous, ended_pods=frozenset(nodes.ended_pods))
        proactive.on_requests(state, nodes.drains)
        if nodes.drill is not None:
            drills.on_order(state, nodes.drill, state.now)
        for verdict, links in state.nodes.update(nodes.facts, nodes.at, state.roster).items():
            state.broadcast(links, verdict)

    def _on_received(self, link: int, message: object, now: float) -> None:
        state = self.state
        if isinstance(message, m.Join):
            if message.term > state.term:
                state.step_down(f"{message.pod_name} knows the newer term {message.term}")
            else:
                joining.on_join(state, link, message, now)
            return
        member = state.roster.by_link(link)
        if member is None:
            state.hang_up(link, "the first message of a connection has to be a Join")
            return
        if isinstance(message, _OF_WORKERS):
            member.last_heard = now
        if isinstance(message, _ENDS_OF_WORKERS) and (
            proactive.on_ended(state, member, message, now) or leaving.on_ended(state, member, message)
        ):
            return
        if isinstance(message, m.WorkerRaised):
            raised.on_raised(state, member, message, now)
            return
        self._on_message(member, message, now)
        if isinstance(message, m.WorkerFailed):
            worker_faults.end_faulty_script(state, member, message, now)

    def _on_message(self, member: MemberRecord, message: object, now: float) -> None:
        state = self.state
        match message:
            case m.Ack() | m.Started() | m.Finished() | m.WorkerFailed():
                self._on_phase(member, message, now)
            case m.Progress() | m.Hung() | m.CollectiveTimes() | m.CopyFetched():
                self._on_running(member, message, now)
            case m.CopiesKept() | m.CopyStride():
                self._on_copies(member, message)
            case m.Replicas():
                rollouts.on_replicas(state, member, message)
            case m.ConfigChangeAck():
                config_change.on_config_change_ack(state, member, message, now)
            case m.Port() | m.ForkFallback() | m.Learned():
                joining.on_pod_info(state, member, message)
            case m.Leaving():
                leaving.on_leaving(state, member, message, now)
            case m.Disconnecting(reason):
                joining.on_disconnecting(state, member, reason, now)
            case m.Gone() if state.ending.close is None:
                leaving.on_gone(state, member, message, now)
            case m.Gone() | m.CloseAck():
                ending.on_acknowledged(state, member)
            case m.HeartbeatAck(number, stepped_s):
                self._on_heartbeat_ack(member, number, stepped_s, now)
            case _:
                pass  # of a round that is over

    def _on_phase(
        self, member: MemberRecord, message: "m.Ack | m.Started | m.Finished | m.WorkerFailed", now: float
    ) -> None:
        state = self.state
        if message.token == state.round.token:  # also if the round has broken meanwhile
            round_progress.on_acked(state, member)
        if not state.is_current(member, message.token):
            if isinstance(message, m.WorkerFailed):
                escalation.on_later_failure(state, member, message, now)
            if message.token == member.join.token and not isinstance(message, m.Ack):
                joining.on_previous_round_message(state, member, message)
            return
        match message:
            case m.Started(_, saved, kept):
                restoring.on_report(state, member, saved, kept, started=True)
                round_progress.on_started(state, member, now)
            case m.Finished():
                round_progress.on_finished(state, member)
            case m.WorkerFailed():
                worker_faults.on_worker_failed(state, member, message, now)

    def _on_running(
        self, member: MemberRecord, message: m.Progress | m.Hung | m.CollectiveTimes | m.CopyFetched, now: float
    ) -> None:
        if isinstance(message, m.Progress):
            member.has_stopped = False  # even if its round is not adopted yet
        if not self.state.is_current(member, message.token):
            return  # of a round that is over
        match message:
            case m.Progress():
                round_progress.on_step(self.state, member, message, now)
            case m.Hung():
                hangs.on_hung(self.state, member, message, now)
            case m.CollectiveTimes():
                round_progress.on_collectives(self.state, member, message, now)
            case m.CopyFetched():
                restoring.on_copy_fetched(self.state, member, message)

    def _on_copies(self, member: MemberRecord, message: m.CopiesKept | m.CopyStride) -> None:
        match message:
            case m.CopiesKept():
                restoring.on_copies_kept(self.state, member, message)
            case m.CopyStride():
                copies.on_stride(self.state, member, message)

    def _on_heartbeat_ack(self, member: MemberRecord, number: int, stepped_s: float | None, now: float) -> None:
        state = self.state
        if number > state.heartbeat:
            return
        member.record_answer(number)
        if stepped_s is not None:
            state.silence.on_stepped(number, stepped_s, state.steps)
        state.send(member, m.LeaseRenewal(number))
        escalation.on_answer(state, member, number)
        if state.quorum.check is not None and quorum.on_answer(state, member, number):
            self._end_check_quorum(now)

    def _end_check_quorum(self, now: float) -> None:
        quorum.end_check(self.state, now)
        ending.on_majority(self.state, now)

    # Time -----------------------------------------------------------------------------------------------------------

    def _on_time(self, now: float) -> None:
        state = self.state
        if state.round.phase is RoundPhase.CLOSED:
            self._complete_shutdown(now)
            return
        quorum.lose_not_reconnected(state, now)
        quorum.examine_silence(state, now)
        proactive.on_time(state, now)
        leaving.on_time(state, now)
        worker_faults.on_time(state, now)
        escalation.on_time(state, now)
        rollouts.on_time(state, now)
        rounds.lose_late_starters(state, now)
        copies.on_time(state)
        restoring.on_time(state, now)
        round_progress.on_time(state, now)
        self._check_round(now)
        if self.phase is RoundPhase.CLOSED:
            self._complete_shutdown(now)
            return
        quorum.step_down_if_not_followed(state, now)
        self._send_heartbeats(now)
        config_change.propose_config_change(state, now)

    def _check_round(self, now: float) -> None:
        """Form a round if a change allows it."""
        state, check = self.state, self.state.round_check
        if state.round.phase not in _WAITS or not check.is_allowed(now):
            return
        if not check.is_requested and not check.has_passed(self._round_check_times(), now):
            return
        check.on_check(len(state.roster.connected), now)
        quorum_is_clear = state.quorum.check is None and now >= state.quorum.reconnect_until
        if state.round.phase is RoundPhase.REBUILDING and quorum_is_clear:
            rebuilding.rebuild(state, now)
        if state.round.phase is RoundPhase.WAITING:
            rounds.try_form(state, now)

    def _round_check_times(self) -> list[float]:
        """Times at which a round may be formed without another event."""
        state = self.state
        match state.round.phase:
            case RoundPhase.REBUILDING:
                return [*rebuilding.check_times(state), state.quorum.reconnect_until]
            case RoundPhase.WAITING:
                return rounds.check_times(state)
            case _:
                return []

    def _send_heartbeats(self, now: float) -> None:
        state = self.state
        asked, silent = state.silence.members_to_probe(state.roster, state.steps, now, state.heartbeat + 1)
        if silent:
            quorum.lose_silent(state, silent, now)
        links = tuple(x.link for x in asked if x.link is not None)
        if asked and state.silence.is_probed(state.send_heartbeat(links)):
            state.do(WatchMachines(links, state.silence.timeouts.answer_s))
        late = state.silence.late_to_acknowledge(state.roster, now)
        if late:
            links = tuple(x.link for x in late if x.link is not None)
            state.do(WatchMachines(links, state.silence.timeouts.answer_s))

    def _complete_shutdown(self, now: float) -> None:
        if ending.is_complete(self.state, now):
            self.state.broadcast(self.state.roster.links(), m.ShutdownComplete())
            self.state.do(CompleteShutdown())
            self._is_over = True

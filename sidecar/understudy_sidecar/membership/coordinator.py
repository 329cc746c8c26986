"""The coordinator of a job: forms rounds, replaces lost members, closes the rendezvous.

    phase       event                                            next        what it does
    ----------  -----------------------------------------------  ----------  -------------------------------------------
    REBUILDING  a former round is complete, and trains           RUNNING     adopts the round; no worker restarts
    REBUILDING  a former round is incomplete, or broken          WAITING     forms the next one (rebuilding.py)
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
    RUNNING     weights could not be updated (rollouts.py)       CLOSED      Close(Failed)
    RUNNING     an active was lost                               WAITING     its rank is vacant; a spare takes it soon
    RUNNING     workers of some actives do not start in time     WAITING     these actives are lost (rounds.py)
    RUNNING     an active leaves                                 RUNNING     drains the others (leaving.py)
    RUNNING     a node gets a finding, and a spare waits         WAITING     Evicted, maybe after a drain (proactive.py)
    RUNNING     all workers of all actives exited 0              CLOSED      Close(Succeeded)
    any         the operator ends the job                        CLOSED      Close(Suspended or Deleted)
    CLOSED      every member acknowledged, or 3 s passed         CLOSED      ShutdownComplete
    any         its own pod leaves, has ended, or is evicted     -           Redirect to the first standby; StepDown
    any         a newer term is known                            -           StepDown
    any         the operator reports a newer coordinator         -           Redirect to all; StepDown
    any         no majority responded for half the fence time    -           StepDown
    WAITING     for STEP_DOWN_S, and no operator is connected    -           StepDown if no voter configuration exists

Rules: one message per member and round, no barrier. The coordinator drops messages of other rounds than the running
one. The first close is final. Without a majority of the voters the coordinator may itself be partitioned: it then
counts no silent member as lost, and no fault of a worker.
"""

from understudy_protocol import membership as m
from understudy_protocol.enums import CloseReason, Fault, RoundToken, Strategy, Term, WorkersState
from understudy_protocol.observer import (
    Appoint,
    End,
    ForkFallbacks,
    MemberView,
    Nodes,
    Snapshot,
    StepProgress,
    Superseded,
)
from understudy_protocol.pod import JobShape
from understudy_sidecar.membership import (
    config_change,
    ending,
    escalation,
    faults,
    hangs,
    joining,
    leaving,
    proactive,
    rebuilding,
    rollouts,
    rounds,
)
from understudy_sidecar.membership.coordinator_state import CheckQuorum, CoordinatorState, Phase
from understudy_sidecar.membership.events import (
    CompleteShutdown,
    CoordinatorEffect,
    CoordinatorEvent,
    Dropped,
    FromOperator,
    Hangup,
    ObserversChanged,
    Received,
    StepDown,
    Tick,
)
from understudy_sidecar.membership.roster import MemberRecord
from understudy_sidecar.membership.silence import SilentMember
from understudy_sidecar.membership.voter_config import Tally, VoterConfig, VoterConfigs

#: How long a coordinator without voters and observers waits before it assumes that it was replaced.
STEP_DOWN_S = 15.0
#: A round whose workers have run for this long did not fail at its start, even if the script reports no steps.
STARTED_WELL_S = 60.0
#: In a job of more than FEW members, the coordinator checks for a round again after about the time that a check takes.
FEW = 100
CHECK_S_PER_MEMBER = 2e-6
#: Characters of a ForkFallback reason that the snapshot repeats. A member may send any text.
MAX_REASON_CHARS = 500
#: Messages that need no further checks, unless one of them completes a set.
_WITHOUT_CONSEQUENCES = (m.Ack, m.Started, m.HeartbeatAck, m.ConfigChangeAck)
#: Without a majority, silence is examined at most so often: thousands of connections may end at the same time.
SILENCE_PAUSE_S = 0.1
#: If an event comes this much later than it was due, this process was paused, and members' silence proves nothing.
LATE_S = 1.0


class Coordinator:
    """See the module. Created by `appointed` or `elected`."""

    def __init__(self, state: CoordinatorState) -> None:
        self.state = state
        self._observers = 0
        self._unobserved_since: float | None = None  # waiting, without observers and voters
        self._no_quorum_since: float | None = None
        self._kept_silent = False  # a silent member was not counted as lost because a majority is missing
        self._look_for_silence_at = 0.0  # while a majority is missing
        self._lacks_quorum = False
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
        """Appointed by the operator, in a new epoch. leader_snapshot: of a former coordinator; only its names and the
        round that has stepped are used.
        """
        term = Term(appoint.epoch, 1)
        token = RoundToken(0, 0, appoint.at_least_round)
        state = CoordinatorState(shape, pod_uid, ip, term, now, token, VoterConfigs(term))
        state.is_first_round = appoint.at_least_round < 0
        state.phase = Phase.WAITING if state.is_first_round else Phase.REBUILDING
        state.running_pods = frozenset(appoint.running_pods)
        state.recovery_log.counts.update(appoint.recoveries_by_strategy)
        state.former_leader_snapshot, state.appointment = leader_snapshot, appoint
        if leader_snapshot is not None:
            state.stepped = leader_snapshot.stepped
        return cls(state)

    @classmethod
    def elected(
        cls, shape: JobShape, pod_uid: str, ip: str, term: Term, leader_snapshot: m.LeaderSnapshot, now: float
    ) -> "Coordinator":
        """Elected by a majority of the snapshot's voters, or of both its lists while they are pending."""
        committed = VoterConfig(
            leader_snapshot.config_version, frozenset(leader_snapshot.voters), frozenset(leader_snapshot.former_voters)
        )
        token = RoundToken(0, 0, leader_snapshot.token.round)
        state = CoordinatorState(shape, pod_uid, ip, term, now, token, VoterConfigs(term, committed))
        state.phase, state.is_first_round, state.former_coordinator = (
            Phase.REBUILDING,
            False,
            leader_snapshot.coordinator_uid,
        )
        state.former_leader_snapshot, state.stepped = leader_snapshot, leader_snapshot.stepped
        state.recovery_log.counts.update(leader_snapshot.recoveries_by_strategy)
        if leader_snapshot.history is None:
            state.offences.restore_charges(leader_snapshot.charges)
        else:
            escalation.restore_history(state, leader_snapshot.history, now)
        state.roster.set_voter_config(committed)
        return cls(state)

    def appoint(self, appoint: Appoint, now: float) -> list[CoordinatorEffect]:
        """The operator appoints the running coordinator for another epoch: its members stay connected."""
        state = self.state
        state.now = now
        state.term = Term(appoint.epoch, 1)
        state.voter_configs = VoterConfigs(state.term)  # an epoch begins without a voter configuration
        joining.end_check_quorum(state, now)  # it was based on the former voter configuration
        state.roster.set_voter_config(VoterConfig())
        state.running_pods = frozenset(appoint.running_pods)
        state.log(f"appointed as coordinator of term {state.term}, and was the coordinator before")
        for member in state.roster.members.values():
            joining.send_welcome(state, member)
        state.on_members_changed(now)
        self._due_is_current = False
        self._on_time(now)
        effects, state.out = state.out, []
        return effects

    @property
    def term(self) -> Term:
        return self.state.term

    @property
    def phase(self) -> Phase:
        return self.state.phase

    @property
    def token(self) -> RoundToken:
        return self.state.token

    @property
    def closed(self) -> m.Close | None:
        return self.state.closed

    # The machine -------------------------------------------------------------------------------------------------

    def handle(self, event: CoordinatorEvent, now: float) -> list[CoordinatorEffect]:
        state = self.state
        state.now, check_needed = now, state.check_needed
        if now > self._due + LATE_S and state.closed is None:
            self._start_check_quorum(now)
        match event:
            case Received(link, message):
                self._on_received(link, message, now)
            case Dropped(link, silent):
                joining.on_dropped(state, link, silent, now)
            case ObserversChanged(observers):
                self._observers = observers
            case FromOperator(Nodes(facts, at)):
                state.update_node_facts(facts, at)
            case FromOperator(Superseded(term, uid, ip)) if term > state.term and uid != state.pod_uid:
                state.broadcast(state.roster.links(), m.Redirect(uid, ip))
                state.out.append(StepDown(f"the operator has appointed {uid} as coordinator of term {term}"))
            case FromOperator(End(reason, message)):
                ending.close(state, reason, message, now)
            case FromOperator() | Tick():
                pass
        has_no_consequences = (
            isinstance(event, Received) and isinstance(event.message, _WITHOUT_CONSEQUENCES) and state.closed is None
        )
        if has_no_consequences and now < self._due and not state.out and state.check_needed == check_needed:
            return []  # nothing follows from it and nothing is due; there are thousands of such messages
        self._due_is_current = False
        if not self._is_over:
            self._on_time(now)
        effects, state.out = state.out, []
        self._is_over = self._is_over or any(isinstance(effect, StepDown) for effect in effects)
        return effects

    def deadline(self) -> float | None:
        """When the next Tick is due; None after the shutdown or after it has stepped down."""
        if self._is_over:
            return None
        if not self._due_is_current:
            self._due, self._due_is_current = self._next_due(), True
        return self._due

    def _next_due(self) -> float:
        state = self.state
        if state.phase is Phase.CLOSED:
            return state.close_until
        times = [state.silence.deadline(state.roster, state.steps), leaving.deadline(state), hangs.deadline(state)]
        times += [state.config_change_due, escalation.deadline(state)]
        times += [at for at in (*self._round_check_times(), rounds.start_expires(state)) if at > state.now]
        if state.start_due is not None and state.phase is Phase.RUNNING:
            times.append(state.start_due)
        if state.started_at is not None:
            times.append(state.started_at + STARTED_WELL_S)
        if state.disconnected_in_check_quorum and state.check_quorum is None:
            times.append(state.reconnect_until)
        if self._unobserved_since is not None:
            times.append(self._unobserved_since + STEP_DOWN_S)
        if self._no_quorum_since is not None:
            times.append(self._no_quorum_since + self._no_quorum_s())
        if state.check_needed and state.phase in (Phase.REBUILDING, Phase.WAITING):
            times.append(state.check_at)
        return min(at for at in times if at is not None)

    def snapshot(self) -> Snapshot:
        """The state for observers. O(members)."""
        state = self.state
        members = tuple(
            MemberView(x.uid, x.name, x.node, x.join.index, x.group_rank, x.workers)
            for x in state.roster.members.values()
        )
        return Snapshot(
            RoundToken(state.term.epoch, state.term.number, state.round_number),
            state.pod_uid,
            members,
            tuple(state.lost.values()),
            state.recovery_log.newest(),
            {strategy.value: state.recovery_log.counts[strategy.value] for strategy in Strategy},
            state.progress,
            rounds.wait_reason(state),
            state.closed,
            state.size,
            tuple(standby.pod_uid for standby in state.standby_coordinators),
            tuple(sorted(state.voter_configs.committed.voters)),
            rollouts.view(state),
            self._fork_fallbacks(),
            self._lacks_quorum,
        )

    def _fork_fallbacks(self) -> ForkFallbacks | None:
        found = [x for x in self.state.roster.members.values() if x.starts_fresh]
        return ForkFallbacks(len(found), found[0].name, found[0].starts_fresh) if found else None

    # Messages ----------------------------------------------------------------------------------------------------

    def _on_received(self, link: int, message: object, now: float) -> None:
        state = self.state
        if isinstance(message, m.Join):
            if message.term > state.term:
                state.out.append(StepDown(f"{message.pod_name} knows the newer term {message.term}"))
            else:
                joining.on_join(state, link, message, now)
            return
        member = state.roster.by_link(link)
        if member is None:
            state.out.append(Hangup(link, "the first message of a connection has to be a Join"))
            return
        member.last_heard = now
        if isinstance(message, m.Drained | m.WorkerFailed | m.Finished) and (
            proactive.on_ended(state, member, message, now) or leaving.on_ended(state, member, message)
        ):
            return
        self._on_message(member, message, now)
        if isinstance(message, m.WorkerFailed):
            escalation.end_faulty_script(state, member, message, now)

    def _on_message(self, member: MemberRecord, message: object, now: float) -> None:
        state = self.state
        match message:
            case m.Ack() | m.Started() | m.Finished() | m.WorkerFailed():
                self._on_phase(member, message, now)
            case m.Progress(token=token) if state.is_current(member, token):
                self._on_progress(member, message, now)
            case m.Hung(token=token) if state.is_current(member, token):
                hangs.on_hung(state, member, message, now)
            case m.Replicas():
                rollouts.on_replicas(state, member, message)
            case m.ConfigChangeAck():
                config_change.on_config_change_ack(state, member, message, now)
            case m.Port() | m.ForkFallback():
                self._on_pod_info(member, message)
            case m.Leaving():
                leaving.on_leaving(state, member, message, now)
            case m.Disconnecting(reason):
                joining.on_disconnecting(state, member, reason, now)
            case m.Gone() if state.closed is None:
                leaving.on_gone(state, member, message, now)
            case m.Gone() | m.CloseAck():
                state.close_pending.discard(member.uid)
            case m.HeartbeatAck(number):
                self._on_heartbeat_ack(member, number)
            case _:
                pass  # of a round that is over

    def _on_pod_info(self, member: MemberRecord, message: m.Port | m.ForkFallback) -> None:
        match message:
            case m.Port(port, store_port):
                member.master_port, member.store_port = port, store_port
            case m.ForkFallback(reason):
                member.starts_fresh = reason[:MAX_REASON_CHARS]
                self.state.version += 1

    def _on_phase(
        self, member: MemberRecord, message: "m.Ack | m.Started | m.Finished | m.WorkerFailed", now: float
    ) -> None:
        state = self.state
        if message.token == state.token:  # also if the round has broken meanwhile
            faults.on_acked(state, member)
        if not state.is_current(member, message.token):
            if isinstance(message, m.WorkerFailed):
                escalation.on_later_failure(state, member, message, now)
            if message.token == member.join.token and not isinstance(message, m.Ack):
                joining.on_former_round_message(state, member, message)
            return
        match message:
            case m.Started():
                faults.on_started(state, member, now)
            case m.Finished():
                faults.on_finished(state, member)
            case m.WorkerFailed():
                hangs.on_worker_failed(state, member, message, now)

    def _on_progress(self, member: MemberRecord, message: m.Progress, now: float) -> None:
        state = self.state
        if member.workers is WorkersState.STARTING:
            member.workers = WorkersState.RUNNING
            state.roster.starting.discard(member.uid)
            state.version += 1
        state.started_at = None
        state.backoff.on_step()
        state.steps.on_step(message.median_step_s, now)
        state.progress = StepProgress(message.step, message.total, now)
        hangs.on_step(state, member)
        faults.on_step(state, member, message, now)

    # Check-quorum -----------------------------------------------------------------------------------------------------

    def _start_check_quorum(self, now: float) -> None:
        """Members may have left, and messages that arrive now may be old: ping all members for a majority."""
        state = self.state
        state.silence.restart_timeouts(state.roster, now)
        state.log(f"did not run for {now - self._due:.1f} s: asks all members whether they still follow it")
        self._due = now
        state.check_quorum = CheckQuorum(state.send_heartbeat(state.roster.links()), Tally(state.voter_configs.newest))

    def _on_heartbeat_ack(self, member: MemberRecord, number: int) -> None:
        check_quorum = self.state.check_quorum
        if number > self.state.heartbeat:
            return
        member.record_answer(number)
        self.state.send(member, m.LeaseRenewal(number))
        escalation.on_answer(self.state, member, number)
        if check_quorum is not None and number >= check_quorum.heartbeat:
            check_quorum.responded.add(member.uid)
            if not check_quorum.responded.voter_config.exists or check_quorum.responded.has_majority():
                joining.end_check_quorum(self.state, self.state.now)

    # Time -----------------------------------------------------------------------------------------------------------

    def _on_time(self, now: float) -> None:
        state = self.state
        if state.phase is Phase.CLOSED:
            self._complete_shutdown(now)
            return
        joining.lose_not_reconnected(state, now)
        if state.has_majority() or now >= self._look_for_silence_at:
            self._lose(state.silence.find_lost(state.roster, state.steps, state.phase is not Phase.RUNNING, now), now)
        proactive.on_time(state, now)
        leaving.on_time(state, now)
        hangs.on_time(state, now)
        escalation.on_time(state, now)
        rollouts.on_time(state, now)
        if state.start_due is not None and now >= state.start_due:
            state.start_due = None
            state.version += 1
        rounds.lose_late_starters(state, now)
        if state.started_at is not None and now >= state.started_at + STARTED_WELL_S:
            state.backoff.on_long_run()
            state.started_at = None
        if state.phase is Phase.RUNNING and state.roster.all_finished():
            faults.on_recovered(state, state.recovery_log.on_running(now), now)
            ending.close(state, CloseReason.SUCCEEDED, "all workers of all members exited 0", now)
        self._check_round(now)
        if self.phase is Phase.CLOSED:
            self._complete_shutdown(now)
            return
        self._step_down_without_quorum(now)
        self._send_heartbeats(now)
        config_change.propose_config_change(state, now)

    def _lose(self, silent: list[SilentMember], now: float) -> None:
        """Count these members as lost, unless this coordinator itself may be partitioned."""
        if silent and not self.state.has_majority():
            self._kept_silent = True
            self._look_for_silence_at = now + SILENCE_PAUSE_S
            self.state.silence.restart_timeouts(self.state.roster, now)
            return
        for entry in silent:
            faults.lose_member(self.state, entry.member, Fault.NODE, entry.reason, now)

    def _check_round(self, now: float) -> None:
        """Form a round if a change allows it; with 10,000 members not at each of their messages."""
        state = self.state
        if state.phase not in (Phase.REBUILDING, Phase.WAITING) or now < state.check_at:
            return
        if not state.check_needed and not any(state.checked_at < at <= now for at in self._round_check_times()):
            return
        state.check_needed, state.checked_at = False, now
        many = len(state.roster.connected)
        state.check_at = now + CHECK_S_PER_MEMBER * many if many > FEW else now
        if state.phase is Phase.REBUILDING and state.check_quorum is None and now >= state.reconnect_until:
            rebuilding.rebuild(state, now)
        if state.phase is Phase.WAITING:
            rounds.try_form(state, now)

    def _round_check_times(self) -> list[float]:
        """Times at which a round may be formed without another event."""
        state = self.state
        if state.phase is Phase.REBUILDING:
            return [state.since + rebuilding.RETURN_S, state.since + rebuilding.REBUILD_S, state.reconnect_until]
        if state.phase is not Phase.WAITING:
            return []
        times = [state.since + rounds.FIRST_ROUND_PATIENCE_S] if state.is_first_round else []
        times += [at for at in (rounds.shrinks_at(state),) if at is not None]
        times += [state.gathers_until, state.backoff.ends_at]
        times += state.verdict_expiries()
        return times + ([state.draining.until] if state.draining is not None else [])

    def _send_heartbeats(self, now: float) -> None:
        state = self.state
        asked, silent = state.silence.members_to_probe(state.roster, state.steps, now, state.heartbeat + 1)
        self._lose(silent, now)
        if asked:
            state.send_heartbeat([x.link for x in asked if x.link is not None])

    def _step_down_without_quorum(self, now: float) -> None:
        state = self.state
        if not state.voter_configs.newest.exists:
            self._no_quorum_since = None
            self._note_quorum()
            is_unobserved = state.phase is not Phase.RUNNING and not self._observers
            self._unobserved_since = (self._unobserved_since or now) if is_unobserved else None
            if self._unobserved_since is not None and now >= self._unobserved_since + STEP_DOWN_S:
                state.out.append(
                    StepDown(f"no round could be formed for {STEP_DOWN_S:g} s, and no operator is connected")
                )
            return
        self._unobserved_since = None
        self._no_quorum_since = None if state.has_majority() else self._no_quorum_since or now
        self._note_quorum()
        if self._no_quorum_since is not None and now >= self._no_quorum_since + self._no_quorum_s():
            state.out.append(StepDown(f"fewer than a majority of its voters responded for {self._no_quorum_s():g} s"))

    def _note_quorum(self) -> None:
        """Report to observers at once that this coordinator needs a majority and has none."""
        if self._no_quorum_since is None:
            self._kept_silent = False
        needs = self.state.phase is not Phase.RUNNING or self._kept_silent
        lacks = needs and self._no_quorum_since is not None and self.state.check_quorum is None
        if lacks != self._lacks_quorum:
            self._lacks_quorum = lacks
            self.state.version += 1

    def _no_quorum_s(self) -> float:
        return (self.state.shape.fence_s or 30.0) / 2

    def _complete_shutdown(self, now: float) -> None:
        if ending.is_complete(self.state, now):
            self.state.broadcast(self.state.roster.links(), m.ShutdownComplete())
            self.state.out.append(CompleteShutdown())
            self._is_over = True

"""Members join, rejoin, and disconnect.

Rules: one link per pod; a newer one replaces it. A member that rejoins before it counts as lost keeps its rank, and
gets the assignment that it has missed. If its rank was given away, it is a spare; if it was evicted, it gets Evicted
again and is no member. A link that went silent makes the member a suspect; a link that a kernel closed, or a launcher
that ended, is a loss. While a coordinator that was paused does not know whether its members still follow it, a closed
link is no loss: the member may have called another coordinator, and may return.
"""

from understudy_protocol import membership as m
from understudy_protocol.enums import NO_ROUND, NO_TERM, CloseReason, Fault, RoundToken, WorkersState
from understudy_sidecar.membership import ending, escalation, faults, leaving
from understudy_sidecar.membership.coordinator_state import CoordinatorState, Phase
from understudy_sidecar.membership.roster import MemberRecord

#: Seconds for members to connect again to a coordinator that was paused, once a majority has confirmed it.
RETURN_S = 2.0


def on_join(state: CoordinatorState, link: int, join: m.Join, now: float) -> None:
    if join.history is not None:
        escalation.restore_history(state, join.history, now)
    if escalation.reject_evicted(state, link, join, now):
        return
    state.restore_node_fact(join)
    if join.stepped > state.stepped:  # members that made only an earlier step cannot measure the pause
        state.stepped = join.stepped
        for active in state.roster.active_members():
            active.measures_pause = active.measures_pause and active.stepped == join.stepped
    record = state.roster.members.get(join.pod_uid)
    if record is not None and record.link != link:
        state.hang_up(record.link, "superseded by a newer connection of the same pod")
    if state.closed is not None:
        _join_closed(state, record, link, join, now)
    elif record is not None:
        _resume(state, record, link, join, now)
    else:
        _admit(state, link, join, now)
    member = state.roster.by_link(link)
    if member is not None and join.leaving is not None:
        leaving.on_leaving(state, member, join.leaving, now)
    member = state.roster.by_link(link)
    if member is not None and join.unable_reason and state.closed is None:
        leaving.on_gone(state, member, m.Gone(join.unable_reason, launcher_is_alive=True), now)
    state.on_members_changed(now)


def on_dropped(state: CoordinatorState, link: int, silent: bool, now: float) -> None:
    member = state.roster.by_link(link)
    if member is None:
        return
    state.roster.disconnect(member)
    state.version += 1
    if state.closed is not None:
        state.close_pending.discard(member.uid)
    elif silent:
        suspect(state, member, "went silent", now)
    elif state.check_quorum is not None:
        state.disconnected_in_check_quorum.add(member.uid)
        state.log(f"{member.name} on {member.node} is not connected any more: it may look for another coordinator")
    elif member.uid not in state.roster.suspects:
        faults.lose_member(state, member, Fault.POD, "its connection ended", now)


def end_check_quorum(state: CoordinatorState, now: float) -> None:
    """A majority still follows: members that disconnected while this process was paused connect again."""
    state.check_quorum, state.check_needed = None, True
    state.reconnect_until = now + RETURN_S
    if state.failure_reason:
        ending.close(state, CloseReason.FAILED, state.failure_reason, now)


def lose_not_reconnected(state: CoordinatorState, now: float) -> None:
    """Lose the members that disconnected during a check-quorum and have not connected again."""
    if state.check_quorum is not None or now < state.reconnect_until:
        return
    disconnected = [
        state.roster.members[uid] for uid in sorted(state.disconnected_in_check_quorum) if uid in state.roster.members
    ]
    state.disconnected_in_check_quorum.clear()
    for member in disconnected:
        if member.link is None:
            faults.lose_member(state, member, Fault.POD, "its connection ended", now)


def on_disconnecting(state: CoordinatorState, member: MemberRecord, reason: str, now: float) -> None:
    """The member looks for another coordinator: its workers continue, and so may the round."""
    suspect(state, member, f"looks for another coordinator ({reason})", now)
    link = member.link
    state.roster.disconnect(member)
    state.hang_up(link, "it looks for another coordinator")


def suspect(state: CoordinatorState, member: MemberRecord, what: str, now: float) -> None:
    state.roster.suspects[member.uid] = now
    state.send_leader_snapshot_later(
        now
    )  # if this coordinator steps down, the next one reports whether the node was lost
    state.log(f"{member.name} on {member.node} {what}: it may be lost")


def send_welcome(state: CoordinatorState, member: MemberRecord) -> None:
    heartbeat_s = state.silence.heartbeat_s_of(len(state.roster.connected))
    domain = state.domain(member.node)
    verdict = state.node_verdict(member.node) if state.node_facts_known else None
    message = m.Welcome(
        state.token, state.term, heartbeat_s, domain, state.pod_uid, state.ip, verdict, renews_lease=True
    )
    state.send(member, message)


def on_former_round_message(state: CoordinatorState, member: MemberRecord, message: object) -> None:
    """A message about the former coordinator's round, before it is adopted: it updates the claim of the Join."""
    if state.phase is Phase.REBUILDING:
        member.failure = message if isinstance(message, m.WorkerFailed) else member.failure
        state.check_needed = True
        phases = {m.Started: WorkersState.RUNNING, m.Finished: WorkersState.FINISHED}
        member.workers = phases.get(type(message), WorkersState.FAILED)


def _join_closed(state: CoordinatorState, known: MemberRecord | None, link: int, join: m.Join, now: float) -> None:
    if known is not None:
        state.roster.reconnect(known, link)
        member = known
    else:
        member = MemberRecord(join, link, now, now, join.workers, join.master_port, _store_port(join))
        state.roster.add(member)
    state.close_pending.add(member.uid)
    state.send(member, state.closed)


def _resume(state: CoordinatorState, member: MemberRecord, link: int, join: m.Join, now: float) -> None:
    """A member has rejoined on a new link before it counted as lost."""
    if member.uid in state.roster.suspects:
        state.send_leader_snapshot_later(now)
    state.roster.reconnect(member, link)
    member.join, member.stepped, member.last_heard = join, join.stepped, now
    member.master_port, member.store_port = join.master_port, _store_port(join)
    member.record_connection(state.heartbeat)
    send_welcome(state, member)
    if join.token == state.token and join.workers in (WorkersState.IDLE, WorkersState.FAILED):
        escalation.on_rejoined_failed(state, member, join.failure, now)
    escalation.on_answer(state, member)
    if any(standby.pod_uid == member.uid for standby in state.standby_coordinators):
        state.send_leader_snapshot_later(now)  # it may have missed a snapshot meanwhile
    if member.assign is not None and state.phase is Phase.RUNNING and join.token < member.assign.token:
        state.send(member, member.assign)
        return
    member.workers = join.workers
    if member.group_rank is None or state.phase is not Phase.RUNNING:
        return
    faults.on_acked(state, member)
    if join.workers is WorkersState.FINISHED:
        faults.on_finished(state, member)
    elif join.workers in (WorkersState.IDLE, WorkersState.FAILED) and not _is_draining(state, member):
        text = join.failure.message if join.failure else "its workers ended while it was disconnected"
        escalation.on_worker_failed(state, member, join.failure, text, now)


def _is_draining(state: CoordinatorState, member: MemberRecord) -> bool:
    if state.draining is None:
        return False
    state.draining.pending.discard(member.uid)
    return True


def _admit(state: CoordinatorState, link: int, join: m.Join, now: float) -> None:
    member = MemberRecord(join, link, now, now, join.workers, join.master_port, _store_port(join))
    member.record_connection(state.heartbeat)
    state.roster.add(member)
    state.lost.pop(join.pod_uid, None)
    send_welcome(state, member)
    claims = join.token > NO_ROUND and join.group_rank is not None
    if state.phase is Phase.REBUILDING:
        return
    if claims and state.phase is Phase.WAITING and state.is_first_round:
        state.phase, state.is_first_round = (
            Phase.REBUILDING,
            False,
        )  # the operator did not know of the round of this job
        return
    if claims or join.workers is not WorkersState.IDLE:
        send_standby(state, member, join.token)


def _store_port(join: m.Join) -> int | None:
    """0 for a store that another coordinator may have used in a round that is unknown here: see RenewStore."""
    return join.store_port if join.store_port is None or join.term == NO_TERM else 0


def send_standby(state: CoordinatorState, member: MemberRecord, token: RoundToken) -> None:
    state.send(member, m.Standby(state.token))
    state.log(f"{member.name} rejoins from round {token}, but another member has its ranks: it is a spare")

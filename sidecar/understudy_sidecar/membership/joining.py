"""Members join, rejoin, and disconnect.

Rules: one link per pod; a newer one replaces it. A member that rejoins before it counts as lost keeps its rank, and
gets the assignment that it has missed, with its plan of now. If its rank was given away, it is a spare; if nobody has
it yet, the next round decides, and the member keeps what it has until then. If it was evicted, it gets Evicted again
and is no member. A link that went silent makes the member a suspect; a link that a kernel closed, or a launcher that
ended, is a loss. While a coordinator that was paused does not know whether its members still follow it, a closed link
is no loss: the member may have called another coordinator, and may return.
"""

from dataclasses import replace

from understudy_protocol import membership as m
from understudy_protocol.enums import NO_ROUND, NO_TERM, Fault, RoundToken, WorkersState
from understudy_sidecar.membership import (
    copies,
    ending,
    escalation,
    eviction,
    faults,
    leaving,
    preload,
    quorum,
    restoring,
    round_progress,
    worker_faults,
)
from understudy_sidecar.membership.coordinator_state import CoordinatorState
from understudy_sidecar.membership.roster import MemberRecord
from understudy_sidecar.membership.round_state import RoundPhase

#: Characters of a ForkFallback reason that the snapshot repeats. A member may send any text.
MAX_REASON_CHARS = 500


def on_join(state: CoordinatorState, link: int, join: m.Join, now: float) -> None:
    if join.history is not None:
        eviction.restore_history(state, join.history, now)
    if eviction.reject_evicted(state, link, join, now):
        return
    state.nodes.restore(join)
    if join.stepped > state.round.stepped:  # members that made only an earlier step cannot measure the pause
        state.round.restore_step(join.stepped)
        state.roster.limit_measuring(join.stepped)
    record = state.roster.members.get(join.pod_uid)
    if record is not None and record.link != link:
        state.hang_up(record.link, "superseded by a newer connection of the same pod")
    if state.ending.close is not None:
        _join_closed(state, record, link, join, now)
    elif record is not None:
        _resume(state, record, link, join, now)
    else:
        _admit(state, link, join, now)
    member = state.roster.by_link(link)
    if member is not None:
        preload.on_joined(state, member)
    if member is not None and join.leaving is not None:
        leaving.on_leaving(state, member, join.leaving, now)
    member = state.roster.by_link(link)
    if member is not None and join.unable_reason and state.ending.close is None:
        leaving.on_gone(state, member, m.Gone(join.unable_reason, launcher_is_alive=True), now)
    state.on_members_changed(now)


def on_dropped(state: CoordinatorState, link: int, silent: bool, now: float) -> None:
    member = state.roster.by_link(link)
    if member is None:
        return
    state.roster.disconnect(member)
    state.notify_observers()
    if state.ending.close is not None:
        ending.on_acknowledged(state, member)
    elif silent:
        suspect(state, member, "went silent", now)
    elif not quorum.on_disconnected(state, member) and member.uid not in state.roster.suspects:
        faults.lose_member(state, member, Fault.POD, "its connection ended", now)


def on_pod_info(state: CoordinatorState, member: MemberRecord, message: m.Port | m.ForkFallback | m.Learned) -> None:
    match message:
        case m.Port(port, store_port):
            member.master_port, member.store_port = port, store_port
        case m.ForkFallback(reason):
            member.starts_fresh = reason[:MAX_REASON_CHARS]
            state.notify_observers()
        case m.Learned(modules):
            preload.on_learned(state, modules)


def on_disconnecting(state: CoordinatorState, member: MemberRecord, reason: str, now: float) -> None:
    """The member looks for another coordinator: its workers continue, and so may the round."""
    suspect(state, member, f"looks for another coordinator ({reason})", now)
    link = member.link
    state.roster.disconnect(member)
    state.hang_up(link, "it looks for another coordinator")


def suspect(state: CoordinatorState, member: MemberRecord, reason: str, now: float) -> None:
    state.roster.suspect(member, now)
    # If this coordinator steps down, the next one reports whether the node was lost.
    state.config_changes.send_snapshot_later(now)
    state.log(f"{member.name} on {member.node} {reason}: it may be lost")


def send_welcome(state: CoordinatorState, member: MemberRecord) -> None:
    members = max(len(state.roster.connected), state.shape.actives)  # the others may join later
    heartbeat_s = state.silence.heartbeat_s_of(members)
    domain = state.nodes.domain(member.node)
    verdict = state.nodes.verdict(member.node) if state.nodes.are_known else None
    message = m.Welcome(state.round.token, state.term, heartbeat_s, domain, state.pod_uid, state.ip, verdict)
    state.send(member, message)


def on_previous_round_message(state: CoordinatorState, member: MemberRecord, message: object) -> None:
    """A message about the previous coordinator's round, before it is adopted: it updates the claim of the Join."""
    if state.round.phase is RoundPhase.REBUILDING:
        member.failure = message if isinstance(message, m.WorkerFailed) else member.failure
        if isinstance(message, m.Started):
            member.saved, member.kept = message.saved, message.kept
        state.round_check.request()
        phases = {m.Started: WorkersState.RUNNING, m.Finished: WorkersState.FINISHED}
        member.workers = phases.get(type(message), WorkersState.FAILED)


def _join_closed(state: CoordinatorState, known: MemberRecord | None, link: int, join: m.Join, now: float) -> None:
    if known is not None:
        state.roster.reconnect(known, link)
        member = known
    else:
        member = MemberRecord(join, link, now, now, join.workers, join.master_port, _store_port(join))
        state.roster.add(member)
    ending.on_joined(state, member)


def _resume(state: CoordinatorState, member: MemberRecord, link: int, join: m.Join, now: float) -> None:
    """A member has rejoined on a new link before it counted as lost."""
    if member.uid in state.roster.suspects:
        state.config_changes.send_snapshot_later(now)
    state.roster.reconnect(member, link)
    member.join, member.stepped, member.saved, member.last_heard = join, join.stepped, join.saved, now
    member.kept, member.config_version, member.has_stopped = join.kept, join.config_version, join.has_stopped
    member.master_port, member.store_port = join.master_port, _store_port(join)
    member.record_connection(state.heartbeat)
    send_welcome(state, member)
    if join.token == state.round.token and join.workers in (WorkersState.IDLE, WorkersState.FAILED):
        escalation.on_later_failure(state, member, join.failure, now)
    escalation.on_answer(state, member)
    if any(standby.pod_uid == member.uid for standby in state.config_changes.standbys):
        state.config_changes.send_snapshot_later(now)  # it may have missed a snapshot meanwhile
    if member.assign is not None and state.round.phase is RoundPhase.RUNNING and join.token < member.assign.token:
        state.send(member, replace(member.assign, copies=state.copies.plans.get(member.uid)))
        return
    member.workers = join.workers
    copies.on_rejoined(state, member)
    if member.group_rank is None:
        _answer_claim(state, member)
        return
    leaving.on_rejoined(state, member, now)
    if state.round.phase is not RoundPhase.RUNNING:
        return
    round_progress.on_acked(state, member)
    restoring.on_report(state, member, join.saved, join.kept, started=join.workers is not WorkersState.STARTING)
    if join.workers is WorkersState.RUNNING and member.uid in state.roster.starting:
        round_progress.on_started(state, member, now)
    elif join.workers is WorkersState.FINISHED:
        round_progress.on_finished(state, member)
    elif join.workers in (WorkersState.IDLE, WorkersState.FAILED) and state.draining is None:
        worker_faults.on_rejoined_failed(state, member, join.failure, now)


def _admit(state: CoordinatorState, link: int, join: m.Join, now: float) -> None:
    member = MemberRecord(join, link, now, now, join.workers, join.master_port, _store_port(join))
    member.record_connection(state.heartbeat)
    state.roster.add(member)
    state.losses.on_return(join.pod_uid)
    send_welcome(state, member)
    if _claims_ranks(join) and state.round.phase is RoundPhase.WAITING and state.round.is_first:
        state.round.rebuild()  # the operator did not know of the round of this job
    _answer_claim(state, member)


def _claims_ranks(join: m.Join) -> bool:
    return join.token > NO_ROUND and join.group_rank is not None


def _answer_claim(state: CoordinatorState, member: MemberRecord) -> None:
    """A member without ranks has joined. It may have missed an earlier answer."""
    join, claims = member.join, _claims_ranks(member.join)
    if state.round.phase is RoundPhase.REBUILDING:
        return
    finished = _finished_rank(state, join)
    if finished is not None:
        state.roster.assign_rank(member, finished)
        return
    member.has_returned = claims and _is_vacant(state, join)
    if not member.has_returned and (claims or join.workers is not WorkersState.IDLE):
        send_standby(state, member, join.token)


def _store_port(join: m.Join) -> int | None:
    """0 for a store that another coordinator may have used in a round that is unknown here: see RenewStore."""
    return join.store_port if join.store_port is None or join.term == NO_TERM else 0


def _finished_rank(state: CoordinatorState, join: m.Join) -> int | None:
    """The rank whose workers had all exited 0 in the running round before this member was lost. The member keeps it, so
    that the next coordinator learns this, too.
    """
    rank, roster = join.group_rank, state.roster
    is_running = state.round.phase is RoundPhase.RUNNING and join.token == state.round.token
    has_finished = join.workers is WorkersState.FINISHED and rank in roster.finished
    return rank if is_running and has_finished and rank is not None and roster.holders[rank] is None else None


def _is_vacant(state: CoordinatorState, join: m.Join) -> bool:
    """Whether nobody has this member's rank, and nobody else had it in the newest round. The member may not know that
    round: its assignment may not have reached it.
    """
    rank, roster = join.group_rank, state.roster
    if state.round.phase is not RoundPhase.WAITING or rank is None or rank >= len(roster.holders):
        return False
    last = roster.last_holders.get(rank)
    had_it = join.token == state.round.token or (last is not None and last.pod_uid == join.pod_uid)
    return had_it and roster.holders[rank] is None


def stand_by(state: CoordinatorState, member: MemberRecord) -> None:
    """A round was formed. A member that had returned, and got no rank, is a spare now."""
    if not member.has_returned or member.link is None:
        return
    member.has_returned = False
    if member.group_rank is None:
        send_standby(state, member, member.join.token)


def send_standby(state: CoordinatorState, member: MemberRecord, token: RoundToken) -> None:
    state.send(member, m.Standby(state.round.token))
    state.log(f"{member.name} rejoins from round {token}, which is over: it waits as a spare")

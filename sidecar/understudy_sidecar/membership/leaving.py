"""A member is asked to end (its pod is deleted or drained): a save that needs every rank can still finish.

Rules: a member on a node with a Faulty verdict saves nothing: its workers have ended, and its rank is given away. The
others save if they have all shards of a checkpoint (termination.replicaGroups). Any other leaving member may save, and
the coordinator drains all other actives: their workers get SIGTERM too and may save for the same time. The next round
follows when all their workers have ended and the leaving members are gone, or when the grace period, less a margin, is
over. A leaving spare only becomes ineligible for ranks. A leaving coordinator first transfers its leadership. A new
coordinator continues a drain: members report it in their Joins. If a leaving member has not yet received the round that
followed a worker's failure, it left before that failure (the network was slow), and is its cause.

Shards: all members of a replica group hold the same part of a checkpoint. The others can save if each group of the
member has another active that is connected, not leaving, and not on a faulty node. The shards of a rank in no group
exist nowhere else. The result is UNKNOWN if no groups are declared, or while an elastic job has shrunk: then its ranks,
and so its shards, are not the declared ones.
"""

from enum import Enum

from understudy_protocol import membership as m
from understudy_protocol.enums import Fault, RoundToken, Verdict, WorkersState
from understudy_sidecar.membership import config_change, faults
from understudy_sidecar.membership.coordinator_state import CoordinatorState, Draining
from understudy_sidecar.membership.node_facts import MAX_FINDING_CHARS
from understudy_sidecar.membership.roster import MemberRecord
from understudy_sidecar.membership.round_state import RoundPhase

#: The part of the grace period for which the others do not wait: enough to kill, acknowledge and start.
MARGIN_S = 2.0
MARGIN_FRACTION = 0.1
_AT_WORK = (WorkersState.STARTING, WorkersState.RUNNING)


class SavePossibility(Enum):
    """Whether the other actives can save a whole checkpoint."""

    MAY_SAVE = "the other pods have all shards"
    MISS_SHARDS = "no healthy pod has some of the shards"
    UNKNOWN = "the distribution of shards is not known"


def on_leaving(state: CoordinatorState, member: MemberRecord, leaving: m.Leaving, now: float) -> None:
    if state.ending.close is not None or member.uid in state.roster.leaving:
        return
    state.log(f"{member.name} is leaving ({leaving.verdict.value}): {leaving.reason}")
    if member.uid == state.pod_uid:
        transfer_leadership(state, leaving.reason)
        return
    if leaving.verdict is Verdict.FAULTY:
        finding = state.hardware_finding(member.node)[:MAX_FINDING_CHARS]
        where = f"a faulty node ({finding})" if finding else "a faulty node"
        _on_leaving_faulty_node(state, member, f"its pod leaves {where}: {leaving.reason}", now)
        return
    state.roster.set_leaving(member, now + leaving.grace_s)
    state.on_members_changed(now)
    if member.group_rank is None or member.group_rank in state.roster.finished:
        return
    if _left_before_failure(state, member, now):
        faults.blame_lost_member(
            state, member, Fault.POD, f"its pod was asked to end: {leaving.reason}", faults.LEAVES, now
        )
    if state.round.phase is RoundPhase.RUNNING:
        drain(state, leaving.grace_s, now)


def _left_before_failure(state: CoordinatorState, member: MemberRecord, now: float) -> bool:
    """Whether its Leaving came after a peer's WorkerFailed, and before any message of the round that followed."""
    worker_entry = state.recovery_log.newest_worker_fault()
    if worker_entry is None or worker_entry.fault is not Fault.PROCESS or worker_entry.cause.pod == member.name:
        return False
    if state.fault_history.has_evicted(worker_entry.detected_at):
        return False  # all others were still connected then
    has_assignment = state.round.phase is RoundPhase.RUNNING and member.uid not in state.roster.unacked
    return not has_assignment and now <= worker_entry.detected_at + state.silence.answer_s_of(len(state.roster.holders))


def _on_leaving_faulty_node(state: CoordinatorState, member: MemberRecord, reason: str, now: float) -> None:
    """Its workers are dead. The workers of the others may still run, or save already."""
    at_work = state.round.phase is RoundPhase.RUNNING or waits_for_saves(state, now)
    if at_work and member.group_rank is not None and member.group_rank not in state.roster.finished:
        match may_save_without(state, member.group_rank):
            case SavePossibility.MAY_SAVE:
                state.roster.set_leaving(member, now)
                drain(state, state.shape.grace_s, now)
            case SavePossibility.MISS_SHARDS:
                state.draining = None  # a save that has begun cannot be finished
                reason_suffix = f"no healthy pod has the shards of group rank {member.group_rank}"
                reason = f"{reason}; no checkpoint is tried: {reason_suffix}"
            case SavePossibility.UNKNOWN:
                pass
    faults.lose_member(state, member, Fault.NODE, reason, now)


def on_gone(state: CoordinatorState, member: MemberRecord, gone: m.Gone, now: float) -> None:
    """The member can take part in no round. If its sidecar is the coordinator, the coordinator transfers its
    leadership.

    If no standby coordinator can be elected and the launcher is alive, the coordinator stays, and reports its own pod
    as lost: only then does the operator replace that pod.
    """
    if member.uid == state.pod_uid and not (gone.launcher_is_alive and not config_change.has_electable_standby(state)):
        transfer_leadership(state, gone.reason)
    else:
        faults.lose_member(state, member, Fault.POD, gone.reason, now, local_rank=gone.local_rank or 0)


def transfer_leadership(state: CoordinatorState, reason: str) -> None:
    """Step down, and redirect all members to a connected standby, if possible one that would not step down soon, too;
    if there is none, the operator appoints.
    """
    connected = [x for x in state.config_changes.standbys if x.pod_uid in state.roster.connected]
    standby = next((x for x in connected if _may_stay(state, x.pod_uid)), connected[0] if connected else None)
    if standby is not None and state.voter_configs.committed.exists:
        if state.config_changes.snapshot_is_stale:
            config_change.send_leader_snapshot(state)  # else the next coordinator would end a recovery once more
        state.broadcast(state.roster.links(), m.Redirect(standby.pod_uid, standby.ip))
    action = "no standby coordinator is connected" if standby is None else f"transfers leadership to {standby.pod_uid}"
    state.step_down(f"{action}: {reason}")


def _may_stay(state: CoordinatorState, uid: str) -> bool:
    return uid not in state.roster.leaving and not state.hardware_finding(state.roster.members[uid].node)


def on_ended(state: CoordinatorState, member: MemberRecord, message: m.Drained | m.WorkerFailed | m.Finished) -> bool:
    """Workers that were drained have ended, with any code: no fault. False if they were not drained."""
    draining = state.draining
    if draining is None or message.token != draining.token or not draining.is_unsaved(member.uid):
        return False
    if isinstance(message, m.Drained):  # peers of a failed worker may still save
        member.workers = WorkersState.IDLE
        draining.on_ended(member.uid)
        state.round_check.request()
    state.notify_observers()
    return not isinstance(message, m.Finished)


def on_rejoined(state: CoordinatorState, member: MemberRecord, now: float) -> None:
    """The member may have missed its Drain, or its Drained may be lost."""
    draining, join = state.draining, member.join
    if draining is None or join.token != draining.token or member.group_rank is None:
        return
    if member.workers not in _AT_WORK:
        draining.on_ended(member.uid)
        return
    is_swapped = member.uid in state.swaps.begun
    leaves = join.leaving is not None or (member.uid in state.roster.leaving and not is_swapped)
    if join.drain_s is None and not leaves and now < draining.until:
        if not is_swapped:
            draining.expect_save(member.uid)
        state.send(member, m.Drain(draining.token, draining.until - now))


def waits_for_saves(state: CoordinatorState, now: float) -> bool:
    """Whether the next round has to wait for members that still save."""
    return state.draining is not None and state.draining.waits(now)


def deadline(state: CoordinatorState) -> float | None:
    times = [state.roster.leaving_due] if state.roster.leaving and state.has_majority() else []
    if state.draining is not None and state.now < state.draining.until:
        times.append(state.draining.until)
    return min(times, default=None)


def on_time(state: CoordinatorState, now: float) -> None:
    """Lose the leaving members whose time is over; recover drained members if no round would follow otherwise.

    Without a majority, a next coordinator decides.
    """
    if not state.has_majority():
        return
    for member in state.roster.end_grace_periods(now):
        faults.lose_member(state, member, Fault.POD, "its pod was asked to end, and its grace is over", now)
    if state.draining is None:
        return
    if now >= state.draining.until:
        for member in [x for x in state.roster.active_members() if x.uid in state.roster.leaving]:
            faults.lose_member(state, member, Fault.POD, "its pod was asked to end, and its grace is almost over", now)
    if state.round.phase is not RoundPhase.RUNNING or state.roster.leaving or waits_for_saves(state, now):
        return
    drained = [x for x in state.roster.active_members() if x.workers is WorkersState.IDLE]
    if drained:
        text = "it was drained for another pod, which had finished or has not ended"
        faults.open_fault(state, Fault.POD, faults.cause_of(state, drained[0], None, text), now)


def drain(state: CoordinatorState, grace_s: float, now: float) -> None:
    """Drain all actives that do not leave: their workers may save for this time, less a margin."""
    _drain_until(state, state.round.token, now + _save_s(grace_s), now)


def continue_drain(state: CoordinatorState, token: RoundToken, now: float) -> None:
    """A new coordinator: a member of this round was asked to end, or the previous coordinator drained its members."""
    active, leaving_until, most_s = state.roster.active_members(), state.roster.leaving, state.shape.grace_s
    until = [now + _save_s(leaving_until[x.uid] - now) for x in active if x.uid in leaving_until]
    until += [x.joined_at + min(max(0.0, x.join.drain_s), most_s) for x in active if x.join.drain_s is not None]
    if until:
        _drain_until(state, token, min(until), now)


def _save_s(grace_s: float) -> float:
    return max(0.0, grace_s - min(MARGIN_S, MARGIN_FRACTION * grace_s))


def _drain_until(state: CoordinatorState, token: RoundToken, until: float, now: float) -> None:
    """If the drain already ends earlier, do nothing: the pods of a rack leave at the same time."""
    if state.draining is not None and now < state.draining.until <= until:
        return
    others = [
        x
        for x in state.roster.active_members()
        if x.uid not in state.roster.leaving and x.workers in _AT_WORK and x.link is not None
    ]
    if state.draining is None:
        state.draining = Draining(token, until, {x.uid for x in others})
    else:
        state.draining.shorten(until)
    save_s = max(0.0, until - now)
    state.broadcast([x.link for x in others if x.link is not None], m.Drain(token, save_s))
    state.log(f"drains {len(others)} members, which have {save_s:.0f} s to save")


def on_round(state: CoordinatorState) -> None:
    """The next round is formed: the drain is over."""
    state.draining = None


def replace_pods(state: CoordinatorState, members: list[MemberRecord], reason: str, now: float) -> None:
    """Count these members as lost and evict them: a stuck launcher's sidecar would connect again at once."""
    for member in members:
        state.send(member, m.Evicted(state.term, reason))
        faults.lose_member(state, member, Fault.POD, reason, now)
        state.fault_history.record_eviction(member.uid, reason)
    if any(member.uid == state.pod_uid for member in members) and config_change.has_electable_standby(state):
        config_change.send_leader_snapshot(state)
        transfer_leadership(state, f"its pod is replaced: {reason}")


# Shards -----------------------------------------------------------------------------------------------------------


def may_save_without(state: CoordinatorState, group_rank: int) -> SavePossibility:
    declared = state.shape.replica_groups
    if not declared or state.round.size != state.shape.actives:
        return SavePossibility.UNKNOWN
    groups = [group for group in declared if group_rank in group]
    are_complete = bool(groups) and all(
        any(_has_healthy_holder(state, rank) for rank in group if rank != group_rank) for group in groups
    )
    return SavePossibility.MAY_SAVE if are_complete else SavePossibility.MISS_SHARDS


def _has_healthy_holder(state: CoordinatorState, group_rank: int) -> bool:
    """Whether the holder of this rank is healthy."""
    uid = state.roster.holders[group_rank] if group_rank < len(state.roster.holders) else None
    if uid is None or uid in state.roster.leaving:
        return False
    member = state.roster.members[uid]
    return member.link is not None and not state.hardware_finding(member.node)

"""Faults that end a round (failed workers, lost members), and their entries in the recovery log.

Rules: the first fault of a round is its cause; a member that was lost before or at the same time replaces that cause.
While a member is leaving (its workers may still save), worker failures are its consequence. The coordinator has already
dropped messages of other rounds than the running one.
"""

from understudy_protocol import membership as m
from understudy_protocol.enums import Fault
from understudy_protocol.observer import Cause, Lost
from understudy_protocol.recovery import MAX_TRACEBACK_CHARS
from understudy_sidecar.membership.coordinator_state import CoordinatorState
from understudy_sidecar.membership.roster import MemberRecord

#: Related losses (the node's other pods, the rack's other nodes) are reported within this time: one round for all. The
#: coordinator also gathers the failures of a round for this long to find the first one.
GATHER_S = 0.02
#: Reasons in the recovery log if the ranks go to another member. Neither of them charges the budget.
LOST = "its pod is lost"
LEAVES = "its pod was asked to end"


def lose_member(
    state: CoordinatorState, member: MemberRecord, fault: Fault, reason: str, now: float, *, local_rank: int = 0
) -> None:
    """Count the member as lost: its rank is vacant, and its pod will be replaced.

    local_rank: of the worker that is the reason.
    """
    rank, has_assignment = member.group_rank, member.uid not in state.roster.unacked
    state.log(f"{member.name} on {member.node} is lost ({fault.value}): {reason}")
    state.hang_up(member.link, f"lost: {reason}")
    state.losses.report(Lost(member.uid, member.name, member.node, fault, reason, now))
    state.losses.count(member.uid, now)
    is_leaving = member.uid in state.roster.leaving
    state.roster.remove(member)
    state.on_members_changed(now)
    if state.draining is not None:
        state.draining.on_ended(member.uid)
    has_not_answered = state.pending.on_lost(member.uid)
    if rank is None or rank in state.roster.finished:
        return
    state.backoff.on_loss(now)
    cause, recovery_reason = _cause_of_loss(state, member, reason, local_rank), LEAVES if is_leaving else LOST
    worker_entry = state.recovery_log.newest_worker_fault()
    if worker_entry is not None and state.fault_history.has_evicted(worker_entry.detected_at):
        worker_entry = None  # all others were still connected then
    was_lost_first = worker_entry is not None and not member.was_connected_after(
        worker_entry.detected_at, state.pending.heartbeat
    )
    if worker_entry is not None and (not has_assignment or has_not_answered or was_lost_first):
        blame_lost_member(state, member, fault, reason, recovery_reason, now, local_rank=local_rank)
        _end_round(state, fault, cause, now)
    elif state.recovery_log.has_entry(cause.pod, recovery_reason):
        _end_round(state, fault, cause, now)
    else:
        state.recovery_log.on_loss(member.name, recovery_reason)
        open_fault(state, fault, cause, now, recovery_reason)


def blame_lost_member(
    state: CoordinatorState,
    member: MemberRecord,
    fault: Fault,
    reason: str,
    why: str,
    now: float,
    *,
    local_rank: int = 0,
) -> None:
    """Replace the newest entry's cause: its worker only failed because this member was lost, or was leaving."""
    worker_entry = state.recovery_log.newest_worker_fault()
    assert worker_entry is not None
    state.recovery_log.revise(fault, _cause_of_loss(state, member, reason, local_rank), why)
    state.fault_history.take_back(worker_entry.detected_at)
    state.pending.drop()
    state.config_changes.send_snapshot_later(now)


def _cause_of_loss(state: CoordinatorState, member: MemberRecord, reason: str, local_rank: int) -> Cause:
    rank = None if member.group_rank is None else member.group_rank * state.shape.nproc_per_node + local_rank
    return Cause(rank, member.name, member.node, None, None, reason)


def cause_of(state: CoordinatorState, member: MemberRecord, failed: m.WorkerFailed | None, message: str) -> Cause:
    if failed is None:
        return Cause(None, member.name, member.node, None, None, message)
    rank = (member.group_rank or 0) * state.shape.nproc_per_node + failed.local_rank
    traceback = failed.traceback[-MAX_TRACEBACK_CHARS:]
    return Cause(rank, member.name, member.node, failed.exit_code, failed.signal, message, traceback)


def add_consequence(state: CoordinatorState, cause: Cause) -> None:
    """A worker failed after the fault that ended the round."""
    if state.recovery_log.add_consequence(cause):
        state.notify_observers()


def open_fault(
    state: CoordinatorState, fault: Fault, cause: Cause, now: float, reason: str = "", *, at: float | None = None
) -> None:
    """Add an entry to the recovery log, and end the running round.

    reason: for the choice of the strategy. at: when the fault was detected; None: now.
    """
    state.recovery_log.begin(fault, cause, state.round.token.round + 1, now if at is None else at, reason)
    if fault not in (Fault.POD, Fault.NODE):
        state.pending.begin(state.heartbeat)
    state.config_changes.send_snapshot_later(now)
    _end_round(state, fault, cause, now)


def _end_round(state: CoordinatorState, fault: Fault, cause: Cause, now: float) -> None:
    """End the running round, if there is one."""
    state.round_check.request()
    if fault in (Fault.POD, Fault.NODE):
        state.round.gather(now + GATHER_S)
    state.round.end(now)
    where = f"{cause.pod} on {cause.node}"
    state.log(f"fault {fault.value} in round {state.round.token}: {where}: {cause.message}")

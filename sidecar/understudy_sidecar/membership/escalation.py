"""A worker's fault: count it, and recover with the step of the ladder that it has reached (ladder.py).

Rules: a fault is counted when all failures of its round are gathered, and the first of them is the cause
(first_failure.py). The coordinator evicts a member only if that member certainly failed first, so it pings all other
actives before. One that does not answer was lost earlier, and is the cause. If a report of an earlier failure arrives
meanwhile, the order is uncertain, and no member is evicted. A coordinator without a majority counts no fault and ends
no job for a spent budget: it may be partitioned or replaced, and the worker may have failed because of that. A
coordinator whose own pod is evicted first transfers its leadership, with its leader snapshot. An evicted member that
joins again gets Evicted again.
"""

from understudy_protocol import membership as m
from understudy_protocol.enums import Fault
from understudy_protocol.observer import Cause, Lost
from understudy_protocol.recovery import History, Offence
from understudy_sidecar.membership import config_change, ending, faults, leaving
from understudy_sidecar.membership.coordinator_state import CoordinatorState, PendingEviction, PendingFault, Phase
from understudy_sidecar.membership.events import Hangup, Send
from understudy_sidecar.membership.first_failure import UNKNOWN, FailureReport, FirstFailure, bounded_time
from understudy_sidecar.membership.ladder import FaultCase, LadderDecision, LadderStep, choose_step
from understudy_sidecar.membership.roster import MemberRecord

#: Characters of a node health finding that a reason repeats: an annotation may be long.
MAX_FINDING_CHARS = 200
UNCERTAIN = "it is not known which pod failed first"
_EVICTION_WOULD_BE_LOST = "without it the other pods cannot elect a coordinator that knows of the replacement"


def on_worker_failed(
    state: CoordinatorState, member: MemberRecord, failed: m.WorkerFailed | None, message: str, now: float
) -> None:
    """failed: None if it is unknown which worker failed."""
    faults.mark_failed(state, member)
    if faults.is_consequence(state, now):
        return
    cause = faults.cause_of(state, member, failed, message)
    if failed is None:
        open_worker_fault(state, Fault.PROCESS, member, cause, now, keep_reason=UNCERTAIN)
        return
    if state.size * state.shape.nproc_per_node > 1:
        state.gathers_until = now + faults.GATHER_S
    failed_at = bounded_time(failed.at, state.formed_at, now)
    open_worker_fault(state, Fault.PROCESS, member, cause, now, failed_at=failed_at)


def open_worker_fault(
    state: CoordinatorState,
    fault: Fault,
    member: MemberRecord,
    cause: Cause,
    now: float,
    *,
    failed_at: float = UNKNOWN,
    keep_reason: str = "",
) -> None:
    """End the running round with this fault. keep_reason: why the member's pod cannot be evicted."""
    faults.open_fault(state, fault, cause, now)
    if fault is Fault.PROCESS:
        state.backoff.on_failure(now)
        if state.backoff.is_waiting(now):
            state.log(f"the next round waits for {state.backoff.reason}")
    count_fault(state, member, cause, now, now, failed_at=failed_at, keep_reason=keep_reason)


def count_fault(
    state: CoordinatorState,
    member: MemberRecord,
    cause: Cause,
    at: float,
    now: float,
    *,
    failed_at: float = UNKNOWN,
    keep_reason: str = "",
) -> None:
    """Recover from the fault of the open log entry that began at `at`; without a majority, leave it pending."""
    if now < state.gathers_until or not state.has_majority():
        state.pending_fault = PendingFault(FirstFailure(FailureReport(member.uid, cause, failed_at)), at, keep_reason)
        return
    decision = choose_step(_case(state, member, cause, keep_reason, now), state.offences.limits)
    if decision.step is not LadderStep.EVICT:
        _restart_or_fail(state, member, cause, decision, at, now, is_certain=not keep_reason)
        return
    others = [x for x in state.roster.active_members() if x is not member]
    number = state.send_heartbeat([x.link for x in others if x.link is not None])
    until = now + state.silence.answer_s_of(len(others))
    state.pending_eviction = PendingEviction(
        member.uid, cause, decision.reason, decision.is_charged, at, failed_at, number, {x.uid for x in others}, until
    )
    state.log(f"{member.name} is to be replaced ({decision.reason}): asks {len(others)} members for an answer first")


def on_answer(state: CoordinatorState, member: MemberRecord, heartbeat: int | None = None) -> None:
    """The member has answered this heartbeat, or has rejoined."""
    eviction = state.pending_eviction
    if eviction is not None and (heartbeat is None or heartbeat >= eviction.heartbeat):
        eviction.pending.discard(member.uid)
        state.check_needed = state.check_needed or not eviction.pending


def on_later_failure(state: CoordinatorState, member: MemberRecord, failed: m.WorkerFailed, now: float) -> None:
    """Another worker failed in the round that is over: a consequence, or the first failure."""
    eviction, pending = state.pending_eviction, state.pending_fault
    if failed.token != state.token or member.group_rank is None:
        return
    at = bounded_time(failed.at, state.formed_at, now)
    if eviction is not None and member.uid != eviction.uid and at < eviction.failed_at:
        eviction.earlier_failure = member.name
    elif pending is not None:
        cause = faults.cause_of(state, member, failed, failed.message)
        if pending.failures.add(FailureReport(member.uid, cause, at)):
            state.recovery_log.set_cause(pending.at, cause)
            state.version += 1
            state.log(f"a worker of {member.name} failed earlier, by its node's clock: {failed.message}")


def on_rejoined_failed(
    state: CoordinatorState, member: MemberRecord, failed: m.WorkerFailed | None, now: float
) -> None:
    """A worker failed while its sidecar was disconnected. failed: None if unknown; then it may have been the first."""
    if failed is not None:
        on_later_failure(state, member, failed, now)
    elif state.pending_eviction is not None and member.uid != state.pending_eviction.uid:
        state.pending_eviction.earlier_failure = member.name


def end_faulty_script(state: CoordinatorState, member: MemberRecord, failed: m.WorkerFailed, now: float) -> None:
    """Runs after the failure is counted: no recovery helps a script that fails everywhere in the same way."""
    if failed.token != state.token:
        return
    workers = state.size * state.shape.nproc_per_node
    why = state.script_fault.on_worker_failed(member.uid, failed, workers, state.backoff.failures)
    if why:
        ending.fail(state, why)


def deadline(state: CoordinatorState) -> float | None:
    return None if state.pending_eviction is None else state.pending_eviction.until


def on_time(state: CoordinatorState, now: float) -> None:
    """Evict the member once all other actives have answered; one that has not in time was lost earlier."""
    _count_pending_fault(state, now)
    eviction = state.pending_eviction
    if eviction is None:
        return
    if state.phase is not Phase.WAITING:
        state.pending_eviction = None
    elif not state.has_majority():
        eviction.until = now + state.silence.timeouts.answer_s
    elif not eviction.pending:
        _decide_eviction(state, eviction, now)
    elif now >= eviction.until:
        reason = "it did not answer after workers of other pods had failed"
        for member in [state.roster.members[uid] for uid in sorted(eviction.pending) if uid in state.roster.members]:
            faults.lose_member(state, member, Fault.NODE, reason, now)
        eviction.pending.clear()


def _count_pending_fault(state: CoordinatorState, now: float) -> None:
    """Count the pending fault; `faults.blame_lost_member` has removed it if a loss was the cause."""
    pending = state.pending_fault
    if pending is None or now < state.gathers_until or not state.has_majority():
        return
    state.pending_fault = None
    first = pending.failures.first
    member = state.roster.members.get(first.pod_uid)
    if member is not None and member.uid not in state.roster.leaving:  # it ends anyway otherwise, and is not charged
        keep_reason = pending.keep_reason or ("" if pending.failures.is_certain else UNCERTAIN)
        count_fault(state, member, first.cause, pending.at, now, failed_at=first.at, keep_reason=keep_reason)


def _decide_eviction(state: CoordinatorState, eviction: PendingEviction, now: float) -> None:
    state.pending_eviction = None
    member = state.roster.members.get(eviction.uid)
    if member is None or member.uid in state.roster.leaving:
        return  # it ends anyway, and is not charged
    if eviction.earlier_failure:
        state.log(
            f"{member.name} is not replaced: a worker of {eviction.earlier_failure} failed earlier, by its node's clock"
        )
        decision = choose_step(_case(state, member, eviction.cause, UNCERTAIN, now), state.offences.limits)
        _restart_or_fail(state, member, eviction.cause, decision, eviction.at, now, is_certain=False)
        return
    state.recovery_log.set_reason(
        eviction.at, eviction.reason
    )  # not earlier: the next coordinator may decide otherwise
    if not state.hardware_finding(member.node):
        rank = _rank(state, member, eviction.cause)
        state.offences.add(Offence(eviction.at, member.uid, rank, eviction.charged, caused_eviction=True))
    evict(state, member, eviction.reason, now)


def _restart_or_fail(
    state: CoordinatorState,
    member: MemberRecord,
    cause: Cause,
    decision: LadderDecision,
    at: float,
    now: float,
    *,
    is_certain: bool,
) -> None:
    """Restart the workers in place, or fail the job."""
    state.send_leader_snapshot_later(now)
    state.recovery_log.set_reason(at, decision.reason)
    if decision.step is LadderStep.IN_PLACE and decision.is_charged:
        offence = Offence(at, member.uid, _rank(state, member, cause))
        state.offences.add(offence if is_certain else Offence(at, "", None))
    elif decision.step is LadderStep.IN_PLACE:
        state.offences.mark_repeated(state.offences.in_window(now)[-1])
    else:
        worker = f"rank {cause.rank} on {member.name}" if cause.rank is not None else member.name
        strategies = state.recovery_log.strategies_used()
        suffix = f"; recoveries so far: {strategies}" if strategies else ""
        ending.fail(state, f"{decision.reason}{suffix}; the last failure: {worker}: {cause.message}")


def _case(state: CoordinatorState, member: MemberRecord, cause: Cause, keep_reason: str, now: float) -> FaultCase:
    rank, offences = _rank(state, member, cause), state.offences.in_window(now)
    newest = offences[-1] if offences else None
    is_open = newest is not None and any(entry.detected_at == newest.at for entry in state.recovery_log.open)
    return FaultCase(
        member.name,
        member.node,
        rank,
        state.hardware_finding(member.node)[:MAX_FINDING_CHARS],
        keep_reason
        or (
            "" if member.uid != state.pod_uid or config_change.has_electable_standby(state) else _EVICTION_WOULD_BE_LOST
        ),
        sum(offence.is_charged for offence in offences),
        sum(offence.pod_uid == member.uid for offence in offences),
        any(x.caused_eviction and x.rank == rank and x.pod_uid != member.uid for x in offences),
        any(x.caused_eviction and not x.is_charged for x in offences),
        is_open
        and newest is not None
        and bool(state.roster.starting)
        and (newest.pod_uid, newest.rank) == (member.uid, rank)
        and not newest.is_repeated,
    )


def _rank(state: CoordinatorState, member: MemberRecord, cause: Cause) -> int:
    return (member.group_rank or 0) * state.shape.nproc_per_node if cause.rank is None else cause.rank


# Eviction --------------------------------------------------------------------------------------------------------


def evict(state: CoordinatorState, member: MemberRecord, reason: str, now: float) -> None:
    """Remove the member: its launcher exits, and its pod is replaced."""
    state.log(f"{member.name} on {member.node} is replaced: {reason}")
    state.offences.record_eviction(member.uid, reason)
    own = member.uid == state.pod_uid
    if own:
        config_change.send_leader_snapshot(state)
    state.send(member, m.Evicted(state.term, reason))
    state.hang_up(member.link, "its pod is replaced")
    _report_lost(state, member.join, reason, now)
    state.roster.remove(member)
    state.on_members_changed(now)
    state.send_leader_snapshot_later(now)
    if own:
        leaving.transfer_leadership(state, f"its pod is replaced: {reason}")


def reject_evicted(state: CoordinatorState, link: int, join: m.Join, now: float) -> bool:
    """Whether the joining pod was evicted before; if so, send it Evicted again."""
    reason = state.offences.evicted.get(join.pod_uid)
    if reason is None or state.closed is not None:
        return False
    state.out += [Send(link, m.Evicted(state.term, reason)), Hangup(link, "its pod is replaced")]
    _report_lost(state, join, reason, now)
    return True


def restore_history(state: CoordinatorState, history: History, now: float) -> None:
    """Restore a former coordinator's history from a member's Join."""
    if not state.offences.restore(history):
        return
    if state.phase is Phase.REBUILDING:
        state.recovery_log.restore(history.open)
        state.backoff.restore(history.failed_starts)
    for uid in history.evicted.keys() & state.roster.members.keys():
        evict(state, state.roster.members[uid], history.evicted[uid], now)
    state.send_leader_snapshot_later(now)


def _report_lost(state: CoordinatorState, join: m.Join, reason: str, now: float) -> None:
    """Only once: the operator waits from the first report on, and a pod with a stuck launcher connects repeatedly."""
    if join.pod_uid in state.lost:
        return
    state.lost[join.pod_uid] = Lost(join.pod_uid, join.pod_name, join.node, Fault.PROCESS, f"replaced: {reason}", now)
    faults.forget_old_losses(state)
    state.version += 1

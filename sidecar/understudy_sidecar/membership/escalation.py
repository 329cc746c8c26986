"""A worker's fault: counted, and mended on the rung of the ladder that it has come to (ladder.py).

Rules: a fault is counted when the failures of its round are gathered, and the first of them is blamed
(first_failure.py). A member is given up only when it is certain that it was first. All other actives are asked whether
they are there: one that is not was lost before, and is the cause. A report of an earlier failure that arrives while
they are asked makes it uncertain, and nobody is given up. A coordinator without a majority counts nothing,
and ends no job for a spent budget: it may be cut off, or replaced, and the worker have failed of that. One whose own
pod is given up passes its office on first, with all that it knows. A member that was given up and comes back is told
again.
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

#: So much of what is held against a node is told in a reason: it is an annotation, of any length.
MAX_FINDING_CHARS = 200
UNCERTAIN = "it is not known which pod failed first"
_EVICTION_WOULD_BE_LOST = "without it the other pods cannot elect a coordinator that knows of the replacement"


def on_worker_failed(
    state: CoordinatorState, member: MemberRecord, failed: m.WorkerFailed | None, message: str, now: float
) -> None:
    """failed: None if nobody saw which worker it was."""
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
    """The running round is over by it. stays: why its pod cannot be given up."""
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
    """The open entry of the book that began then is about this fault: mend it, with a majority."""
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
    """The member is there: it has answered this heartbeat, or has come back."""
    eviction = state.pending_eviction
    if eviction is not None and (heartbeat is None or heartbeat >= eviction.heartbeat):
        eviction.pending.discard(member.uid)
        state.check_needed = state.check_needed or not eviction.pending


def on_later_failure(state: CoordinatorState, member: MemberRecord, failed: m.WorkerFailed, now: float) -> None:
    """Another worker ended in the round that is over: a consequence, or the first failure."""
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
    """Its worker failed while its sidecar was not connected. None: nobody knows when, so it may have been first."""
    if failed is not None:
        on_later_failure(state, member, failed, now)
    elif state.pending_eviction is not None and member.uid != state.pending_eviction.uid:
        state.pending_eviction.earlier_failure = member.name


def end_faulty_script(state: CoordinatorState, member: MemberRecord, failed: m.WorkerFailed, now: float) -> None:
    """After the failure was counted: no recovery helps a script that fails everywhere in the same way."""
    if failed.token != state.token:
        return
    workers = state.size * state.shape.nproc_per_node
    why = state.script_fault.on_worker_failed(member.uid, failed, workers, state.backoff.failures)
    if why:
        ending.fail(state, why)


def deadline(state: CoordinatorState) -> float | None:
    return None if state.pending_eviction is None else state.pending_eviction.until


def on_time(state: CoordinatorState, now: float) -> None:
    """Give the member up, once everybody else has answered; who has not in time was lost before."""
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
    """What was left uncounted; of what was lost or has left meanwhile `faults.take_blame` knows."""
    pending = state.pending_fault
    if pending is None or now < state.gathers_until or not state.has_majority():
        return
    state.pending_fault = None
    first = pending.failures.first
    member = state.roster.members.get(first.pod_uid)
    if member is not None and member.uid not in state.roster.leaving:  # else it goes by itself, and costs nothing
        keep_reason = pending.keep_reason or ("" if pending.failures.is_certain else UNCERTAIN)
        count_fault(state, member, first.cause, pending.at, now, failed_at=first.at, keep_reason=keep_reason)


def _decide_eviction(state: CoordinatorState, eviction: PendingEviction, now: float) -> None:
    state.pending_eviction = None
    member = state.roster.members.get(eviction.uid)
    if member is None or member.uid in state.roster.leaving:
        return  # it goes by itself, and costs nothing
    if eviction.earlier_failure:
        state.log(
            f"{member.name} is not replaced: a worker of {eviction.earlier_failure} failed earlier, by its node's clock"
        )
        decision = choose_step(_case(state, member, eviction.cause, UNCERTAIN, now), state.offences.limits)
        _restart_or_fail(state, member, eviction.cause, decision, eviction.at, now, is_certain=False)
        return
    state.recovery_log.set_reason(
        eviction.at, eviction.reason
    )  # not before: who comes next in office may decide otherwise
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
    """In place, or the end."""
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


# Giving up -------------------------------------------------------------------------------------------------------


def evict(state: CoordinatorState, member: MemberRecord, reason: str, now: float) -> None:
    """It is no member any more: its launcher exits, and its pod is replaced."""
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
    """Whether the pod that joins was given up before: it is told again."""
    reason = state.offences.evicted.get(join.pod_uid)
    if reason is None or state.closed is not None:
        return False
    state.out += [Send(link, m.Evicted(state.term, reason)), Hangup(link, "its pod is replaced")]
    _report_lost(state, join, reason, now)
    return True


def restore_history(state: CoordinatorState, history: History, now: float) -> None:
    """What a former coordinator knew, as a member brings it."""
    if not state.offences.restore(history):
        return
    if state.phase is Phase.REBUILDING:
        state.recovery_log.restore(history.open)
        state.backoff.restore(history.failed_starts)
    for uid in history.evicted.keys() & state.roster.members.keys():
        evict(state, state.roster.members[uid], history.evicted[uid], now)
    state.send_leader_snapshot_later(now)


def _report_lost(state: CoordinatorState, join: m.Join, reason: str, now: float) -> None:
    """Once: the operator waits from the first report on, and a pod whose launcher is stuck connects again and again."""
    if join.pod_uid in state.lost:
        return
    state.lost[join.pod_uid] = Lost(join.pod_uid, join.pod_name, join.node, Fault.PROCESS, f"replaced: {reason}", now)
    faults.forget_old_losses(state)
    state.version += 1

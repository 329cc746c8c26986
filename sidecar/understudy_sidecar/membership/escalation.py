"""A worker's fault: count it, and recover with the step of the ladder that it has reached (ladder.py).

Rules: a fault is counted when all failures of its round are gathered, and the first of them is the cause
(first_failure.py). The coordinator evicts a member, or ends the job, only if that member certainly failed first, so it
pings all other actives before. An active that does not answer was lost earlier, and is the cause. So is an active that
was asked to end before its answer. If a report of an earlier failure arrives meanwhile, that failure is the cause, and
its own step of the ladder follows. If the order is uncertain, no member is evicted. If the workers restart in place, an
exception (raised.py) or a SIGKILL that is reported until the recovery ends may still prove to be the cause. A
coordinator without a majority counts no fault and ends no job for a spent budget: it may be partitioned or replaced,
and the worker may have failed because of that. The member is removed by eviction.py. A drill (drills.py) evicts no
member.
"""

from dataclasses import replace

from understudy_protocol import membership as m
from understudy_protocol.enums import CloseReason, Fault, RoundToken
from understudy_protocol.observer import Cause
from understudy_protocol.recovery import CountedFault
from understudy_sidecar.membership import config_change, ending, faults
from understudy_sidecar.membership.coordinator_state import CoordinatorState
from understudy_sidecar.membership.eviction import evict
from understudy_sidecar.membership.first_failure import FailureReport, FirstFailure, bounded_time
from understudy_sidecar.membership.ladder import FaultCase, LadderDecision, LadderStep, choose_step
from understudy_sidecar.membership.node_facts import MAX_FINDING_CHARS
from understudy_sidecar.membership.pending import DecidedFault, PendingFault, PendingStep
from understudy_sidecar.membership.roster import MemberRecord
from understudy_sidecar.membership.round_state import RoundPhase

UNCERTAIN = "it is not known which pod failed first"
_EVICTION_WOULD_BE_LOST = "without it the other pods cannot elect a coordinator that knows of the replacement"


def count_fault(
    state: CoordinatorState,
    member: MemberRecord,
    cause: Cause,
    at: float,
    now: float,
    *,
    failures: FirstFailure | None = None,
    keep_reason: str = "",
) -> None:
    """Recover from the fault of the open log entry that began at `at`; without a majority, leave it pending.

    failures: those of the round, with this one as the first; None: its time is unknown.
    """
    failures = failures or FirstFailure(FailureReport(member.uid, cause))
    if now < state.round.gathers_until or not state.has_majority():
        state.pending.wait_for_fault(PendingFault(failures, at, keep_reason))
        return
    why_kept, is_drill = keep_reason or ("" if failures.is_certain else UNCERTAIN), _is_drill(state, at)
    case = replace(_case(state, member, cause, why_kept, now), is_drill=is_drill)
    decision = choose_step(case, state.fault_history.limits)
    if decision.step is LadderStep.IN_PLACE:
        _restart_or_fail(state, member, cause, decision, at, now, is_certain=not why_kept and not is_drill)
        failed = DecidedFault(failures, at, state.round.token, state.round.size, state.round.formed_at)
        state.pending.decide(None if is_drill else failed)
        return
    others = [x for x in state.roster.active_members() if x is not member]
    number = state.send_heartbeat([x.link for x in others if x.link is not None])
    until = now + state.silence.answer_s_of(len(others))
    unanswered = {x.uid for x in others}
    step = PendingStep(member.uid, cause, decision, at, failures, number, until, keep_reason, unanswered)
    state.pending.wait_for_answers(step)
    state.log(f"asks {len(others)} members for an answer before {step.action} ({decision.reason})")


def on_answer(state: CoordinatorState, member: MemberRecord, heartbeat: int | None = None) -> None:
    """The member has answered this heartbeat, or has rejoined."""
    if state.pending.step is not None and state.pending.on_answer(member.uid, heartbeat):
        state.round_check.request()


def on_later_failure(state: CoordinatorState, member: MemberRecord, failed: m.WorkerFailed | None, now: float) -> None:
    """Another worker failed in the round that is over: a consequence, or the first failure.

    failed: None if it is unknown which worker failed, and when.
    """
    if failed is None:
        state.pending.on_failure(member.uid, member.name, None)
        state.pending.keep_pod(member.uid, UNCERTAIN)
        return
    formed_at = formed_at_of(state, failed.token)
    if formed_at is None or member.group_rank is None:
        return
    cause = faults.cause_of(state, member, failed, failed.message)
    report = FailureReport(member.uid, cause, bounded_time(failed.at, formed_at, now))
    if not revise(state, member, failed.token, report, now) and failed.token == state.round.token:
        faults.add_consequence(state, cause)


def formed_at_of(state: CoordinatorState, token: RoundToken) -> float | None:
    """When this round was formed, if it is the newest one or the one whose fault was decided last; else None.

    None also if the newest round has another size: then the ranks may have been others.
    """
    decided = state.pending.decided
    if token == state.round.token:
        return state.round.formed_at
    return decided.formed_at if decided and (token, state.round.size) == (decided.token, decided.size) else None


def revise(state: CoordinatorState, member: MemberRecord, token: RoundToken, report: FailureReport, now: float) -> bool:
    """Make this failure or exception of a worker of that round the cause, if it was earlier. Whether it is the cause.

    Once a fault is decided, only an exception or a SIGKILL may still be the cause: other failures, and the clocks of
    other machines, are no proof.
    """
    if token == state.round.token and _revise_pending(state, member, report, now):
        return True
    decided = state.pending.decided
    if decided is None or decided.token != token:
        return False
    is_killed = report.cause.signal == "SIGKILL" and decided.failures.first.is_consequence_of(report)
    return (report.is_alive or is_killed) and _revise_decided(state, decided, report)


def _revise_pending(state: CoordinatorState, member: MemberRecord, report: FailureReport, now: float) -> bool:
    """The cause of the fault that is not decided yet."""
    pending, step = state.pending.fault, state.pending.step
    if step is not None and step.failures.add(report):
        state.pending.end_step()
        state.round_check.request()
        set_cause(state, step.at, report.cause)
        count_fault(state, member, report.cause, step.at, now, failures=step.failures, keep_reason=step.keep_reason)
        return True
    if step is not None:
        state.pending.on_failure(member.uid, member.name, report.earliest_at)
        return False
    if pending is None or not pending.failures.add(report):
        return False
    set_cause(state, pending.at, report.cause)
    return True


def _revise_decided(state: CoordinatorState, decided: DecidedFault, report: FailureReport) -> bool:
    """The cause of the recovery that has begun, and of its charge."""
    entry = next((x for x in state.recovery_log.open if x.detected_at == decided.at), None)
    if entry is None or entry.fault is not Fault.PROCESS or not decided.failures.add(report):
        return False
    set_cause(state, decided.at, report.cause)
    uid, rank = (report.pod_uid, report.cause.rank) if decided.failures.is_certain else ("", None)
    state.fault_history.blame(decided.at, uid, rank)
    return True


def set_cause(state: CoordinatorState, at: float, cause: Cause) -> None:
    """The worker of this cause failed earlier than the cause of the recovery that began at `at`."""
    state.recovery_log.set_cause(at, cause)
    state.notify_observers()
    state.config_changes.send_snapshot_later(state.now)
    state.log(f"a worker of {cause.pod} failed earlier: {cause.message}")


def deadline(state: CoordinatorState) -> float | None:
    return None if state.pending.step is None else state.pending.step.until


def on_time(state: CoordinatorState, now: float) -> None:
    """Take the pending step once all other actives have answered; one that has not in time was lost earlier."""
    _count_pending_fault(state, now)
    step = state.pending.step
    if step is None:
        return
    if state.round.phase is not RoundPhase.WAITING:
        state.pending.end_step()
    elif not state.has_majority():
        state.pending.postpone_step(now + state.silence.answer_s_of(len(state.roster.holders)))
    elif not step.unanswered:
        _take_step(state, step, now)
    elif now >= step.until:
        reason = "it did not answer after workers of other pods had failed"
        for member in [state.roster.members[uid] for uid in sorted(step.unanswered) if uid in state.roster.members]:
            faults.lose_member(state, member, Fault.NODE, reason, now)
        state.pending.end_wait_for_answers()


def _count_pending_fault(state: CoordinatorState, now: float) -> None:
    """Count the pending fault; `faults.blame_lost_member` has removed it if a loss was the cause."""
    if state.pending.fault is None or now < state.round.gathers_until or not state.has_majority():
        return
    pending = state.pending.take_fault()
    assert pending is not None
    first = pending.failures.first
    member = state.roster.members.get(first.pod_uid)
    if member is not None and member.uid not in state.roster.leaving:  # a leaving member ends anyway, uncharged
        failures, keep_reason = pending.failures, pending.keep_reason
        count_fault(state, member, first.cause, pending.at, now, failures=failures, keep_reason=keep_reason)


def _take_step(state: CoordinatorState, step: PendingStep, now: float) -> None:
    state.pending.end_step()
    member = state.roster.members.get(step.uid)
    if member is None or member.uid in state.roster.leaving:
        return  # it ends anyway, and is not charged
    if step.earlier_failure:
        failed = f"a worker of {step.earlier_failure} failed earlier, by its node's clock"
        state.log(f"{member.name} is not blamed: {failed}")
        decision = choose_step(_case(state, member, step.cause, UNCERTAIN, now), state.fault_history.limits)
        _restart_or_fail(state, member, step.cause, decision, step.at, now, is_certain=False)
        return
    if step.decision.step is LadderStep.FAIL:
        _restart_or_fail(state, member, step.cause, step.decision, step.at, now, is_certain=True)
        return
    reason = step.decision.reason
    state.recovery_log.set_reason(step.at, reason)  # not earlier: the next coordinator may decide otherwise
    if not state.hardware_finding(member.node):
        rank = _rank(state, member, step.cause)
        counted = CountedFault(step.at, member.uid, rank, step.decision.is_charged, caused_eviction=True)
        state.fault_history.add(counted)
    evict(state, member, reason, now)


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
    state.config_changes.send_snapshot_later(now)
    state.recovery_log.set_reason(at, decision.reason)
    if decision.step is LadderStep.IN_PLACE and decision.is_charged:
        counted = CountedFault(at, member.uid, _rank(state, member, cause))
        state.fault_history.add(counted if is_certain else CountedFault(at, "", None))
    elif decision.step is LadderStep.IN_PLACE and not _is_drill(state, at):
        state.fault_history.mark_repeated(state.fault_history.in_window(now)[-1])
    elif decision.step is not LadderStep.IN_PLACE:
        worker = f"rank {cause.rank} on {member.name}" if cause.rank is not None else member.name
        strategies = state.recovery_log.strategies_used()
        suffix = f"; recoveries so far: {strategies}" if strategies else ""
        message = f"{decision.reason}{suffix}; the last failure: {worker}: {cause.message}"
        ending.decide(state, CloseReason.FAILED, message)


def _case(state: CoordinatorState, member: MemberRecord, cause: Cause, keep_reason: str, now: float) -> FaultCase:
    rank, counted_faults = _rank(state, member, cause), state.fault_history.in_window(now)
    newest = counted_faults[-1] if counted_faults else None
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
        sum(fault.is_charged for fault in counted_faults),
        sum(fault.pod_uid == member.uid for fault in counted_faults),
        any(x.caused_eviction and x.rank == rank and x.pod_uid != member.uid for x in counted_faults),
        any(x.caused_eviction and not x.is_charged for x in counted_faults),
        is_open
        and newest is not None
        and bool(state.roster.starting)
        and (newest.pod_uid, newest.rank) == (member.uid, rank)
        and not newest.is_repeated,
    )


def _is_drill(state: CoordinatorState, at: float) -> bool:
    """Whether the fault that was detected at `at`, in the round that is over, is a drill's: it blames no pod."""
    return state.fault_history.is_of_drill(state.round.number, at)


def _rank(state: CoordinatorState, member: MemberRecord, cause: Cause) -> int:
    return (member.group_rank or 0) * state.shape.nproc_per_node if cause.rank is None else cause.rank

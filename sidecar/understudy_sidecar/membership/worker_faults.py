"""A worker's fault ends the running round: the first fault is its cause, unless it is the consequence of another one.

Rules: a worker that has raised an exception before may be the cause, although its process has not ended (raised.py). A
worker may have failed in a collective because another one hangs, so reports of hangs count first. While a
member is leaving (its workers may still save), failures of workers are its consequence. A member whose connection is
silent is lost, and is the cause. The coordinator has already dropped messages of other rounds than the running one.
escalation.py decides about the recovery, once the other failures of the round are gathered.
"""

from understudy_protocol import membership as m
from understudy_protocol.enums import CloseReason, Fault, WorkersState
from understudy_protocol.observer import Cause
from understudy_sidecar.membership import ending, escalation, faults, hangs, leaving, quorum
from understudy_sidecar.membership.coordinator_state import CoordinatorState
from understudy_sidecar.membership.first_failure import FailureReport, FirstFailure, bounded_time
from understudy_sidecar.membership.roster import MemberRecord


def on_worker_failed(state: CoordinatorState, member: MemberRecord, failed: m.WorkerFailed, now: float) -> None:
    _mark_failed(state, member)
    hang = hangs.take_reported(state, now)
    if hang is None:
        _on_failure(state, member, failed, failed.message, now)
    else:
        _on_hang(state, hang, now)


def on_rejoined_failed(
    state: CoordinatorState, member: MemberRecord, failed: m.WorkerFailed | None, now: float
) -> None:
    """A worker failed while its sidecar was disconnected. failed: None if it is unknown which one."""
    _mark_failed(state, member)
    text = "its workers ended while it was disconnected" if failed is None else failed.message
    _on_failure(state, member, failed, text, now)


def on_time(state: CoordinatorState, now: float) -> None:
    hang = hangs.on_time(state, now)
    if hang is not None:
        _on_hang(state, hang, now)


def end_faulty_script(state: CoordinatorState, member: MemberRecord, failed: m.WorkerFailed, now: float) -> None:
    """Runs after the failure is counted: no recovery helps a script that fails everywhere in the same way."""
    if failed.token != state.round.token:
        return
    workers = state.round.size * state.shape.nproc_per_node
    why = state.script_fault.on_worker_failed(member.uid, failed, workers, state.backoff.failures)
    if why:
        ending.decide(state, CloseReason.FAILED, why)


def open_worker_fault(
    state: CoordinatorState,
    fault: Fault,
    member: MemberRecord,
    cause: Cause,
    now: float,
    *,
    failures: FirstFailure | None = None,
    keep_reason: str = "",
) -> None:
    """End the running round with this fault. failures: see `count_fault`. keep_reason: why the member's pod cannot be
    evicted.
    """
    faults.open_fault(state, fault, cause, now)
    if fault is Fault.PROCESS:
        state.backoff.on_failure(now)
        if state.backoff.is_waiting(now):
            state.log(f"the next round waits for {state.backoff.reason}")
            # A member that is lost without an answer may have been lost before the worker failed.
            state.send_heartbeat([x.link for x in state.roster.active_members() if x.link is not None])
    escalation.count_fault(state, member, cause, now, now, failures=failures, keep_reason=keep_reason)


def _mark_failed(state: CoordinatorState, member: MemberRecord) -> None:
    state.notify_observers()
    member.workers = WorkersState.FAILED
    state.roster.on_started(member.uid)


def _on_failure(
    state: CoordinatorState, member: MemberRecord, failed: m.WorkerFailed | None, message: str, now: float
) -> None:
    cause = faults.cause_of(state, member, failed, message)
    if quorum.is_consequence(state, now):
        faults.add_consequence(state, cause)
        return
    if failed is None:
        open_worker_fault(state, Fault.PROCESS, member, cause, now, keep_reason=escalation.UNCERTAIN)
        return
    if state.round.size * state.shape.nproc_per_node > 1:
        state.round.gather(now + faults.GATHER_S)
    at = bounded_time(failed.at, state.round.formed_at, now)
    failures = state.pending.failures_with(state.round.token, FailureReport(member.uid, cause, at))
    first, culprit = failures.first, state.roster.members.get(failures.first.pod_uid, member)
    open_worker_fault(state, Fault.PROCESS, culprit, first.cause, now, failures=failures)
    faults.add_consequence(state, cause)  # unless it is the first failure


def _on_hang(state: CoordinatorState, hang: hangs.Hang, now: float) -> None:
    if quorum.is_consequence(state, now):
        return
    match hang:
        case hangs.MissingStart(member, reason):
            leaving.replace_pods(state, [member], reason, now)
        case hangs.HungWorker(member, cause, keep_reason):
            open_worker_fault(state, Fault.HANG, member, cause, now, keep_reason=keep_reason)

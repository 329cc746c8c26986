"""A worker has raised an exception, and its process has not ended yet: it may be the cause of failures of its peers.

A Python process needs up to a second to end after an exception. Its peers lose their connections during that time, and
may end first. So a launcher reports an exception before the process has ended: as soon as it is in the error file if
the worker is a fork, and in any case before a new round replaces the worker.

Rules: an exception ends no round, because exit handlers may still save something. When a worker of the round ends, the
first of the failures and exceptions is the cause (first_failure.py). If the exception is reported later, it replaces
the cause and its charge, until the recovery ends. If a pod was evicted for the fault, its cause does not change any
more. Neither does the cause of a drill's fault, nor a hang or a lost pod. Each member can only blame itself.
A member sends the first exception of its round to each coordinator that it joins, because the one before may have been
lost. So the report may come before this coordinator has adopted the round.
"""

from understudy_protocol import membership as m
from understudy_protocol.enums import Fault, RoundToken
from understudy_protocol.observer import Cause
from understudy_protocol.recovery import MAX_MESSAGE_CHARS, MAX_TRACEBACK_CHARS
from understudy_sidecar.membership import escalation
from understudy_sidecar.membership.coordinator_state import CoordinatorState
from understudy_sidecar.membership.first_failure import FailureReport, time_of_age
from understudy_sidecar.membership.roster import MemberRecord
from understudy_sidecar.membership.round_state import RoundPhase


def on_raised(state: CoordinatorState, member: MemberRecord, raised: m.WorkerRaised, now: float) -> None:
    decided, is_running = state.pending.decided, state.is_current(member, raised.token)
    if not 0 <= raised.local_rank < state.shape.nproc_per_node:
        return
    if state.round.phase is RoundPhase.REBUILDING and raised.token == member.join.token:
        _on_raised_before(state, member, raised, now)
        return
    if member.group_rank is None:
        return
    if is_running or raised.token == state.round.token:
        formed_at = state.round.formed_at
    elif decided is not None and raised.token == decided.token and state.round.size == decided.size:
        formed_at = decided.formed_at  # of a round of another size, the ranks may have been others
    else:
        return
    cause = _cause(state, member, member.group_rank, raised)
    report = FailureReport(member.uid, cause, time_of_age(raised.age_s, formed_at, now), is_alive=True)
    if is_running:
        state.pending.on_raised(raised.token, report)
    elif raised.token != state.round.token or not escalation.revise_pending(state, member, report, now):
        _revise_decided(state, raised.token, report)


def _on_raised_before(state: CoordinatorState, member: MemberRecord, raised: m.WorkerRaised, now: float) -> None:
    """In the round of the previous coordinator, which this one may adopt."""
    if member.join.group_rank is not None:
        cause = _cause(state, member, member.join.group_rank, raised)
        at = time_of_age(raised.age_s, 0.0, now)  # it is not known when the round was formed
        state.pending.on_raised(raised.token, FailureReport(member.uid, cause, at, is_alive=True))


def _cause(state: CoordinatorState, member: MemberRecord, group_rank: int, raised: m.WorkerRaised) -> Cause:
    rank = group_rank * state.shape.nproc_per_node + raised.local_rank
    message, traceback = raised.message[:MAX_MESSAGE_CHARS], raised.traceback[-MAX_TRACEBACK_CHARS:]
    return Cause(rank, member.name, member.node, None, None, message, traceback)


def _revise_decided(state: CoordinatorState, token: RoundToken, report: FailureReport) -> None:
    decided = state.pending.decided
    if decided is None or decided.token != token:
        return
    entry = next((x for x in state.recovery_log.open if x.detected_at == decided.at), None)
    if entry is None or entry.fault is not Fault.PROCESS or not decided.failures.add(report):
        return
    escalation.set_cause(state, decided.at, report.cause)
    uid, rank = (report.pod_uid, report.cause.rank) if decided.failures.is_certain else ("", None)
    state.fault_history.blame(decided.at, uid, rank)

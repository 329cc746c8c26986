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
from understudy_protocol.observer import Cause
from understudy_protocol.recovery import MAX_MESSAGE_CHARS, MAX_TRACEBACK_CHARS
from understudy_sidecar.membership import escalation
from understudy_sidecar.membership.coordinator_state import CoordinatorState
from understudy_sidecar.membership.first_failure import FailureReport, bounded_time, time_of_age
from understudy_sidecar.membership.roster import MemberRecord
from understudy_sidecar.membership.round_state import RoundPhase


def on_raised(state: CoordinatorState, member: MemberRecord, raised: m.WorkerRaised, now: float) -> None:
    if not 0 <= raised.local_rank < state.shape.nproc_per_node:
        return
    if state.round.phase is RoundPhase.REBUILDING and raised.token == member.join.token:
        _on_raised_before(state, member, raised, now)
        return
    formed_at = escalation.formed_at_of(state, raised.token)
    if formed_at is None or member.group_rank is None:
        return
    cause = _cause(state, member, member.group_rank, raised)
    at, claimed_at = time_of_age(raised.age_s, formed_at, now), bounded_time(raised.at, formed_at, now)
    report = FailureReport(member.uid, cause, at, is_alive=True, claimed_at=claimed_at)
    if state.is_current(member, raised.token):
        state.pending.on_raised(raised.token, report)
    else:
        escalation.revise(state, member, raised.token, report, now)


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

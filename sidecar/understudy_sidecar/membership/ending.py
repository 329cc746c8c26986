"""The close: the first one is final, all members get it, and the coordinator waits for their acknowledgements."""

from understudy_protocol import membership as m
from understudy_protocol.enums import CloseReason
from understudy_sidecar.membership import quorum
from understudy_sidecar.membership.coordinator_state import CoordinatorState
from understudy_sidecar.membership.roster import MemberRecord

#: Long enough for a member that is frozen for a moment; a dead member delays the end no longer than this.
CLOSE_ACK_S = 3.0


def close(state: CoordinatorState, reason: CloseReason, message: str, now: float) -> None:
    ending = state.ending
    if ending.close is not None:
        return
    state.round.close()
    state.notify_observers()
    ending.close, ending.until = m.Close(reason, message), now + CLOSE_ACK_S
    ending.unacknowledged = set(state.roster.connected)
    state.log(f"closed: {reason.value}: {message}")
    state.broadcast(state.roster.links(), ending.close)


def fail(state: CoordinatorState, why: str) -> None:
    """Close the job as failed, once a majority has confirmed that it still follows this coordinator.

    Without this, a coordinator that is partitioned and does not know it yet could fail the job while the others train.
    """
    if state.ending.close is None and not state.ending.failure_reason:
        state.ending.failure_reason = why
        quorum.start_check(state)


def on_majority(state: CoordinatorState, now: float) -> None:
    """A majority follows this coordinator: close the job if it has failed."""
    if state.ending.failure_reason:
        close(state, CloseReason.FAILED, state.ending.failure_reason, now)


def on_joined(state: CoordinatorState, member: MemberRecord) -> None:
    """The member has joined after the close."""
    state.ending.unacknowledged.add(member.uid)
    state.send(member, state.ending.close)


def on_acknowledged(state: CoordinatorState, member: MemberRecord) -> None:
    """The member has the close, or is gone."""
    state.ending.unacknowledged.discard(member.uid)


def is_complete(state: CoordinatorState, now: float) -> bool:
    """Whether all members have acknowledged the close, or the time for it is over."""
    return now >= state.ending.until or not state.ending.unacknowledged

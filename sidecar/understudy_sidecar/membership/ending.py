"""The close: the first one is final, all members get it, and the coordinator waits for their acknowledgements.

Before the coordinator itself closes the job, a majority confirms that it still follows this coordinator.
"""

from understudy_protocol import membership as m
from understudy_protocol.enums import CloseReason
from understudy_sidecar.membership import quorum
from understudy_sidecar.membership.coordinator_state import CoordinatorState
from understudy_sidecar.membership.roster import MemberRecord
from understudy_sidecar.membership.round_state import RoundPhase

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


def decide(state: CoordinatorState, reason: CloseReason, message: str) -> None:
    """Close the job as succeeded or failed, once a majority has confirmed that it still follows this coordinator.

    Without this, a coordinator that is partitioned and does not know it yet could close the job while the others train.
    """
    if state.ending.close is None and not _stands(state, state.ending.decision):
        state.ending.decision = m.Close(reason, message)
        quorum.start_check(state)


def on_majority(state: CoordinatorState, now: float) -> None:
    """A majority follows this coordinator: close the job as decided."""
    decision, state.ending.decision = state.ending.decision, None
    if decision is not None and _stands(state, decision):
        close(state, decision.reason, decision.message, now)


def have_all_succeeded(state: CoordinatorState) -> bool:
    """Whether all workers of all members have exited 0."""
    return state.round.phase is RoundPhase.RUNNING and state.roster.all_finished()


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


def _stands(state: CoordinatorState, decision: m.Close | None) -> bool:
    """False for a success after which the round has broken: workers have to run again."""
    return decision is not None and (decision.reason is not CloseReason.SUCCEEDED or have_all_succeeded(state))

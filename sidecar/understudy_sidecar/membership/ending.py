"""The close: the first one is final, all members get it, and the coordinator waits for their acknowledgements."""

from understudy_protocol import membership as m
from understudy_protocol.enums import CloseReason
from understudy_sidecar.membership.coordinator_state import CheckQuorum, CoordinatorState, Phase
from understudy_sidecar.membership.voter_config import Tally

#: Long enough for a member that is frozen for a moment; a dead member delays the end no longer than this.
CLOSE_ACK_S = 3.0


def close(state: CoordinatorState, reason: CloseReason, message: str, now: float) -> None:
    if state.closed is not None:
        return
    state.phase = Phase.CLOSED
    state.version += 1
    state.closed = m.Close(reason, message)
    state.close_until = now + CLOSE_ACK_S
    state.log(f"closed: {reason.value}: {message}")
    state.close_pending = set(state.roster.connected)
    state.broadcast(state.roster.links(), state.closed)


def fail(state: CoordinatorState, why: str) -> None:
    """Close the job as failed, once a majority has confirmed that it still follows this coordinator.

    Without this, a coordinator that is partitioned and does not know it yet could fail the job while the others train.
    """
    if state.closed is None and not state.failure_reason:
        state.failure_reason = why
        state.check_quorum = CheckQuorum(state.send_heartbeat(state.roster.links()), Tally(state.voter_configs.newest))


def is_complete(state: CoordinatorState, now: float) -> bool:
    """Whether all members have acknowledged the close, or the time for it is over."""
    return now >= state.close_until or not state.close_pending

"""The steps of this pod's workers, as this pod's launcher reports them: whether the next one is late (stall.py)."""

from understudy_protocol.enums import WorkersState
from understudy_sidecar.membership.member_state import MemberState


def is_late(me: MemberState, now: float) -> bool:
    """Whether the training may have stopped: running workers of this pod make no step."""
    at = late_at(me)
    return at is not None and now >= at


def late_at(me: MemberState) -> float | None:
    """When their next step is late; None while it cannot be late, for example because drained workers save and end."""
    workers = me.workers
    is_training = workers.state is WorkersState.RUNNING and workers.drained_until is None
    return workers.steps.late_at() if is_training and workers.group_rank is not None else None

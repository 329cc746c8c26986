"""Whether the coordinator's machine has no power or no network: what a member does before its kernel knows.

Rules: a member looks at the counters of its connection (tcp.py) in two cases: its own step is late, or another member
calls this sidecar because the machine of the same coordinator stopped responding. If the machine acknowledges no
packet, and the training makes no step here, the member calls the standby coordinators at once, and not only when its
kernel ends the connection. A member whose workers make steps never does so: the training may run over another network.
While a member that was called looks, its sidecar keeps the caller, and does not redirect it to this coordinator.
"""

from understudy_protocol.enums import Term, WorkersState
from understudy_sidecar.membership import member_link, member_steps
from understudy_sidecar.membership.events import WatchCoordinator
from understudy_sidecar.membership.member_state import MembershipState, MemberState

#: Seconds between two WatchCoordinator, which each last longer.
LOOK_AGAIN_S = 0.25
#: After a step is late, as long as the coordinator looks at its members: a save may make the next step late by minutes.
LATE_LOOK_S = 3.0
#: How long a sidecar keeps a caller. Its own connection has been silent for as long as the caller's: a packet, and the
#: same packet again after 0.2 s, are enough. The workers of two pods report their steps at times 0.25 s apart.
DOUBT_S = 1.0


def on_called(me: MemberState, silent_term: Term | None, now: float) -> None:
    """Another member has called this sidecar. silent_term: see CalledBy."""
    if _watches(me) and silent_term == me.voter.hard_state.term:
        me.link.doubted_until = now + DOUBT_S


def on_unreachable(me: MemberState, now: float) -> None:
    """The machine acknowledges no packet. In a job that makes no steps, only the kernel decides."""
    if not _watches(me):
        return
    is_idle = me.workers.state not in (WorkersState.STARTING, WorkersState.RUNNING)
    if member_steps.is_late(me, now):
        _disconnect(me, "a step is late")
    elif is_idle and me.link.doubted_until is not None:
        _disconnect(me, "another member has lost it too")


def on_time(me: MemberState, now: float) -> None:
    link = me.link
    if not _watches(me) or (link.doubted_until is not None and now >= link.doubted_until):
        link.doubted_until = None
    if (at := _look_at(me)) is not None and now >= at:
        link.look_at = now + LOOK_AGAIN_S
        me.do(WatchCoordinator())


def deadline(me: MemberState) -> float | None:
    times = (_look_at(me), me.link.doubted_until)
    return min((at for at in times if at is not None), default=None)


def _look_at(me: MemberState) -> float | None:
    if not _watches(me):
        return None
    if me.link.doubted_until is not None:
        return me.link.look_at
    late_at = member_steps.late_at(me)
    if late_at is None or me.link.look_at > late_at + LATE_LOOK_S:
        return None
    return max(late_at, me.link.look_at)


def _watches(me: MemberState) -> bool:
    """Whether it has a coordinator on another pod."""
    return me.state is MembershipState.JOINED and (
        me.coordinator is None or me.coordinator.pod_uid != me.identity.pod_uid
    )


def _disconnect(me: MemberState, why: str) -> None:
    reason = f"the coordinator's machine acknowledges no packet, and {why}"
    member_link.disconnect_and_dial(me, reason, silent=True, machine_is_silent=True)

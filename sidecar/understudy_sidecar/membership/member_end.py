"""The end of this pod: the close of the job, the pod's replacement, and a request to end.

Rules: the first close is final. The launcher exits with a code for the reason. The sidecar of a closed job stays
LINGER_S for members that missed the close, unless the coordinator has reported that all have it. A member that is
replaced calls no coordinator any more; its sidecar finishes when its launcher has ended.
"""

from understudy_protocol import launcher as l
from understudy_protocol import membership as m
from understudy_protocol.enums import CLOSE_EXIT_CODES, EVICTED_EXIT_CODE, CloseReason
from understudy_sidecar.membership import member_link
from understudy_sidecar.membership.events import ClosedByOperator, Finish, LeaveRequested, RecordClose, Unfit
from understudy_sidecar.membership.member_state import MembershipState, MemberState

#: How long the sidecar of a closed job answers members that missed the close.
LINGER_S = 3.0
_SAVES = (CloseReason.SUSPENDED, CloseReason.DELETED)


def on_event(me: MemberState, event: LeaveRequested | Unfit | ClosedByOperator, now: float) -> None:
    match event:
        case LeaveRequested(reason, grace_s, verdict):
            on_leave(me, m.Leaving(reason, grace_s, verdict), now)
        case Unfit(reason):
            _on_unfit(me, reason)
        case ClosedByOperator(close):
            on_close(me, close, now)


def on_close(me: MemberState, close: m.Close, now: float) -> None:
    if me.end.closed is not None:
        me.send(m.CloseAck(), while_joining=True)
        return
    me.end.closed = close
    member_link.on_end(me)
    me.do(RecordClose(close))
    me.send(m.CloseAck(), while_joining=True)
    me.log(f"closed: {close.reason.value}: {close.message}")
    if me.state is MembershipState.NO_LAUNCHER:
        me.end.finish_at = now if me.launcher.has_ended else now + LINGER_S
    if me.state is not MembershipState.NO_LAUNCHER or me.launcher.is_silent or me.launcher.has_unkillable:
        _exit_launcher(me)
    me.close()


def on_shutdown_complete(me: MemberState, now: float) -> None:
    end = me.end
    end.shutdown_is_complete = True
    if end.finish_at is not None and me.launcher.has_ended:
        end.finish_at = now


def _on_unfit(me: MemberState, reason: str) -> None:
    if me.end.closed is None and not me.end.replacement_reason:
        me.send(m.Gone(reason))
        end_pod(me, reason)


def end_pod(me: MemberState, reason: str) -> None:
    """End the pod, so that the operator replaces it: this member takes no part in the job any more."""
    me.end.replacement_reason = reason
    me.become(MembershipState.EVICTED)
    member_link.hang_up(me, f"replaced: {reason}")
    me.log(f"replaced: {reason}")
    _exit_launcher(me)


def on_leave(me: MemberState, leaving: m.Leaving, now: float) -> None:
    if me.end.leaving is None and me.end.closed is None:
        me.end.leaving, me.end.leaving_until = leaving, now + leaving.grace_s
        me.send(leaving)


def on_launcher(me: MemberState) -> None:
    """The launcher has connected after the end: it has to exit."""
    me.end.finish_at = None
    _exit_launcher(me)


def on_launcher_down(me: MemberState, now: float) -> None:
    is_awaited = me.end.closed is not None and not me.end.shutdown_is_complete
    me.end.finish_at = now + LINGER_S if is_awaited else now


def on_time(me: MemberState, now: float) -> None:
    if me.end.finish_at is not None and now >= me.end.finish_at:
        me.end.finish_at = None
        me.do(Finish())


def _exit_launcher(me: MemberState) -> None:
    closed = me.end.closed
    if closed is None:
        me.order(l.ExitLauncher(EVICTED_EXIT_CODE, f"replaced: {me.end.replacement_reason}"))
        return
    grace_s = me.identity.grace_s if closed.reason in _SAVES else 0.0
    text = f"{closed.reason.value}: {closed.message}"
    me.order(l.ExitLauncher(CLOSE_EXIT_CODES[closed.reason], text, grace_s))

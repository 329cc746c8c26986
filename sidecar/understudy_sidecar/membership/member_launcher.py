"""The pod's launcher: whether it is connected and responds, and its messages.

Rules: a member counts only while its launcher is connected and responds (liveness.py), and no killed process is left:
otherwise it leaves the job, because the next round would wait for it, maybe forever. A member also leaves if its
devices are missing (device_watch.py). It rejoins when the cause has ended. If the job wants copies of snapshots,
the member copies the newest snapshots before it reports a drain, and before it leaves. After that the sidecar of an
ended launcher has nothing to do.
"""

from understudy_protocol import launcher as l
from understudy_protocol import membership as m
from understudy_protocol.enums import RoundToken, WorkersState
from understudy_sidecar.membership import member_copies, member_end, member_link, member_workers
from understudy_sidecar.membership.events import FromLauncher, LauncherDown, LauncherUp, RecordLauncher
from understudy_sidecar.membership.member_state import MembershipState, MemberState


def on_event(me: MemberState, event: LauncherUp | FromLauncher | LauncherDown, now: float) -> None:
    if not isinstance(event, LauncherDown):
        me.launcher.watch.on_message(now)
        _on_response(me)
    match event:
        case LauncherUp(hello):
            me.launcher.due = None
            if not me.launcher.is_known:
                me.launcher.is_known = True
                me.do(RecordLauncher(True))
            _on_hello(me, hello, now)
            member_link.keep_link(me)
        case FromLauncher(message):
            _on_message(me, message, now)
        case LauncherDown():
            me.launcher.is_known = False
            me.do(RecordLauncher(False))
            _on_down(me, now)


def on_copies_flushed(me: MemberState, token: RoundToken) -> None:
    if not member_copies.on_flushed(me, token):
        return
    if not me.launcher.has_ended:
        me.send(m.Drained(token))
    elif me.state is not MembershipState.NO_LAUNCHER:
        _end(me)


def ping(me: MemberState, now: float) -> None:
    launcher = me.launcher
    message = launcher.watch.due_ping(now)
    if message is None:
        return
    me.order(message)
    if not launcher.watch.responds(now) and not launcher.is_silent:
        launcher.is_silent = True
        _leave_job(me, f"its launcher has not responded for {launcher.watch.timeout_s:g} s")


def check_devices(me: MemberState, now: float) -> None:
    launcher = me.launcher
    has_ranks = me.workers.group_rank is not None or me.workers.state is not WorkersState.IDLE
    is_waiting = (launcher.lacks_devices or not has_ranks) and me.state is not MembershipState.CLOSED
    check = launcher.devices.due_check(now, is_waiting=is_waiting)
    if check is not None:
        me.order(check)
    if launcher.devices.reason not in ("", launcher.missing_devices):
        me.log(f"not all of its devices answer: {launcher.devices.reason}")
    launcher.missing_devices = launcher.devices.reason
    reason = launcher.devices.missing_reason(now)
    if reason and not launcher.lacks_devices:
        launcher.lacks_devices = True
        if _leave_job(me, reason):
            member_workers.stop(me, reason)
    elif not reason and launcher.lacks_devices:
        launcher.lacks_devices = False
        _rejoin(me, "all of its devices answer again")


def on_time(me: MemberState, now: float) -> None:
    if me.launcher.due is not None and now >= me.launcher.due:
        me.launcher.due = None
        me.set_unable(f"its launcher has not connected for {me.identity.launcher_timeout_s:g} s")
        me.log(f"{me.unable_reason} since the sidecar restarted")


def on_unkillable(me: MemberState, report: l.Unkillable) -> None:
    if me.launcher.has_unkillable or report.seconds < me.identity.launcher_timeout_s:
        return
    me.launcher.has_unkillable = True
    which = "a process" if report.local_rank is None else f"the worker of local rank {report.local_rank}"
    state = f"pid {report.pid}, state {report.state}"
    reason = f"{which} ({state}) is alive {report.seconds:.0f} s after SIGKILL: it is stuck in the kernel"
    _leave_job(me, reason, report.local_rank)


def _on_hello(me: MemberState, hello: l.LauncherHello, now: float) -> None:
    me.launcher.has_ended = False
    me.launcher.devices.on_hello(now, has_devices=hello.has_devices)
    member_workers.on_hello(me, hello)
    if me.end.closed is not None or me.end.replacement_reason:
        member_end.on_launcher(me)
    else:
        _rejoin(me)


def _on_message(me: MemberState, message: object, now: float) -> None:
    match message:
        case l.LauncherHello():
            me.launcher.has_unkillable = False
            _on_hello(me, message, now)
        case l.Readiness():
            me.launcher.devices.on_readiness(message, now)
        case l.Unkillable():
            on_unkillable(me, message)
        case l.WorkerRaised():
            member_workers.on_raised(me, message)
        case l.Terminating(grace_s, verdict):
            member_end.on_leave(me, m.Leaving("the trainer container got SIGTERM", grace_s, verdict), now)
        case _:
            member_workers.on_message(me, message, now)
            if isinstance(message, l.WorkersDrained) and message.token == me.workers.token:
                _on_drained(me, message.token)
    if me.launcher.has_unkillable and isinstance(message, l.WorkersStarted | l.WorkersDrained):  # none is left
        me.launcher.has_unkillable = False
        _rejoin(me, "the process that was alive after SIGKILL has ended")


def _on_drained(me: MemberState, token: RoundToken) -> None:
    if not member_copies.flush(me):
        me.send(m.Drained(token))


def _on_response(me: MemberState) -> None:
    if me.launcher.is_silent:
        me.launcher.is_silent = False
        _rejoin(me, "its launcher responds again")


def _leave_job(me: MemberState, reason: str, local_rank: int | None = None) -> bool:
    """It can take part in no round: its pod must be replaced. Without a coordinator, its next Join reports it.

    False if it took part in none.
    """
    if me.state not in (MembershipState.DISCONNECTED, MembershipState.JOINED):
        return False
    me.set_unable(reason)
    me.log(f"leaves the job: {reason}")
    if me.state is MembershipState.JOINED:
        me.send(m.Gone(reason, local_rank, launcher_is_alive=True))
        member_link.hang_up(me, reason)
        me.become(MembershipState.NO_LAUNCHER)
    return True


def _rejoin(me: MemberState, reason: str = "") -> None:
    """Do nothing if another cause is left. Otherwise a member that has left looks for the coordinator again, and a
    member that had no coordinator can take ranks again.
    """
    launcher = me.launcher
    if launcher.is_silent or launcher.has_unkillable or launcher.lacks_devices:
        return
    if me.state is MembershipState.DISCONNECTED:
        me.set_unable("")
    if me.state is not MembershipState.NO_LAUNCHER:
        return
    if reason:
        me.log(f"rejoins: {reason}")
    me.become(MembershipState.DISCONNECTED)
    me.set_unable("")
    member_link.call_first(me)


def _on_down(me: MemberState, now: float) -> None:
    launcher = me.launcher
    launcher.watch.on_disconnected()
    launcher.devices.on_disconnected()
    launcher.is_silent = launcher.has_unkillable = launcher.lacks_devices = False
    launcher.has_ended = True
    member_workers.on_launcher_down(me)
    if me.end.closed is not None or me.end.replacement_reason:
        member_end.on_launcher_down(me, now)
        return
    if me.end.leaving is None or not member_copies.flush(me):
        _end(me)


def _end(me: MemberState) -> None:
    me.send(m.Gone("its launcher has ended"))
    member_link.hang_up(me, "the launcher has ended")
    me.become(MembershipState.NO_LAUNCHER)

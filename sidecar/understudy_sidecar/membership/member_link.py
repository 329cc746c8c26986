"""Which sidecar the member calls, when it gives up on that sidecar, and when it loses its coordinator.

Rules: calling.py has the order of the calls. A member disconnects from a coordinator that has confirmed no heartbeat
for HEARTBEATS intervals, or that does not respond to a reported fault, and from another sidecar that does not answer in
time. It sends Disconnecting first, even while it joins: the called candidate may have become the coordinator.
"""

from dataclasses import replace

from understudy_protocol import membership as m
from understudy_protocol.enums import WorkersState
from understudy_protocol.snapshots import KeptSteps
from understudy_sidecar.membership import member_steps
from understudy_sidecar.membership.events import Dial, HangupCoordinator, KeepLink
from understudy_sidecar.membership.member_state import MembershipState, MemberState

#: After this many missing heartbeats a member calls another coordinator: the coordinator may hang while its kernel
#: acknowledges.
HEARTBEATS = 3
#: A coordinator answers a reported fault in a moment; if no message comes for this long, it hangs.
FAULT_ANSWER_S = 6.0


def on_link(me: MemberState, host: str, now: float) -> None:
    link = me.link
    link.is_dialing, link.is_connected, link.host = False, True, host
    if me.state is MembershipState.NO_LAUNCHER:
        hang_up(me, "no launcher is connected")
        return
    link.answer_until = now + link.calls.on_answer(host)
    send_join(me, now)


def on_link_down(me: MemberState, *, silent: bool) -> None:
    link = me.link
    link.is_connected = link.has_voted = False
    link.answer_until = link.fault_reported_at = None
    if me.state is MembershipState.JOINED:
        _lose_coordinator(me, silent=silent, machine_is_silent=silent)
        me.become(MembershipState.DISCONNECTED)
    if me.state is MembershipState.DISCONNECTED:
        me.become(MembershipState.DISCONNECTED)
        _dial(me)


def on_welcome(me: MemberState, welcome: m.Welcome, now: float) -> None:
    """The called sidecar is the coordinator, and the member follows it."""
    link = me.link
    me.join(m.StandbyCoordinator(welcome.pod_uid, welcome.ip) if welcome.ip else None)
    link.answer_until = None
    me.lease.begin(now)
    keep_link(me)
    link.heartbeat_s, link.domain = welcome.heartbeat_s, welcome.domain or link.domain
    link.last_coordinator_ip = welcome.ip


def update_join(me: MemberState, now: float) -> None:
    """Send the Join again on the same link if its content has changed before the Welcome came."""
    if me.link.joined_situation != _situation(me, now):
        send_join(me, now)


def on_vote(me: MemberState) -> None:
    me.link.has_voted = True


def on_fault_sent(me: MemberState, now: float) -> None:
    """The coordinator has to answer the fault."""
    if me.state is MembershipState.JOINED and me.link.fault_reported_at is None:
        me.link.fault_reported_at = now


def on_step_sent(me: MemberState) -> None:
    """The coordinator knows that the training goes on."""
    me.link.joined_stopped = False


def on_coordinator_message(me: MemberState) -> None:
    me.link.fault_reported_at = None


def on_end(me: MemberState) -> None:
    """No answer is expected any more."""
    me.link.answer_until = me.link.fault_reported_at = None


def on_leadership_assumed(me: MemberState, *, elected: bool) -> None:
    """A candidate keeps its callers when it is elected: if this member is one of them, it is a member by now."""
    own_ip, link = me.identity.ip, me.link
    link.first_call_ip = own_ip
    link.calls.reset()
    if elected and link.is_connected and link.host == own_ip:
        return
    disconnect_and_dial(me, "its own sidecar became the coordinator", own_ip)


def on_called_by(me: MemberState, ip: str) -> None:
    """Another member has no coordinator either. If this one knows no standby coordinator, it calls that member."""
    is_looking = me.state is MembershipState.DISCONNECTED and not me.link.is_connected
    if is_looking and not me.voter.hard_state.standby_coordinators and me.link.named_ip != ip:
        disconnect_and_dial(me, f"called by {ip}, and no standby coordinator is known", ip)


def disconnect_and_dial(
    me: MemberState, reason: str, named_ip: str = "", *, silent: bool = False, machine_is_silent: bool = False
) -> None:
    """Disconnect from the called sidecar or the coordinator, and call the next host."""
    if me.state not in (MembershipState.DISCONNECTED, MembershipState.JOINED):
        return
    me.send(m.Disconnecting(reason), while_joining=True)
    if me.state is MembershipState.JOINED:
        _lose_coordinator(me, silent=silent, machine_is_silent=machine_is_silent)
    me.become(MembershipState.DISCONNECTED)
    hang_up(me, reason)
    _dial(me, named_ip)


def call_first(me: MemberState) -> None:
    """Begin a new search."""
    me.link.calls.reset()
    _dial(me, me.link.first_call_ip)


def hang_up(me: MemberState, reason: str) -> None:
    link = me.link
    if link.is_connected or link.is_dialing:
        me.do(HangupCoordinator(reason))
    link.is_connected = link.is_dialing = link.has_voted = False
    on_end(me)


def keep_link(me: MemberState) -> None:
    """Only after the Welcome: until then, the launcher's current duplicate, from an earlier sidecar, may keep the
    membership.
    """
    if me.state is MembershipState.JOINED:
        me.do(KeepLink())


def send_join(me: MemberState, now: float) -> None:
    identity, hard_state, link, end = me.identity, me.voter.hard_state, me.link, me.end
    leaving = end.leaving and replace(end.leaving, grace_s=max(0.0, end.leaving_until - now))
    drained_until = me.workers.drained_until
    link.joined_situation, link.joined_term = _situation(me, now), hard_state.term
    link.joined_stopped = _has_stopped(me, now)
    me.answer(
        m.Join(
            identity.pod_uid,
            identity.pod_name,
            identity.node,
            identity.ip,
            identity.index,
            me.workers.token,
            me.workers.group_rank,
            _workers_state(me),
            me.workers.master_port,
            hard_state.term,
            hard_state.config_version,
            link.domain,
            me.workers.group_world_size,
            me.workers.failure,
            leaving,
            me.workers.store_port,
            me.voter.history,
            me.verdict,
            identity.warm,
            me.workers.stepped,
            None if link.disconnected_at is None else now - link.disconnected_at,
            link.disconnected_silently,
            me.unable_reason,
            me.workers.saved,
            _kept(me),
            None if drained_until is None else max(0.0, drained_until - now),
            link.joined_stopped,
        )
    )


def _workers_state(me: MemberState) -> WorkersState:
    """Until the snapshots of drained workers are copied, their drain goes on: the next coordinator has to wait."""
    is_flushing = me.workers.state is WorkersState.IDLE and me.copies.flushing == me.workers.token
    return WorkersState.RUNNING if is_flushing else me.workers.state


def _kept(me: MemberState) -> tuple[KeptSteps, ...] | None:
    """The copies that this pod keeps, with an empty entry for each owner without a copy."""
    if me.copies.plan is None or me.copies.kept is None:
        return None
    found = {owner.group_rank: KeptSteps(owner.group_rank, ()) for owner in me.copies.plan.owners}
    return tuple({**found, **{x.group_rank: x for x in me.copies.kept}}.values())


def deadline(me: MemberState) -> float | None:
    link = me.link
    if me.state is MembershipState.DISCONNECTED:
        return link.answer_until if link.is_connected else None
    if me.state is not MembershipState.JOINED:
        return None
    lost_at = me.lease.renewed_at + HEARTBEATS * link.heartbeat_s
    return lost_at if link.fault_reported_at is None else min(lost_at, link.fault_reported_at + FAULT_ANSWER_S)


def on_time(me: MemberState, now: float) -> None:
    link = me.link
    if me.state is MembershipState.JOINED:
        silent_s = now - me.lease.renewed_at
        if silent_s >= HEARTBEATS * link.heartbeat_s:
            reason = f"the coordinator has confirmed no heartbeat for {silent_s:.0f} s"
            disconnect_and_dial(me, reason, silent=True)
        elif link.fault_reported_at is not None and now >= link.fault_reported_at + FAULT_ANSWER_S:
            disconnect_and_dial(me, f"the coordinator has not responded to a fault for {FAULT_ANSWER_S:g} s")
    elif me.state is MembershipState.DISCONNECTED and link.answer_until is not None and now >= link.answer_until:
        disconnect_and_dial(me, "the called sidecar did not answer in time")


def _lose_coordinator(me: MemberState, *, silent: bool, machine_is_silent: bool) -> None:
    link = me.link
    link.disconnected_at, link.disconnected_silently, link.machine_is_silent = me.now, silent, machine_is_silent
    me.link.calls.reset()


def _dial(me: MemberState, named_ip: str = "") -> None:
    hard_state, link = me.voter.hard_state, me.link
    standbys = (*hard_state.standby_coordinators, *hard_state.previous_standby_coordinators)
    hosts, delay_s = link.calls.next(standbys, me.identity.ip, named_ip, link.last_coordinator_ip)
    link.is_dialing, link.named_ip = True, named_ip
    me.do(Dial(hosts, delay_s))


def _has_stopped(me: MemberState, now: float) -> bool:
    """See Join. While the member is joined, its last coordinator is the one before."""
    return me.link.machine_is_silent and member_steps.is_late(me, now)


def _situation(me: MemberState, now: float) -> tuple[object, ...]:
    workers = me.workers
    return (
        workers.token,
        workers.group_rank,
        _workers_state(me),
        workers.master_port,
        workers.store_port,
        me.end.leaving,
        me.unable_reason,
        workers.saved,
        _kept(me),
        _has_stopped(me, now),
    )

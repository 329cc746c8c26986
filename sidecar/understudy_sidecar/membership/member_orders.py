"""The messages of the called sidecar: the coordinator, a candidate, or another member.

Rules: a member follows no coordinator of an older term than the newest that it knows. A change of its hard state is
stored before any message that relies on it (voter.py). Of two verdicts about its node it keeps the newer one.
"""

from understudy_protocol import launcher as l
from understudy_protocol import membership as m
from understudy_protocol.enums import Term
from understudy_sidecar.membership import member_copies, member_end, member_link, member_workers
from understudy_sidecar.membership.events import RecordHardState, RecordVerdict
from understudy_sidecar.membership.member_state import MembershipState, MemberState


def on_message(me: MemberState, message: object, now: float) -> None:
    if not me.link.is_connected:
        return  # this member has already hung up
    match message:
        case m.Close():
            member_end.on_close(me, message, now)
        case m.ShutdownComplete():
            member_end.on_shutdown_complete(me, now)
        case m.Welcome() if me.state is not MembershipState.CLOSED:
            _on_welcome(me, message, now)
        case m.Evicted() if me.state in (MembershipState.DISCONNECTED, MembershipState.JOINED):
            _on_evicted(me, message)
        case m.RequestVote() if me.state is MembershipState.DISCONNECTED:
            _on_request_vote(me, message)
        case m.Redirect(_, ip) if me.state in (MembershipState.DISCONNECTED, MembershipState.JOINED):
            reason = f"redirected to {ip or 'another coordinator, whose address is unknown'}"
            member_link.disconnect_and_dial(me, reason, ip)
        case _ if me.state is MembershipState.JOINED:
            member_link.on_coordinator_message(me)
            _on_order(me, message, now)
        case _:
            pass


def on_annotated(me: MemberState, verdict: m.NodeVerdict) -> None:
    if me.verdict is None or verdict.at > me.verdict.at:
        _keep_verdict(me, verdict)
        me.log(f"node health verdict from the pod's annotation: {_describe(verdict)}")


def _on_welcome(me: MemberState, welcome: m.Welcome, now: float) -> None:
    known_term = me.voter.hard_state.term
    if not _follow(me, welcome.term):
        return
    if me.voter.hard_state.term != known_term:
        me.do(RecordHardState(me.voter.hard_state))
    member_link.on_welcome(me, welcome, now)
    member_workers.offer_store(me, welcome.term)
    member_copies.on_welcome(me, welcome.token)
    if welcome.verdict is not None:
        _keep_verdict(me, welcome.verdict)
    member_link.update_join(me, now)
    if me.unable_reason:
        member_link.hang_up(me, me.unable_reason)
        me.become(MembershipState.NO_LAUNCHER)
        return
    member_workers.on_joined(me)


def _follow(me: MemberState, term: Term) -> bool:
    """Follow the coordinator of this term; if it is older than the newest known, call the next host."""
    known_term = me.voter.hard_state.term
    if not me.voter.follow(term):
        member_link.disconnect_and_dial(me, f"term {term} is older than {known_term}")
        return False
    return True


def _on_evicted(me: MemberState, evicted: m.Evicted) -> None:
    if _follow(me, evicted.term):
        member_end.end_pod(me, evicted.reason)


def _on_request_vote(me: MemberState, request: m.RequestVote) -> None:
    before = me.voter.hard_state
    if not me.voter.grant_vote(request):
        me.answer(m.VoteDenied(before.term, before.config_version))
        return
    if me.voter.hard_state != before:
        me.do(RecordHardState(me.voter.hard_state))
        me.log(f"votes in term {request.term} for the candidate {request.pod_uid}")
    member_link.on_vote(me)
    me.answer(m.VoteGranted(request.term))


def _on_order(me: MemberState, message: object, now: float) -> None:
    match message:
        case m.Heartbeat(number, token):
            me.lease.on_answer(number, now)
            me.answer(m.HeartbeatAck(number, member_workers.stepped_s(me, token, now)))
        case m.LeaseRenewal(number):
            me.lease.on_confirmation(number)
        case m.Assign() | m.PlanCopies():
            _on_assignment(me, message)
        case m.Standby(token):
            member_workers.on_standby(me, token)
        case m.Drain() | m.WriteStacks() | m.BreakWorker() | m.FetchCopy() | m.Restore() if member_workers.has_ranks(
            me, message.token
        ):
            _on_round_order(me, message, now)
        case m.Preload(modules):
            me.order(l.Preload(modules))
        case m.NodeVerdict() as verdict:
            _keep_verdict(me, verdict)
            me.log(f"node health verdict: {_describe(verdict)}")
        case m.ConfigChange() as change:
            if me.voter.acknowledge(change):
                me.do(RecordHardState(me.voter.hard_state))
                me.answer(m.ConfigChangeAck(change.config_version))
        case m.LeaderSnapshot() as leader_snapshot:
            if me.voter.store_leader_snapshot(leader_snapshot):
                me.do(RecordHardState(me.voter.hard_state))
        case _:
            pass


def _on_assignment(me: MemberState, message: m.Assign | m.PlanCopies) -> None:
    """The plan for copies begins before the workers of its round."""
    if isinstance(message, m.PlanCopies):
        member_copies.on_plan(me, message)
        return
    if message.token > me.workers.token:
        member_copies.on_assign(me, message)
    member_workers.on_assign(me, message)


def _on_round_order(
    me: MemberState, message: m.Drain | m.WriteStacks | m.BreakWorker | m.FetchCopy | m.Restore, now: float
) -> None:
    match message:
        case m.Drain():
            member_workers.on_drain(me, message, now)
        case m.WriteStacks(token):
            me.order(l.WriteStacks(token))
        case m.FetchCopy():
            member_copies.on_fetch(me, message)
        case m.BreakWorker(token, drill):
            me.order(l.BreakWorker(token, drill))
            me.log(f"a drill ({drill.value}) breaks a worker of round {token}")
        case m.Restore():
            member_workers.on_restore(me, message)


def _keep_verdict(me: MemberState, verdict: m.NodeVerdict) -> None:
    """Keep the operator's newest verdict, whichever way it came."""
    if verdict.at and me.verdict is not None and verdict.at < me.verdict.at:
        return
    me.verdict = verdict
    me.do(RecordVerdict(verdict))


def _describe(verdict: m.NodeVerdict) -> str:
    finding = verdict.verdict.value if verdict.fault_class is None else verdict.fault_class.value
    return f"{finding} {verdict.reason}".rstrip()

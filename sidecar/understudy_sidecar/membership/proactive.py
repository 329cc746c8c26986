"""Proactive swap: a member on a node with a health finding gives its ranks to a spare before it fails
(faults.proactiveReplacement).

Rules: only while a round and all of its workers run, and only to a spare on a node without a finding: if there is none,
the member trains on, because its node may still work. All swaps for which there are such spares begin at once: one
round for all.
  - NextCheckpoint, and the node ends for maintenance or preemption: the coordinator drains all actives, this one too,
    and swaps it when all have saved, or when the grace is over.
  - NextCheckpoint, and the hardware is broken: the member saves nothing. The others save before the swap if they have
    all shards (leaving.py); else the swap is at once.
  - Now: at once, and no member saves.
The coordinator swaps its own pod only if a standby coordinator is connected; before a drain it transfers its
leadership, and the next coordinator decides.
"""

from understudy_protocol import membership as m
from understudy_protocol.enums import Fault, FaultClass, Proactive
from understudy_protocol.observer import Cause, NodeFact
from understudy_protocol.recovery import SWAP_REASON
from understudy_sidecar.membership import config_change, eviction, faults, leaving
from understudy_sidecar.membership.coordinator_state import CoordinatorState
from understudy_sidecar.membership.node_facts import MAX_FINDING_CHARS
from understudy_sidecar.membership.roster import MemberRecord
from understudy_sidecar.membership.round_state import Phase


def on_time(state: CoordinatorState, now: float) -> None:
    """Begin the swaps that are due, and end the drains whose time is over."""
    _end_drains(state, now)
    if state.shape.proactive is Proactive.OFF or not _may_begin(state):
        return
    checked = (state.version, state.nodes.count_findings(now))
    if checked == state.swaps.checked:
        return  # do not check thousands of members at each event
    state.swaps.checked = checked
    spares = sum(not state.node_finding(member.node) for member in state.roster.waiting_members())
    risks = _members_at_risk(state)[:spares]
    if risks and risks[0].uid == state.pod_uid:
        risks = risks[:1]  # the next coordinator decides about the others
    for member in risks:
        if state.hardware_finding(member.node):
            state.roster.set_leaving(member, now)  # it saves nothing, even if another member is swapped first
    for member in risks:
        saves = state.shape.proactive is not Proactive.NOW and not state.hardware_finding(member.node)
        if saves and state.round.phase is not Phase.RUNNING:
            return  # the next round first
        _begin(state, member, now)


def on_ended(
    state: CoordinatorState, member: MemberRecord, message: m.Drained | m.WorkerFailed | m.Finished, now: float
) -> bool:
    """Handle the end of a member that was drained for a swap. False if this member was not."""
    if member.uid not in state.swaps.reasons or state.draining is None or message.token != state.draining.token:
        return False
    if isinstance(message, m.Drained):
        _end_drain(state, member, "", now)
    elif isinstance(message, m.Finished):
        return False  # it finished before the drain
    return True


def _may_begin(state: CoordinatorState) -> bool:
    is_undisturbed = state.round.phase is Phase.RUNNING and state.ending.close is None and not state.roster.starting
    return (
        is_undisturbed
        and state.draining is None
        and not state.roster.leaving
        and bool(state.nodes)
        and state.has_majority()
    )


def _members_at_risk(state: CoordinatorState) -> list[MemberRecord]:
    """Actives on nodes with a finding: the coordinator's own pod first, then broken hardware."""
    risks = [
        x
        for x in state.roster.active_members()
        if state.node_finding(x.node) and x.group_rank not in state.roster.finished
    ]
    risks = [x for x in risks if x.link is not None and (x.uid != state.pod_uid or _may_swap_coordinator(state))]
    return sorted(risks, key=lambda x: (x.uid != state.pod_uid, not state.hardware_finding(x.node)))


def _may_swap_coordinator(state: CoordinatorState) -> bool:
    """Whether the coordinator's own pod may be swapped: its successor must be on a node without a finding."""
    standbys = [
        state.roster.members[standby.pod_uid]
        for standby in state.config_changes.standbys
        if standby.pod_uid in state.roster.connected
    ]
    return config_change.has_electable_standby(state) and bool(standbys) and not state.node_finding(standbys[0].node)


def _begin(state: CoordinatorState, member: MemberRecord, now: float) -> None:
    fact = state.nodes.current(member.node, now)
    assert fact is not None, "its node has a finding"
    fault_class = FaultClass.HARDWARE if fact.hardware_finding else fact.fault_class or FaultClass.MAINTENANCE
    finding = (fact.hardware_finding or fact.leaving_reason)[:MAX_FINDING_CHARS]
    reason = f"node {member.node}: {fault_class.value}: {finding}; {SWAP_REASON}"
    if state.shape.proactive is Proactive.NOW:
        _evict(state, member, reason, now)
    elif fact.hardware_finding:
        _evict_while_others_save(state, member, reason, now)
    elif member.uid == state.pod_uid:
        leaving.transfer_leadership(state, reason)
    else:
        _drain(state, member, fact, reason, now)


def _evict_while_others_save(state: CoordinatorState, member: MemberRecord, reason: str, now: float) -> None:
    assert member.group_rank is not None, "it is active"
    if leaving.may_save_without(state, member.group_rank) is leaving.SavePossibility.MAY_SAVE:
        leaving.drain(state, state.shape.grace_s, now)
    _evict(state, member, reason, now)


def _drain(state: CoordinatorState, member: MemberRecord, fact: NodeFact, reason: str, now: float) -> None:
    grace_s = state.shape.grace_s if fact.grace_s is None else min(fact.grace_s, state.shape.grace_s)
    state.log(f"drains {member.name}: {reason}")
    state.swaps.reasons[member.uid] = reason
    state.roster.set_leaving(member, now + grace_s)
    leaving.drain(state, grace_s, now)
    assert state.draining is not None, "it was just begun"
    state.send(member, m.Drain(state.round.token, max(0.0, state.draining.until - now)))
    state.on_members_changed(now)


def _end_drains(state: CoordinatorState, now: float) -> None:
    for uid in [uid for uid in state.swaps.reasons if uid not in state.roster.members]:
        del state.swaps.reasons[uid]  # it was lost meanwhile
    if state.swaps.reasons and (state.draining is None or now >= state.draining.until):
        for uid in list(state.swaps.reasons):
            _end_drain(state, state.roster.members[uid], "; its grace is over", now)


def _end_drain(state: CoordinatorState, member: MemberRecord, more: str, now: float) -> None:
    reason = state.swaps.reasons.pop(member.uid)
    if member.group_rank in state.roster.finished:
        state.roster.keep(member)  # it finished before: no swap is needed
        state.round_check.request()
    else:
        _evict(state, member, reason + more, now)


def _evict(state: CoordinatorState, member: MemberRecord, reason: str, now: float) -> None:
    """Swap the member, as an uncharged recovery: its launcher ends, and a spare takes its ranks."""
    assert member.group_rank is not None, "it is active"
    rank = member.group_rank * state.shape.nproc_per_node
    if state.draining is not None:
        state.draining.on_ended(member.uid)
    faults.open_fault(state, Fault.NODE, Cause(rank, member.name, member.node, None, None, reason), now, SWAP_REASON)
    eviction.evict(state, member, reason, now)

"""Proactive swap: a member gives its ranks to a spare while it still trains, because its node has a health finding
(faults.proactiveReplacement), or because a user drains its pod.

Rules: only while a round and all of its workers run, and only to a usable spare: its node has no finding, and no user
drains it. If there is none, the member trains on. All swaps for which there are usable spares begin at once: one round
for all. But no more begin than leave a majority of the voters: the others follow after the next voter configuration.
  - The hardware is broken: the member saves nothing. With NextCheckpoint, or if a user drains it, the others save
    before the swap if they have all shards (leaving.py); else the swap is at once.
  - A user drains the pod, or NextCheckpoint and the node ends for maintenance or preemption: the coordinator drains all
    actives, this one too, and swaps it when all have saved, or when the grace is over. A user's drain waits for the
    first step of the round, for a minute: otherwise several drains, one after the other, would stop the training. The
    swap waits for a majority: without one, the next coordinator may already lead, and would receive an eviction that it
    has not decided.
  - Now, and no user drains the pod: at once, and no member saves.
The coordinator swaps its own pod only if a standby coordinator is connected; before a drain it transfers its
leadership, and the next coordinator decides.
"""

from collections.abc import Iterable

from understudy_protocol import membership as m
from understudy_protocol.enums import Fault, FaultClass, Proactive
from understudy_protocol.observer import Cause, DrainRequest
from understudy_protocol.recovery import DRAIN_REASON, SWAP_REASON
from understudy_sidecar.membership import config_change, eviction, faults, leaving, round_progress
from understudy_sidecar.membership.coordinator_state import CoordinatorState, Swap
from understudy_sidecar.membership.node_facts import MAX_FINDING_CHARS
from understudy_sidecar.membership.roster import MemberRecord
from understudy_sidecar.membership.round_state import RoundPhase
from understudy_sidecar.membership.voter_config import Tally


def on_requests(state: CoordinatorState, drains: Iterable[DrainRequest]) -> None:
    """The operator reports all pods that users drain now."""
    state.swaps.requests = {drain.pod_uid: drain.reason[:MAX_FINDING_CHARS] or "no reason" for drain in drains}


def on_time(state: CoordinatorState, now: float) -> None:
    """Begin the swaps that are due, and end the drains whose time is over."""
    _end_drains(state, now)
    if not _may_begin(state):
        return
    checked = (state.version, state.nodes.count_findings(now), _may_drain(state))
    if checked == state.swaps.checked:
        return  # do not check thousands of members at each event
    state.swaps.checked = checked
    spares = sum(not state.reason_to_leave(member) for member in state.roster.waiting_members())
    risks = _with_a_majority_of_the_others(state, _members_at_risk(state)[:spares])
    if risks and risks[0].uid == state.pod_uid:
        risks = risks[:1]  # the next coordinator decides about the others
    for member in risks:
        if state.hardware_finding(member.node):
            state.roster.set_leaving(member, now)  # it saves nothing, even if another member is swapped first
    for member in risks:
        if _may_save(state, member) and state.round.phase is not RoundPhase.RUNNING:
            return  # the next round first
        _begin(state, member, now)


def on_ended(
    state: CoordinatorState, member: MemberRecord, message: m.Drained | m.WorkerFailed | m.Finished, now: float
) -> bool:
    """Handle the end of a member that was drained for a swap. False if this member was not."""
    if member.uid not in state.swaps.begun or state.draining is None or message.token != state.draining.token:
        return False
    if isinstance(message, m.Drained) and state.has_majority():
        _end_drain(state, member, "", now)
    elif isinstance(message, m.Finished):
        return False  # it finished before the drain
    return True


def _may_begin(state: CoordinatorState) -> bool:
    has_reasons = bool(state.swaps.requests) or (state.shape.proactive is not Proactive.OFF and bool(state.nodes))
    is_undisturbed = (
        state.round.phase is RoundPhase.RUNNING and state.ending.close is None and not state.roster.starting
    )
    return (
        has_reasons and is_undisturbed and state.draining is None and not state.roster.leaving and state.has_majority()
    )


def _members_at_risk(state: CoordinatorState) -> list[MemberRecord]:
    """Actives that shall be swapped: the coordinator's own pod first, then broken hardware."""
    risks = [
        x for x in state.roster.active_members() if _is_at_risk(state, x) and x.group_rank not in state.roster.finished
    ]
    risks = [x for x in risks if x.link is not None and (x.uid != state.pod_uid or _may_swap_coordinator(state))]
    return sorted(risks, key=lambda x: (x.uid != state.pod_uid, not state.hardware_finding(x.node)))


def _with_a_majority_of_the_others(state: CoordinatorState, risks: list[MemberRecord]) -> list[MemberRecord]:
    """As many as can be swapped until the next voter configuration. One of two voters is never a majority: then the
    operator has the casting vote.
    """
    voters, others = state.voter_configs.newest, set(state.roster.connected)
    swapped = list[MemberRecord]()
    for member in risks:
        others.discard(member.uid)
        if len(voters.voters) > 2 and not Tally(voters, others).has_majority():
            break
        swapped.append(member)
    return swapped


def _may_drain(state: CoordinatorState) -> bool:
    """Whether the running round has made a step, or has run for so long that its script may report none."""
    started_at = state.round.started_at
    return started_at is None or state.now >= started_at + round_progress.STARTED_WELL_S


def _is_at_risk(state: CoordinatorState, member: MemberRecord) -> bool:
    if member.uid in state.swaps.requests and _may_drain(state):
        return True
    return state.shape.proactive is not Proactive.OFF and bool(state.node_finding(member.node))


def _may_save(state: CoordinatorState, member: MemberRecord) -> bool:
    is_planned = member.uid in state.swaps.requests or state.shape.proactive is not Proactive.NOW
    return is_planned and not state.hardware_finding(member.node)


def _may_swap_coordinator(state: CoordinatorState) -> bool:
    """Whether the coordinator's own pod may be swapped: its successor must have no reason to leave."""
    standbys = [
        state.roster.members[standby.pod_uid]
        for standby in state.config_changes.standbys
        if standby.pod_uid in state.roster.connected
    ]
    return config_change.has_electable_standby(state) and bool(standbys) and not state.reason_to_leave(standbys[0])


def _begin(state: CoordinatorState, member: MemberRecord, now: float) -> None:
    swap = _swap(state, member, now)
    if _may_save(state, member):
        if member.uid == state.pod_uid:
            leaving.transfer_leadership(state, swap.message)
        else:
            _drain(state, member, swap, now)
        return
    if member.uid in state.swaps.requests or state.shape.proactive is not Proactive.NOW:
        _let_others_save(state, member, now)
    _evict(state, member, swap, now)


def _swap(state: CoordinatorState, member: MemberRecord, now: float) -> Swap:
    request = state.swaps.requests.get(member.uid)
    if request is not None:
        return Swap(Fault.POD, DRAIN_REASON, f"its pod is drained: {request}")
    fact = state.nodes.current(member.node, now)
    assert fact is not None, "its node has a finding"
    fault_class = FaultClass.HARDWARE if fact.hardware_finding else fact.fault_class or FaultClass.MAINTENANCE
    finding = (fact.hardware_finding or fact.leaving_reason)[:MAX_FINDING_CHARS]
    return Swap(Fault.NODE, SWAP_REASON, f"node {member.node}: {fault_class.value}: {finding}; {SWAP_REASON}")


def _let_others_save(state: CoordinatorState, member: MemberRecord, now: float) -> None:
    assert member.group_rank is not None, "it is active"
    if leaving.may_save_without(state, member.group_rank) is leaving.SavePossibility.MAY_SAVE:
        leaving.drain(state, state.shape.grace_s, now)


def _drain(state: CoordinatorState, member: MemberRecord, swap: Swap, now: float) -> None:
    fact = state.nodes.current(member.node, now)
    grace_s = state.shape.grace_s
    if fact is not None and fact.grace_s is not None:
        grace_s = min(fact.grace_s, grace_s)
    state.log(f"drains {member.name}: {swap.message}")
    state.swaps.begun[member.uid] = swap
    state.roster.set_leaving(member, now + grace_s)
    leaving.drain(state, grace_s, now)
    assert state.draining is not None, "it was just begun"
    state.send(member, m.Drain(state.round.token, max(0.0, state.draining.until - now)))
    state.on_members_changed(now)


def _end_drains(state: CoordinatorState, now: float) -> None:
    for uid in [uid for uid in state.swaps.begun if uid not in state.roster.members]:
        del state.swaps.begun[uid]  # it was lost meanwhile
    if not state.swaps.begun or not state.has_majority():
        return
    if state.draining is None or now >= state.draining.until:
        for uid in list(state.swaps.begun):
            _end_drain(state, state.roster.members[uid], "; its grace is over", now)


def _end_drain(state: CoordinatorState, member: MemberRecord, more: str, now: float) -> None:
    swap = state.swaps.begun.pop(member.uid)
    if member.group_rank in state.roster.finished:
        state.roster.keep(member)  # it finished before: no swap is needed
        state.round_check.request()
    else:
        _evict(state, member, Swap(swap.fault, swap.reason, swap.message + more), now)


def _evict(state: CoordinatorState, member: MemberRecord, swap: Swap, now: float) -> None:
    """Swap the member, as an uncharged recovery: its launcher ends, and a spare takes its ranks."""
    assert member.group_rank is not None, "it is active"
    rank = member.group_rank * state.shape.nproc_per_node
    if state.draining is not None:
        state.draining.on_ended(member.uid)
    cause = Cause(rank, member.name, member.node, None, None, swap.message)
    faults.open_fault(state, swap.fault, cause, now, swap.reason)
    eviction.evict(state, member, swap.message, now)

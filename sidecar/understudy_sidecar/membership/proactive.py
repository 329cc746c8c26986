"""A member whose node has turned bad gives its ranks to a spare before it fails (faults.proactive).

Rules: only while a round runs and all of its workers do, and only to a spare on a node against which nothing is held:
without one it trains on, for it may still work. As many as there are such spares go at once: one round for all.
  - NextCheckpoint, and the node goes for maintenance or preemption: all actives are drained, this one too, and its
    ranks go when everybody has saved, or when the grace is over.
  - NextCheckpoint, and the hardware is broken: it saves nothing. The others do where they hold all shards
    (shards.py), before the swap; else the swap is at once.
  - Now: at once, and nobody saves.
A coordinator's own pod goes only when an heir is there; before a drain it passes its office on, and the heir decides.
"""

from understudy_protocol import membership as m
from understudy_protocol.observer import Cause, NodeFact
from understudy_protocol.recovery import SWAPPED
from understudy_protocol.words import Fault, FaultClass, Proactive
from understudy_sidecar.membership import escalation, faults, leaving, shards, succession
from understudy_sidecar.membership.desk import Desk, State
from understudy_sidecar.membership.roster import Member
from understudy_sidecar.membership.shards import Others

#: So much of what is held against a node is told in a reason.
HELD_TOLD = 200


def on_time(desk: Desk, now: float) -> None:
    """Swap who is to be, and end the drains that have taken their time."""
    _end_drains(desk, now)
    if desk.shape.proactive is Proactive.OFF or not _may_begin(desk):
        return
    looked = (desk.version, sum(bool(desk.held(node)) for node in desk.facts))
    if looked == desk.swaps_looked:
        return  # thousands of members are not gone through at each event
    desk.swaps_looked = looked
    spares = sum(not desk.held(member.node) for member in desk.roster.waiting())
    risks = _at_risk(desk)[:spares]
    if risks and risks[0].uid == desk.pod_uid:
        risks = risks[:1]  # the rest is its heir's to decide
    for member in risks:
        if desk.faulty(member.node):
            desk.roster.leaving[member.uid] = now  # it saves nothing, whoever goes first
    for member in risks:
        saves = desk.shape.proactive is not Proactive.NOW and not desk.faulty(member.node)
        if saves and desk.state is not State.RUNNING:
            return  # the next round first
        _begin(desk, member, now)


def on_ended(desk: Desk, member: Member, message: m.Drained | m.WorkerFailed | m.Finished, now: float) -> bool:
    """Of a member that was drained to be swapped: it has saved. False if it was not."""
    if member.uid not in desk.swaps or desk.draining is None or message.token != desk.draining.token:
        return False
    if isinstance(message, m.Drained):
        _end_drain(desk, member, "", now)
    elif isinstance(message, m.Finished):
        return False  # it was faster than the drain
    return True


def _may_begin(desk: Desk) -> bool:
    calm = desk.state is State.RUNNING and desk.closed is None and not desk.roster.starting
    return calm and desk.draining is None and not desk.roster.leaving and bool(desk.facts) and desk.has_majority()


def _at_risk(desk: Desk) -> list[Member]:
    """Actives on nodes against which something is held: the coordinator's own first, then broken hardware."""
    risks = [x for x in desk.roster.active() if desk.held(x.node) and x.group_rank not in desk.roster.finished]
    risks = [x for x in risks if x.link is not None and x.join.votes and (x.uid != desk.pod_uid or _may_go(desk))]
    return sorted(risks, key=lambda x: (x.uid != desk.pod_uid, not desk.faulty(x.node)))


def _may_go(desk: Desk) -> bool:
    """Whether the coordinator's own pod may: its office goes to an heir that does not have to go next."""
    heirs = [desk.roster.members[heir.pod_uid] for heir in desk.heirs if heir.pod_uid in desk.roster.linked]
    return succession.heir_there(desk) and bool(heirs) and not desk.held(heirs[0].node)


def _begin(desk: Desk, member: Member, now: float) -> None:
    fact = desk.fact(member.node)
    assert fact is not None, "something is held against it"
    what = FaultClass.HARDWARE if fact.faulty else fact.fault_class or FaultClass.MAINTENANCE
    reason = f"node {member.node}: {what.value}: {(fact.faulty or fact.going)[:HELD_TOLD]}; {SWAPPED}"
    if desk.shape.proactive is Proactive.NOW:
        _give_up(desk, member, reason, now)
    elif fact.faulty:
        _leave_others_to_save(desk, member, reason, now)
    elif member.uid == desk.pod_uid:
        leaving.pass_on(desk, reason)
    else:
        _drain(desk, member, fact, reason, now)


def _leave_others_to_save(desk: Desk, member: Member, reason: str, now: float) -> None:
    assert member.group_rank is not None, "it is active"
    if shards.may_save_without(desk, member.group_rank) is Others.MAY_SAVE:
        leaving.drain(desk, desk.shape.grace_s, now)
    _give_up(desk, member, reason, now)


def _drain(desk: Desk, member: Member, fact: NodeFact, reason: str, now: float) -> None:
    grace_s = desk.shape.grace_s if fact.grace_s is None else min(fact.grace_s, desk.shape.grace_s)
    desk.say(f"drains {member.name}: {reason}")
    desk.swaps[member.uid] = reason
    desk.roster.leaving[member.uid] = now + grace_s
    leaving.drain(desk, grace_s, now)
    assert desk.draining is not None, "it was just begun"
    desk.send(member, m.Drain(desk.token, max(0.0, desk.draining.until - now)))
    desk.members_changed(now)


def _end_drains(desk: Desk, now: float) -> None:
    for uid in [uid for uid in desk.swaps if uid not in desk.roster.members]:
        del desk.swaps[uid]  # it was lost meanwhile
    if desk.swaps and (desk.draining is None or now >= desk.draining.until):
        for uid in list(desk.swaps):
            _end_drain(desk, desk.roster.members[uid], "; its grace is over", now)


def _end_drain(desk: Desk, member: Member, more: str, now: float) -> None:
    reason = desk.swaps.pop(member.uid)
    if member.group_rank in desk.roster.finished:
        desk.roster.leaving.pop(member.uid, None)  # it was done before: nothing of it is to be swapped
        desk.look = True
    else:
        _give_up(desk, member, reason + more, now)


def _give_up(desk: Desk, member: Member, reason: str, now: float) -> None:
    """A recovery like any other, that costs nothing: its launcher ends, and a spare takes its ranks."""
    assert member.group_rank is not None, "it is active"
    rank = member.group_rank * desk.shape.nproc_per_node
    if desk.draining is not None:
        desk.draining.pending.discard(member.uid)
    faults.open_fault(desk, Fault.NODE, Cause(rank, member.name, member.node, None, None, reason), now, SWAPPED)
    escalation.give_up(desk, member, reason, now)

"""A member is asked to end (its pod is deleted or drained): a save that needs every rank can still finish.

Rules: on a node with a Faulty verdict nothing is saved: who leaves it has ended its workers, and its rank is given
away. What the others do then is for `shards` to say. Whoever else leaves may save, and all other actives are drained:
their workers get SIGTERM too and may save for as long as the one that leaves may. The next round follows when
all their workers have ended and the leaving ones are gone, or when the grace period, less a margin, is over. A spare
that leaves is only no candidate any more. A coordinator that leaves passes its office on first. Whoever leaves and does
not know of what has followed the failure of a worker left before it, on a slow network: that is what it failed of.
"""

from understudy_protocol import membership as m
from understudy_protocol.words import Fault, Verdict, WorkersState
from understudy_sidecar.membership import faults, shards, succession
from understudy_sidecar.membership.desk import Desk, Draining, State
from understudy_sidecar.membership.events import Resign
from understudy_sidecar.membership.roster import Member
from understudy_sidecar.membership.shards import Others

#: What is left of the grace period when others stop waiting: enough to kill, acknowledge and start.
MARGIN_S = 2.0
MARGIN_SHARE = 0.1
#: So much of what is held against a node is told in a reason: it is anybody's text.
FAULTY_TOLD = 200
_AT_WORK = (WorkersState.STARTING, WorkersState.RUNNING)


def on_leaving(desk: Desk, member: Member, leaving: m.Leaving, now: float) -> None:
    if desk.closed is not None or member.uid in desk.roster.leaving:
        return
    desk.say(f"{member.name} is leaving ({leaving.verdict.value}): {leaving.reason}")
    if member.uid == desk.pod_uid:
        pass_on(desk, leaving.reason)
        return
    if leaving.verdict is Verdict.FAULTY:
        held = desk.faulty(member.node)[:FAULTY_TOLD]
        where = f"a faulty node ({held})" if held else "a faulty node"
        _leaves_faulty_node(desk, member, f"its pod leaves {where}: {leaving.reason}", now)
        return
    desk.roster.leaving[member.uid] = now + leaving.grace_s
    desk.members_changed(now)
    if member.group_rank is None or member.group_rank in desk.roster.finished:
        return
    if _left_before(desk, member, now):
        faults.take_blame(desk, member, Fault.POD, f"its pod was asked to end: {leaving.reason}", faults.LEAVES, now)
    if desk.state is State.RUNNING:
        drain(desk, leaving.grace_s, now)


def _left_before(desk: Desk, member: Member, now: float) -> bool:
    """Its word has come after that of a peer whose worker failed, and before any of the round that followed."""
    blamed = desk.book.blames_worker()
    if blamed is None or blamed.fault is not Fault.PROCESS or blamed.cause.pod == member.name:
        return False
    if desk.offences.gave_up(blamed.detected_at):
        return False  # everybody else was there then
    knows = desk.state is State.RUNNING and member.uid not in desk.roster.unacked
    return not knows and now <= blamed.detected_at + desk.silence.answer_s_of(len(desk.roster.holders))


def _leaves_faulty_node(desk: Desk, member: Member, reason: str, now: float) -> None:
    """Its workers are dead. The others may still be at work, or save already."""
    at_work = desk.state is State.RUNNING or waits(desk, now)
    if at_work and member.group_rank is not None and member.group_rank not in desk.roster.finished:
        match shards.may_save_without(desk, member.group_rank):
            case Others.MAY_SAVE:
                desk.roster.leaving[member.uid] = now
                drain(desk, desk.shape.grace_s, now)
            case Others.MISS_SHARDS:
                desk.draining = None  # a save that has begun cannot be finished
                lacks = f"no healthy pod has the shards of group rank {member.group_rank}"
                reason = f"{reason}; no checkpoint is tried: {lacks}"
            case Others.UNKNOWN:
                pass
    faults.lose(desk, member, Fault.NODE, reason, now)


def on_gone(desk: Desk, member: Member, gone: m.Gone, now: float) -> None:
    """It can take part in no round. If it is the coordinator's own member, the coordinator transfers its office.

    If no heir can take the office and the pod has not ended, the coordinator stays, and reports its own pod as lost:
    only then does the operator replace that pod.
    """
    if member.uid == desk.pod_uid and not (gone.launcher_lives and not succession.heir_there(desk)):
        pass_on(desk, gone.reason)
    else:
        faults.lose(desk, member, Fault.POD, gone.reason, now, local_rank=gone.local_rank or 0)


def pass_on(desk: Desk, reason: str) -> None:
    """Leave office, and name the first heir that is there to everybody; where there is none the operator appoints."""
    heir = next((heir for heir in desk.heirs if heir.pod_uid in desk.roster.linked), None)
    if heir is not None and desk.keeper.settled.exists:
        desk.broadcast(desk.roster.links(), m.Elsewhere(heir.pod_uid, heir.ip))
    named = "no standby coordinator is connected" if heir is None else f"transfers leadership to {heir.pod_uid}"
    desk.out.append(Resign(f"{named}: {reason}"))


def on_ended(desk: Desk, member: Member, message: m.Drained | m.WorkerFailed | m.Finished) -> bool:
    """Workers have ended that were asked to, with whatever code: no fault. False if nobody asked them."""
    draining = desk.draining
    if draining is None or message.token != draining.token or member.uid not in draining.pending:
        return False
    if isinstance(message, m.Drained):  # of a failure's peers some may save still
        member.workers = WorkersState.IDLE
        draining.pending.discard(member.uid)
        desk.look = True
    desk.version += 1
    return not isinstance(message, m.Finished)


def waits(desk: Desk, now: float) -> bool:
    """Whether the next round has to wait for members that still save."""
    return desk.draining is not None and bool(desk.draining.pending) and now < desk.draining.until


def deadline(desk: Desk) -> float | None:
    times = list(desk.roster.leaving.values())
    if desk.draining is not None and desk.now < desk.draining.until:
        times.append(desk.draining.until)
    return min(times, default=None)


def on_time(desk: Desk, now: float) -> None:
    """What is overdue counts as lost; so does who only waits for others that have drained."""
    for uid in [uid for uid, until in desk.roster.leaving.items() if now >= until]:
        faults.lose(desk, desk.roster.members[uid], Fault.POD, "its pod was asked to end, and its grace is over", now)
    if desk.draining is None:
        return
    if now >= desk.draining.until:
        for member in [x for x in desk.roster.active() if x.uid in desk.roster.leaving]:
            faults.lose(desk, member, Fault.POD, "its pod was asked to end, and its grace is almost over", now)
    if desk.state is not State.RUNNING or desk.roster.leaving or waits(desk, now):
        return
    drained = [x for x in desk.roster.active() if x.workers is WorkersState.IDLE]
    if drained:
        text = "it was drained because another pod left, and the workers of all other pods had finished"
        faults.open_fault(desk, Fault.POD, faults.cause_of(desk, drained[0], None, text), now)


def drain(desk: Desk, grace_s: float, now: float) -> None:
    """All actives that do not leave: their workers may save for so long, less a margin."""
    save_s = max(0.0, grace_s - min(MARGIN_S, MARGIN_SHARE * grace_s))
    others = [
        x
        for x in desk.roster.active()
        if x.uid not in desk.roster.leaving and x.workers in _AT_WORK and x.join.votes and x.link is not None
    ]
    if desk.draining is None:
        desk.draining = Draining(desk.token, now + save_s, {x.uid for x in others})
    else:
        desk.draining.until = min(desk.draining.until, now + save_s)
    desk.broadcast([x.link for x in others if x.link is not None], m.Drain(desk.token, save_s))
    desk.say(f"drains {len(others)} members, which have {save_s:.0f} s to save")


def replace_pods(desk: Desk, members: list[Member], reason: str, now: float) -> None:
    """A launcher may be stuck although its sidecar connects again at once: the pods are lost and replaced."""
    for member in members:
        desk.send(member, m.GivenUp(desk.office, reason))
        faults.lose(desk, member, Fault.POD, reason, now)
        desk.offences.give_up(member.uid, reason)
    if any(member.uid == desk.pod_uid for member in members) and succession.heir_there(desk):
        succession.tell_estate(desk)
        pass_on(desk, f"its pod is replaced: {reason}")

"""Members come, come back, and fall out of touch.

Rules: one link a pod; a newer one supersedes. A member that comes back before it counts as lost keeps its rank, and
gets the assignment that it has missed. One that comes from a round that its rank was given away in stands by; one that
was given up is told so, and is no member. A link that ends without a word is a suspicion; one that a kernel closed, or
a launcher that ended, is a loss. While a coordinator that stood still does not know whether it is still followed, a
closed link is no loss: the member may have looked for another coordinator, and return.
"""

from understudy_protocol import membership as m
from understudy_protocol.words import NO_OFFICE, NO_ROUND, CloseReason, Fault, RoundToken, WorkersState
from understudy_sidecar.membership import ending, escalation, faults, leaving
from understudy_sidecar.membership.desk import Desk, State
from understudy_sidecar.membership.roster import Member

#: Seconds for members to connect again to a coordinator that stood still, once a majority has confirmed it.
RETURN_S = 2.0


def on_join(desk: Desk, link: int, join: m.Join, now: float) -> None:
    if join.history is not None:
        escalation.inherit(desk, join.history, now)
    if escalation.is_given_up(desk, link, join, now):
        return
    desk.learn_from(join)
    if join.stepped > desk.stepped:  # whoever made an earlier step does not know how long training paused
        desk.stepped = join.stepped
        for active in desk.roster.active():
            active.measures = active.measures and active.stepped == join.stepped
    known = desk.roster.members.get(join.pod_uid)
    if known is not None and known.link != link:
        desk.hang_up(known.link, "superseded by a newer connection of the same pod")
    if desk.closed is not None:
        _join_closed(desk, known, link, join, now)
    elif known is not None:
        _resume(desk, known, link, join, now)
    else:
        _admit(desk, link, join, now)
    member = desk.roster.by_link(link)
    if member is not None and join.leaving is not None:
        leaving.on_leaving(desk, member, join.leaving, now)
    member = desk.roster.by_link(link)
    if member is not None and join.unable and desk.closed is None:
        leaving.on_gone(desk, member, m.Gone(join.unable, launcher_lives=True), now)
    desk.members_changed(now)


def on_dropped(desk: Desk, link: int, silent: bool, now: float) -> None:
    member = desk.roster.by_link(link)
    if member is None:
        return
    desk.roster.unlink(member)
    desk.version += 1
    if desk.closed is not None:
        desk.close_pending.discard(member.uid)
    elif silent:
        suspect(desk, member, "went silent", now)
    elif desk.doubt is not None:
        desk.left_in_doubt.add(member.uid)
        desk.say(f"{member.name} on {member.node} is not connected any more: it may look for another coordinator")
    elif member.uid not in desk.roster.suspects:
        faults.lose(desk, member, Fault.POD, "its connection ended", now)


def end_doubt(desk: Desk, now: float) -> None:
    """A majority still follows: members that hung up because this process stood still connect again."""
    desk.doubt, desk.look = None, True
    desk.may_return_until = now + RETURN_S
    if desk.fails:
        ending.close(desk, CloseReason.FAILED, desk.fails, now)


def lose_left(desk: Desk, now: float) -> None:
    """Whose connection ended during a doubt, and who did not connect again, is lost."""
    if desk.doubt is not None or now < desk.may_return_until:
        return
    left = [desk.roster.members[uid] for uid in sorted(desk.left_in_doubt) if uid in desk.roster.members]
    desk.left_in_doubt.clear()
    for member in left:
        if member.link is None:
            faults.lose(desk, member, Fault.POD, "its connection ended", now)


def on_apart(desk: Desk, member: Member, reason: str, now: float) -> None:
    """It looks for another coordinator: its workers go on, and so may the round."""
    suspect(desk, member, f"looks for another coordinator ({reason})", now)
    link = member.link
    desk.roster.unlink(member)
    desk.hang_up(link, "it looks for another coordinator")


def suspect(desk: Desk, member: Member, what: str, now: float) -> None:
    desk.roster.suspects[member.uid] = now
    desk.inherit_later(now)  # if this coordinator steps down, the next one reports whether the node was lost
    desk.say(f"{member.name} on {member.node} {what}: it may be lost")


def welcome(desk: Desk, member: Member) -> None:
    heartbeat_s = desk.silence.heartbeat_s_of(len(desk.roster.linked))
    domain = desk.domain(member.node)
    verdict = desk.verdict(member.node) if desk.facts_known else None
    described = m.Welcome(desk.token, desk.office, heartbeat_s, domain, desk.pod_uid, desk.ip, verdict, renews=True)
    desk.send(member, described)


def on_claimed_phase(desk: Desk, member: Member, message: object) -> None:
    """Of the former coordinator's round, before it is adopted: the claim that came with the Join has changed."""
    if desk.state is State.SETTLING:
        member.failure = message if isinstance(message, m.WorkerFailed) else member.failure
        desk.look = True
        phases = {m.Started: WorkersState.RUNNING, m.Finished: WorkersState.FINISHED}
        member.workers = phases.get(type(message), WorkersState.FAILED)


def _join_closed(desk: Desk, known: Member | None, link: int, join: m.Join, now: float) -> None:
    if known is not None:
        desk.roster.relink(known, link)
        member = known
    else:
        member = Member(join, link, now, now, join.workers, join.master_port, _store_port(join))
        desk.roster.add(member)
    desk.close_pending.add(member.uid)
    desk.send(member, desk.closed)


def _resume(desk: Desk, member: Member, link: int, join: m.Join, now: float) -> None:
    """A member came back on a new link before it counted as lost."""
    if member.uid in desk.roster.suspects:
        desk.inherit_later(now)
    desk.roster.relink(member, link)
    member.join, member.stepped, member.last_heard = join, join.stepped, now
    member.master_port, member.store_port = join.master_port, _store_port(join)
    member.connects(desk.heartbeat)
    welcome(desk, member)
    if join.token == desk.token and join.workers in (WorkersState.IDLE, WorkersState.FAILED):
        escalation.came_back_failed(desk, member, join.failure, now)
    escalation.answered(desk, member)
    if any(heir.pod_uid == member.uid for heir in desk.heirs):
        desk.inherit_later(now)  # it may have missed what was told meanwhile
    if member.assign is not None and desk.state is State.RUNNING and join.token < member.assign.token:
        desk.send(member, member.assign)
        return
    member.workers = join.workers
    if member.group_rank is None or desk.state is not State.RUNNING:
        return
    faults.acked(desk, member)
    if join.workers is WorkersState.FINISHED:
        faults.finished(desk, member)
    elif join.workers in (WorkersState.IDLE, WorkersState.FAILED) and not _drains(desk, member):
        text = join.failure.message if join.failure else "its workers ended while it was disconnected"
        escalation.worker_failed(desk, member, join.failure, text, now)


def _drains(desk: Desk, member: Member) -> bool:
    if desk.draining is None:
        return False
    desk.draining.pending.discard(member.uid)
    return True


def _admit(desk: Desk, link: int, join: m.Join, now: float) -> None:
    member = Member(join, link, now, now, join.workers, join.master_port, _store_port(join))
    member.connects(desk.heartbeat)
    desk.roster.add(member)
    desk.lost.pop(join.pod_uid, None)
    welcome(desk, member)
    claims = join.token > NO_ROUND and join.group_rank is not None
    if desk.state is State.SETTLING:
        return
    if claims and desk.state is State.WAITING and desk.first:
        desk.state, desk.first = State.SETTLING, False  # a job that trained before its operator told a round
        return
    if claims or join.workers is not WorkersState.IDLE:
        stand_by(desk, member, join.token)


def _store_port(join: m.Join) -> int | None:
    """Not of one that another coordinator may have named, in a round that nobody here knows of: see RenewStore."""
    return join.store_port if join.store_port is None or join.office == NO_OFFICE else 0


def stand_by(desk: Desk, member: Member, token: RoundToken) -> None:
    desk.send(member, m.Standby(desk.token))
    desk.say(f"{member.name} rejoins from round {token}, but another member has its ranks: it is a spare")

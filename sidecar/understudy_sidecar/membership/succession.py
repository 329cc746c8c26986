"""Who comes after this coordinator, told while it is well: the electorate, its heirs, and what they inherit.

Rules: all linked members that can vote belong to the electorate. When they have changed, the coordinator proposes
another electorate, at most every SUCCESSION_S and not before the last proposal counts; the first one while a round
runs. While a proposal is pending, members that join and heirs that are chosen meanwhile receive the same version again.
Heirs are at most HEIRS: spares first (the least likely to fail with the training), each on another node than those
before it and than the coordinator as long as there are such nodes. Only heirs get the list of voters, and what members
do not bring back: the counts, and the ladder's history.
"""

from understudy_protocol import membership as m
from understudy_protocol.recovery import History
from understudy_sidecar.membership.desk import SUCCESSION_S, Desk, State
from understudy_sidecar.membership.electorate import Electorate, Tally
from understudy_sidecar.membership.roster import Member

HEIRS = 5
#: Of the recoveries that last: a member brings them in its Join, which has to stay small.
OPEN_TOLD = 5
#: While more members than this have not acknowledged their assignment, nothing else is asked of them.
MANY = 100


def tell_succession(desk: Desk, now: float) -> None:
    """Propose what has changed, if that is due. Nothing is proposed before a round was formed."""
    if desk.succession_due is None or now < desk.succession_due:
        return
    desk.succession_due = None
    if desk.state is State.SETTLING or desk.closed is not None:
        return
    if len(desk.roster.unacked) > MANY:
        desk.succession_due = now + SUCCESSION_S
        return  # a round's assignments come first
    if desk.keeper.pending is not None:
        _send_pending(desk, desk.keeper.pending)
        return
    if not desk.keeper.settled.exists and desk.state is not State.RUNNING:
        return  # the first electorate has all actives of a round: who is cut off cannot make one of itself
    voters = [x.uid for x in desk.roster.members.values() if x.join.votes]
    if proposed := desk.keeper.next_voters(voters):
        _propose(desk, proposed)
    elif desk.estate_stale:
        tell_estate(desk)


def acknowledged(desk: Desk, member: Member, ack: m.SuccessionAck, now: float) -> None:
    if desk.keeper.acknowledged(member.uid, ack.electorate):
        desk.version += 1
        desk.roster.set_electorate(desk.keeper.settled)
        desk.say(f"voter configuration {ack.electorate} is in effect: {len(desk.keeper.settled.voters)} voters")
        tell_estate(desk)
        desk.members_changed(now)  # somebody may have come or gone meanwhile


def choose_heirs(desk: Desk) -> tuple[m.Heir, ...]:
    """In the order in which they are to be called."""
    able = [
        x
        for x in desk.roster.members.values()
        if x.uid in desk.roster.linked
        and x.join.votes
        and x.uid != desk.pod_uid
        and x.uid not in desk.roster.leaving
        and not desk.faulty(x.node)
    ]
    able.sort(key=lambda x: (x.group_rank is not None, x.joined_at if x.group_rank is None else x.group_rank, x.uid))
    own = desk.roster.members.get(desk.pod_uid)
    nodes = {own.node} if own is not None else set()
    apart: list[Member] = []
    for member in able:
        if member.node not in nodes and len(apart) < HEIRS:
            nodes.add(member.node)
            apart.append(member)
    chosen = {x.uid for x in apart}
    rest = [x for x in able[: 2 * HEIRS] if x.uid not in chosen]
    return tuple(m.Heir(x.uid, x.join.ip) for x in (*apart, *rest)[:HEIRS])


def heir_there(desk: Desk) -> bool:
    """Whether somebody comes into office after this coordinator, and knows what it knows.

    The others elect. Of two voters, one is no majority: the operator appoints it after 8 s.
    """
    named = desk.keeper.settled.exists and any(heir.pod_uid in desk.roster.linked for heir in desk.heirs)
    others = desk.roster.linked - {desk.pod_uid}
    return named and (len(desk.keeper.newest.voters) == 2 or Tally(desk.keeper.newest, others).carries())


def report_round(desk: Desk, now: float) -> None:
    """Send the pods of a new round to the standby coordinators: this coordinator may be lost at any moment.

    In a large job the assignments come first, because the message has an entry for each rank.
    """
    if len(desk.roster.unacked) > MANY:
        desk.inherit_later(now)
    else:
        tell_estate(desk)


def tell_estate(desk: Desk) -> None:
    desk.estate_stale = False
    electorate = desk.keeper.newest
    if not electorate.exists:
        return
    desk.history_number += 1
    desk.offences.told_in.add(desk.office)
    offences = desk.offences.heirloom(desk.now)
    own = desk.roster.members.get(desk.pod_uid)
    estate = m.Estate(
        electorate.version,
        tuple(sorted(electorate.voters)),
        tuple(sorted(electorate.former)),
        desk.pod_uid,
        tuple(offence.at for offence in offences if offence.charged),
        dict(desk.book.counts),
        History(
            desk.office,
            desk.history_number,
            offences,
            dict(desk.offences.given_up),
            tuple(desk.book.open[-OPEN_TOLD:]),
            desk.backoff.failures,
        ),
        desk.token,
        tuple(desk.roster.seats[rank] for rank in sorted(desk.roster.seats)),
        desk.stepped,
        tuple(sorted(desk.roster.suspects)),
        "" if own is None else own.name,
        "" if own is None else own.node,
    )
    uids = [heir.pod_uid for heir in desk.heirs] + [desk.pod_uid]  # itself: its sidecar may crash alone
    members = (desk.roster.members.get(uid) for uid in uids)
    desk.broadcast([x.link for x in members if x is not None and x.link is not None], estate)


def _propose(desk: Desk, voters: frozenset[str]) -> None:
    electorate = desk.keeper.propose(voters)
    desk.roster.set_electorate(electorate)
    _tell_heirs(desk)
    desk.broadcast(desk.roster.links(), m.Succession(electorate.version, desk.heirs))


def _send_pending(desk: Desk, electorate: Electorate) -> None:
    """The pending proposal once more: to all if the heirs have changed, else to those who have not acknowledged it."""
    before = desk.heirs
    _tell_heirs(desk)
    members = desk.roster.members.values()
    to = [x for x in members if before != desk.heirs or not desk.keeper.has_acknowledged(x.uid)]
    links = [x.link for x in to if x.link is not None]
    desk.broadcast(links, m.Succession(electorate.version, desk.heirs))


def _tell_heirs(desk: Desk) -> None:
    """Before the succession that names them: a named heir can serve."""
    # Without any that is connected, the former ones: a coordinator that steps down calls them, too.
    desk.heirs = choose_heirs(desk) or desk.heirs
    desk.version += 1
    tell_estate(desk)

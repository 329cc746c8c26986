"""Forming a round: who must be there, who takes the vacant ranks, and one push that tells everybody.

Rules: a round has all declared ranks. An elastic job that finds no spare within its spare timeout goes on with what is
there (at least its minimum), and has all ranks again at the next round for which there are members. No round is formed
while a holder of a rank is out of touch or leaving, nor by a coordinator that has no majority of its electorate, nor
while rounds fail at their start one after the other (backoff.py), nor before a member that is to be given up has gone
(escalation.py).
"""

import math
from dataclasses import dataclass

from understudy_protocol import membership as m
from understudy_protocol.words import NO_ROUND, RoundToken, Strategy, WorkersState
from understudy_sidecar.membership import hangs, leaving, succession
from understudy_sidecar.membership.desk import Desk, State
from understudy_sidecar.membership.placement import Candidate, Placement, place
from understudy_sidecar.membership.roster import Member

#: How long the first round waits for the pods that were made for its ranks before spares may take them.
FIRST_ROUND_PATIENCE_S = 30.0
NAMED = 5
#: A round whose workers have not all been started after so long waits for something: status says for which pods.
START_S = 5.0
#: A pod whose workers have not been started after so long is lost. More than a launcher takes to load its zygote.
START_LIMIT_S = 240.0


@dataclass(frozen=True)
class Missing:
    """Why no round can be formed now."""

    ranks: tuple[int, ...]
    absent: tuple[str, ...]  # names of actives that are out of touch or leaving
    majority: bool


def try_form(desk: Desk, now: float) -> bool:
    """WAITING: form the next round if every rank can be filled."""
    if not _enough_are_there(desk) or leaving.waits(desk, now) or desk.backoff.waits(now):
        return False
    if desk.dismissal is not None or now < desk.gathers_until:
        return False
    missing, placement = _look(desk, now)
    if missing.absent or not missing.majority:
        return False
    if missing.ranks and not _may_shrink(desk, len(missing.ranks), now):
        return False
    _form(desk, placement, now)
    return True


def waits_for(desk: Desk) -> str:
    """What the next round waits for, as a user reads it; empty while one runs."""
    if desk.state is State.SETTLING:
        return "the members of the previous coordinator's round"
    if desk.state is State.RUNNING:
        return _waits_for_start(desk)
    if desk.state is not State.WAITING:
        return ""
    missing, _ = _look(desk, desk.now)
    parts = []
    if missing.ranks:
        few = ", ".join(map(str, missing.ranks[:NAMED])) + (", …" if len(missing.ranks) > NAMED else "")
        parts.append(f"{len(missing.ranks)} of {desk.shape.actives} pods (group ranks {few})")
    if missing.absent:
        parts.append("the end or return of " + ", ".join(missing.absent[:NAMED]))
    if leaving.waits(desk, desk.now):
        parts.append("members that are saving")
    if not missing.majority:
        parts.append("a majority of the voters")
    if desk.backoff.waits(desk.now):
        parts.append(desk.backoff.why)
    if desk.dismissal is not None:
        parts.append(
            f"answers of {len(desk.dismissal.pending)} members before pod {desk.dismissal.cause.pod} is replaced"
        )
    return " and ".join(parts)


def _waits_for_start(desk: Desk) -> str:
    if not desk.roster.starting or desk.start_due is not None:
        return ""
    late = [x.name for x in desk.roster.active() if x.uid in desk.roster.starting]
    few = ", ".join(late[:NAMED]) + (", …" if len(late) > NAMED else "")
    return f"the start of the workers of {few}"


def lose_late_starters(desk: Desk, now: float) -> None:
    """Unless no pod of several has started its workers: then another pod would not start them either."""
    late = [x for x in desk.roster.active() if x.uid in desk.roster.starting]
    alone = len(desk.roster.holders) == 1
    if now < start_expires(desk) or (len(late) == len(desk.roster.holders) and not alone) or not desk.has_majority():
        return
    leaving.replace_pods(desk, late, f"its workers have not started within {START_LIMIT_S:g} s", now)


def start_expires(desk: Desk) -> float:
    """When members whose workers have not started are lost. With a startTimeout, hangs.py decides about them."""
    waits = desk.state is State.RUNNING and desk.roster.starting and not desk.shape.start_timeout_s
    return desk.formed_at + START_LIMIT_S if waits else math.inf


def shrinks_at(desk: Desk) -> float | None:
    """When an elastic job gives up waiting for spares."""
    if desk.state is not State.WAITING or not desk.shape.min_actives:
        return None
    since = desk.since + FIRST_ROUND_PATIENCE_S if desk.first else desk.vacant_since
    return None if since is None else since + desk.shape.spare_timeout_s


def _enough_are_there(desk: Desk) -> bool:
    """A first look that costs nothing: members come by the thousand."""
    return len(desk.roster.linked) >= (desk.shape.min_actives or desk.shape.actives)


def _look(desk: Desk, now: float) -> tuple[Missing, Placement]:
    roster = desk.roster
    if len(roster.holders) < desk.shape.actives:
        roster.resize(desk.shape.actives)  # a shrunken job grows back
    allowed = not desk.first or now >= desk.since + FIRST_ROUND_PATIENCE_S
    waiting = [_candidate(desk, member) for member in roster.waiting()]
    placement = place(roster.vacant(), waiting, spares_allowed=allowed, domains=roster.domains)
    absent = tuple(x.name for x in roster.active() if x.link is None or x.uid in roster.leaving)
    return Missing(placement.missing, absent, desk.has_majority()), placement


def _candidate(desk: Desk, member: Member) -> Candidate:
    fit, stays = not desk.faulty(member.node), not desk.held(member.node)
    lost = desk.lately_lost(member.uid)
    return Candidate(member.uid, member.join.index, _domain(desk, member), fit, stays, lost)


def _domain(desk: Desk, member: Member) -> str:
    return desk.domain(member.node) or member.join.domain


def _may_shrink(desk: Desk, missing: int, now: float) -> bool:
    size = desk.shape.actives - missing
    if not desk.shape.min_actives or size < desk.shape.min_actives:
        return False
    due = shrinks_at(desk)
    return size == desk.size or (due is not None and now >= due)


def _form(desk: Desk, placement: Placement, now: float) -> None:
    roster = desk.roster
    strategy, stayed = _strategy(desk, placement.taken), {member.name for member in roster.active()}
    reason = _why(desk, strategy, placement)
    for rank, uid in placement.taken.items():
        member = roster.members[uid]
        roster.seat(member, rank, _domain(desk, member))
    if placement.missing:
        roster.compact(desk.shape.actives - len(placement.missing))
    size = desk.size = len(roster.holders)
    desk.state, desk.first, desk.vacant_since, desk.started_at = State.RUNNING, False, None, None
    desk.newcomers = frozenset()
    desk.formed_at, desk.start_due = now, now + START_S
    desk.token = RoundToken(desk.office.epoch, desk.office.term, desk.round_number + 1)
    hangs.expect_step(desk, now)
    desk.book.formed(desk.token.round, strategy, reason, stayed)
    desk.backoff.formed(now)
    roster.finished.clear()
    desk.steps.new_round()
    desk.silence.new_round(size, now)
    desk.draining = desk.hanging = None
    _assign(desk)
    succession.report_round(desk, now)
    desk.members_changed(now)
    why = f" ({strategy.value})" if desk.book.open else ""
    desk.say(f"round {desk.token}{why}: {size} members, world size {size * desk.shape.nproc_per_node}")


def _strategy(desk: Desk, taken: dict[int, str]) -> Strategy:
    """Not told for a job that shrinks: what it lost is not replaced, and everybody else goes on in place."""
    if not taken:
        return Strategy.IN_PLACE
    return Strategy.SPARE_SWAP if all(member.join.warm for member in _late(desk, taken)) else Strategy.POD_RECREATE


def _late(desk: Desk, taken: dict[int, str]) -> list[Member]:
    """The members that were not there when their ranks became vacant."""
    joined, since = (desk.roster.members[uid] for uid in taken.values()), desk.vacant_since
    return [x for x in joined if x.uid in desk.newcomers or (since is not None and x.joined_at > since)]


def _why(desk: Desk, strategy: Strategy, placement: Placement) -> str:
    """What adds to the reason of a recovery when its round is formed."""
    if strategy is Strategy.POD_RECREATE:
        return "no spare was available"
    if _late(desk, placement.taken):
        return "a warm spare was claimed from the pool"
    if placement.missing and desk.book.open:
        return f"no pod was available for its ranks within {desk.shape.spare_timeout_s:g} s"
    return ""


def _assign(desk: Desk) -> None:
    nproc = desk.shape.nproc_per_node
    active = desk.roster.active()
    # If nobody comes from the newest round, it may have made steps that nobody knows of.
    newest = desk.stepped.round >= desk.at_least
    newest = newest or any(x.join.token.round >= desk.at_least for x in desk.roster.members.values())
    master, world = active[0], len(active) * nproc
    # Who does not know of such a store would serve its own, under other keys.
    store = master.store_port if all(x.store_port is not None for x in active) else None
    port, agent_store = (store, True) if store else (master.master_port, False)
    master.store_port = 0 if agent_store else master.store_port  # it is offered to one round
    reason = desk.book.open[-1].cause.message if desk.book.open else "first round"
    for rank, member in enumerate(active):
        member.workers = WorkersState.STARTING
        member.measures = newest and member.stepped == desk.stepped != NO_ROUND
        member.assign = m.Assign(
            desk.token, rank, len(active), rank * nproc, world, master.join.ip, port, reason, agent_store
        )
        desk.send(member, member.assign)
    desk.roster.unacked = {x.uid for x in active}
    desk.roster.starting = {x.uid for x in active}

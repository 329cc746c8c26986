"""New in office over a job that already trained: what the members' claims make of the former coordinator's round.

Rules: if all its ranks are claimed and their workers train, the round goes on as it is, and nobody restarts. If all are
claimed and some have failed, the next round is formed of them. Who does not come is waited for SETTLE_S; but once
everybody who can be there has come (the electorate without the former coordinator's own pod), only RETURN_S, in which
a sidecar that has crashed alone comes back, and not at all where the training has broken anyway; nor is anybody waited
for of whom the operator knows that the pod has ended, or that was given up. What the former coordinator had told and
not mended is not told, nor charged, again. Who failed first while nobody was in office nobody knows.
"""

from understudy_protocol.membership import Seat
from understudy_protocol.observer import Cause, Lost
from understudy_protocol.words import Fault, WorkersState
from understudy_sidecar.membership import escalation, faults, hangs, joining
from understudy_sidecar.membership.calling import LONG_S
from understudy_sidecar.membership.desk import Desk, State
from understudy_sidecar.membership.former_round import FormerRound, former_round
from understudy_sidecar.membership.recoveries import OF_A_WORKER

#: Whoever waits in another hall, in vain, has come by then.
SETTLE_S = LONG_S + 2.0
RETURN_S = 5.0
NOT_COME = "it did not join the new coordinator"
DISCONNECTED_AGAIN = "it lost its connection to the new coordinator"
_ENDED = (WorkersState.IDLE, WorkersState.FAILED)


def settle(desk: Desk, now: float) -> None:
    """SETTLING: adopt the former round, or know what is missing of it."""
    former = former_round(desk.roster.members.values(), desk.shape.actives)
    if not former.whole and now < _patience(desk, former):
        return
    _take_over(desk, former)
    desk.version += 1
    if former.trains:
        _adopt(desk, now)
        return
    desk.state, desk.first, desk.vacant_since = State.WAITING, False, now
    desk.newcomers = frozenset(x.uid for x in desk.roster.members.values() if x.join.disconnected_s is None)
    if not former.whole:
        _replace_missing(desk, former, now)
        return
    if _goes_on(desk, now):
        return
    stopped = next((x for x in former.seats.values() if x.workers is WorkersState.IDLE), None)
    if stopped is not None:  # by its fence, or drained: no worker's fault, though its peers' workers failed then
        text = "its workers were stopped while the job had no coordinator"
        faults.open_fault(
            desk, Fault.POD, faults.cause_of(desk, stopped, None, text), now, at=_disconnected_at(desk, now)
        )
        return
    leaving = next((x for x in former.seats.values() if x.uid in desk.roster.leaving), None)
    if leaving is not None:  # that its peers' workers failed is a consequence
        text = "its pod was asked to end while the job had no coordinator"
        faults.open_fault(
            desk, Fault.POD, faults.cause_of(desk, leaving, None, text), now, at=_disconnected_at(desk, now)
        )
        return
    member = next(x for x in former.seats.values() if x.workers is WorkersState.FAILED)
    failure = member.failure or member.join.failure
    text = failure.message if failure else "its workers ended while the job had no coordinator"
    cause = faults.cause_of(desk, member, failure, text)
    escalation.worker_fault(desk, Fault.PROCESS, member, cause, now, stays=escalation.UNCERTAIN)


def _replace_missing(desk: Desk, former: FormerRound, now: float) -> None:
    """One entry for each pod that held a rank and has not come, unless its coordinator had reported its loss."""
    seats, holder = _known_seats(desk, former)
    told = () if desk.former_estate is None else desk.former_estate.seats
    names = {seat.pod_uid: (seat.pod_name, seat.node) for seat in (*told, *seats)}
    if desk.former_holder and desk.former_estate is not None and desk.former_estate.holder_name:
        names.setdefault(desk.former_holder, (desk.former_estate.holder_name, desk.former_estate.holder_node))
    silent = _silent(desk, holder)
    silent_nodes = {seat.node for seat in seats if seat.pod_uid in silent}
    expected = desk.keeper.settled.voters | {seat.pod_uid for seat in seats if seat.group_rank not in former.seats}
    for uid in sorted(expected - desk.roster.members.keys()):
        name, node = names.get(uid, (uid, ""))
        fault = Fault.NODE if uid in silent or node in silent_nodes else Fault.POD
        desk.lost[uid] = Lost(uid, name, node, fault, NOT_COME, now)
    known = {entry.cause.pod for entry in desk.book.open}
    absent = [seat for seat in seats if seat.pod_uid not in desk.roster.members and seat.pod_name not in known]
    missing = [seat for seat in absent if seat.group_rank not in former.seats]
    # If a pod is missing, a worker may have failed because of that: it is not charged.
    goes_on, at = _goes_on(desk, now, charges=not missing), _disconnected_at(desk, now)
    why, had_ranks = NOT_COME, ""
    if not missing and not goes_on and (missing := _disconnected_again(desk, former, seats)):
        why = DISCONNECTED_AGAIN
    elif not missing and not goes_on and (missing := _earlier_seats(desk, former)):
        assert desk.former_estate is not None
        had_ranks = f"; it had these ranks in round {desk.former_estate.token.round}, and the newest round is unknown"
    for seat in missing:
        coordinated = "it was the coordinator, and " if seat.pod_uid in (holder, desk.former_holder) else ""
        rank = seat.group_rank * desk.shape.nproc_per_node
        cause = Cause(rank, seat.pod_name, seat.node, None, None, f"{coordinated}{why}{had_ranks}")
        fault = Fault.NODE if seat.node in silent_nodes else Fault.POD
        blamed = desk.book.blames_worker()
        if blamed is not None and blamed.strategy is None and not desk.offences.knows(blamed.detected_at):
            desk.book.revise(fault, cause, faults.LOST)  # that worker only failed because this pod was gone
            desk.inherit_later(now)
        else:
            faults.open_fault(desk, fault, cause, now, faults.LOST, at=at)
    if missing or goes_on:
        return
    name, node = ("", "") if desk.former_holder in desk.roster.members else names.get(desk.former_holder, ("", ""))
    text = f"it was the coordinator, and {NOT_COME}; " if name else "the previous coordinator was lost; "
    cause = Cause(None, name, node, None, None, f"{text}which other pods of its round were lost is unknown")
    faults.open_fault(desk, Fault.NODE if desk.former_holder in silent else Fault.POD, cause, now, at=at)


def _known_seats(desk: Desk, former: FormerRound) -> tuple[tuple[Seat, ...], str]:
    """The pods of the former round, as far as they are known, and the uid of the one that coordinated.

    If no pod claims a rank, all pods of the newest round that the former coordinator or the operator knew are gone.
    """
    estate = desk.former_estate
    if estate is not None and estate.seats:
        unclaimed = not former.seats and estate.token.round >= desk.token.round
        if unclaimed or estate.token == former.token:
            return estate.seats, estate.holder
    appointment = desk.appointment
    if appointment is None or appointment.at_least_round != desk.token.round:
        return (), ""
    return appointment.seats, appointment.holder


def _disconnected_again(desk: Desk, former: FormerRound, seats: tuple[Seat, ...]) -> list[Seat]:
    """The holders of the missing ranks that have joined this coordinator and are disconnected now."""
    members = desk.roster.members
    missing = [seat for seat in seats if seat.group_rank not in former.seats and seat.pod_uid in members]
    return [seat for seat in missing if members[seat.pod_uid].link is None]


def _earlier_seats(desk: Desk, former: FormerRound) -> list[Seat]:
    """Who held the missing ranks when the former coordinator last told its heirs, and has not come."""
    if desk.former_estate is None or not former.seats:
        return []
    missing = [seat for seat in desk.former_estate.seats if seat.group_rank not in former.seats]
    told = {entry.cause.pod for entry in desk.book.open}
    gone = [x for x in missing if x.pod_uid not in desk.roster.members and x.pod_name not in told]
    return [seat for seat in gone if seat.group_rank < former.size]


def _silent(desk: Desk, holder: str) -> set[str]:
    """The uids of the pods whose machines stopped responding, as the former coordinator and its members report.

    The former coordinator's own did if no member saw its kernel close a connection.
    """
    holder = holder or desk.former_holder
    found = set() if desk.former_estate is None else set(desk.former_estate.silent)
    joins = [x.join for x in desk.roster.members.values() if x.join.disconnected_s is not None]
    if joins and all(join.disconnected_silently for join in joins):
        found.add(holder)
    return found


def _disconnected_at(desk: Desk, now: float) -> float:
    """When the first member lost the former coordinator, by the time that it says has passed since.

    If no member had one, when the operator lost it.
    """
    members = desk.roster.members.values()
    lost_s = None if desk.appointment is None else desk.appointment.coordinator_lost_s
    lost_at = now if lost_s is None else desk.since - lost_s
    joins = (x.joined_at - x.join.disconnected_s for x in members if x.join.disconnected_s is not None)
    return min(joins, default=lost_at)


def _goes_on(desk: Desk, now: float, *, charges: bool = True) -> bool:
    """Whether the former coordinator was about to mend this: it is one recovery, over both offices."""
    entry = desk.book.unmended()
    if entry is None:
        return False
    desk.look = True
    desk.say(f"continues a recovery of the previous coordinator: {entry.fault.value} of {entry.cause.pod}")
    seated = {x.name: x for x in desk.roster.active()}
    for waiting in [x for x in desk.book.open if x.strategy is None and x.cause.pod not in seated]:
        if waiting.reason not in desk.offences.given_up.values():
            desk.book.lost(waiting.cause.pod, faults.LOST)
    culprit = seated.get(entry.cause.pod)
    if charges and culprit is not None and entry.fault in OF_A_WORKER and not desk.offences.knows(entry.detected_at):
        escalation.count(desk, culprit, entry.cause, entry.detected_at, now, stays=escalation.UNCERTAIN)
    return True


def _patience(desk: Desk, former: FormerRound) -> float:
    expected = desk.may_come or desk.keeper.settled.voters
    gone = {desk.former_holder, *desk.offences.given_up}
    if not expected or expected - desk.roster.members.keys() - gone:
        return desk.since + SETTLE_S
    if desk.may_come:
        return desk.since
    broken = any(x.workers in _ENDED for x in former.seats.values())
    return desk.since + (0.0 if broken else RETURN_S)


def _take_over(desk: Desk, former: FormerRound) -> None:
    roster = desk.roster
    roster.resize(former.size)
    desk.size = former.size
    for rank, member in former.seats.items():
        roster.seat(member, rank, desk.domain(member.node) or member.join.domain)
    for member in roster.waiting():
        if member.join.group_rank is not None:
            joining.stand_by(desk, member, member.join.token)
    if former.trains:  # its members name the round by this token, whatever number another coordinator has reached
        desk.token = former.token
    else:
        desk.token = max(former.token, desk.token, key=lambda token: token.round)
    desk.book.take_over(desk.token.round)


def _adopt(desk: Desk, now: float) -> None:
    desk.state, desk.first, desk.formed_at = State.RUNNING, False, desk.since
    hangs.expect_step(desk, now)
    desk.members_changed(now)
    desk.say(f"round {desk.token} of the previous coordinator continues")
    for member in desk.roster.active():
        if member.workers is WorkersState.FINISHED:
            faults.finished(desk, member)
        elif member.workers is WorkersState.STARTING:
            desk.roster.starting.add(member.uid)

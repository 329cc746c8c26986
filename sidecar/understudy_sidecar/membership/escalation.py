"""A worker's fault: counted, and mended on the rung of the ladder that it has come to (ladder.py).

Rules: a fault is counted when the failures of its round are gathered, and the first of them is blamed
(first_failure.py). A member is given up only when it is certain that it was first. All other actives are asked whether
they are there: one that is not was lost before, and is the cause. A report of an earlier failure that arrives while
they are asked makes it uncertain, and nobody is given up. A coordinator without a majority counts nothing,
and ends no job for a spent budget: it may be cut off, or replaced, and the worker have failed of that. One whose own
pod is given up passes its office on first, with all that it knows. A member that was given up and comes back is told
again.
"""

from understudy_protocol import membership as m
from understudy_protocol.observer import Cause, Lost
from understudy_protocol.recovery import History, Offence
from understudy_protocol.words import Fault
from understudy_sidecar.membership import ending, faults, leaving, succession
from understudy_sidecar.membership.desk import Desk, Dismissal, State, Uncounted
from understudy_sidecar.membership.events import Hangup, Send
from understudy_sidecar.membership.first_failure import UNKNOWN, FirstFailure, Report, plausible
from understudy_sidecar.membership.ladder import Case, Rung, Step, climb
from understudy_sidecar.membership.roster import Member

#: So much of what is held against a node is told in a reason: it is an annotation, of any length.
FAULTY_TOLD = 200
UNCERTAIN = "it is not known which pod failed first"
_FORGOTTEN = "without it the other pods cannot elect a coordinator that knows of the replacement"


def worker_failed(desk: Desk, member: Member, failed: m.WorkerFailed | None, message: str, now: float) -> None:
    """failed: None if nobody saw which worker it was."""
    faults.mark_failed(desk, member)
    if faults.is_consequence(desk, now):
        return
    cause = faults.cause_of(desk, member, failed, message)
    if failed is None:
        worker_fault(desk, Fault.PROCESS, member, cause, now, stays=UNCERTAIN)
        return
    if desk.size * desk.shape.nproc_per_node > 1:
        desk.gathers_until = now + faults.GATHER_S
    failed_at = plausible(failed.at, desk.formed_at, now)
    worker_fault(desk, Fault.PROCESS, member, cause, now, failed_at=failed_at)


def worker_fault(
    desk: Desk,
    fault: Fault,
    member: Member,
    cause: Cause,
    now: float,
    *,
    failed_at: float = UNKNOWN,
    stays: str = "",
) -> None:
    """The running round is over by it. stays: why its pod cannot be given up."""
    faults.open_fault(desk, fault, cause, now)
    if fault is Fault.PROCESS:
        desk.backoff.failed(now)
        if desk.backoff.waits(now):
            desk.say(f"the next round waits for {desk.backoff.why}")
    count(desk, member, cause, now, now, failed_at=failed_at, stays=stays)


def count(
    desk: Desk, member: Member, cause: Cause, at: float, now: float, *, failed_at: float = UNKNOWN, stays: str = ""
) -> None:
    """The open entry of the book that began then is about this fault: mend it, with a majority."""
    if now < desk.gathers_until or not desk.has_majority():
        desk.uncounted = Uncounted(FirstFailure(Report(member.uid, cause, failed_at)), at, stays)
        return
    step = climb(_case(desk, member, cause, stays, now), desk.offences.limits)
    if step.rung is not Rung.GIVE_UP:
        _stays(desk, member, cause, step, at, now, certain=not stays)
        return
    others = [x for x in desk.roster.active() if x is not member]
    number = desk.ask([x.link for x in others if x.link is not None])
    until = now + desk.silence.answer_s_of(len(others))
    desk.dismissal = Dismissal(
        member.uid, cause, step.reason, step.charged, at, failed_at, number, {x.uid for x in others}, until
    )
    desk.say(f"{member.name} is to be replaced ({step.reason}): asks {len(others)} members for an answer first")


def answered(desk: Desk, member: Member, heartbeat: int | None = None) -> None:
    """The member is there: it has answered this heartbeat, or has come back."""
    dismissal = desk.dismissal
    if dismissal is not None and (heartbeat is None or heartbeat >= dismissal.heartbeat):
        dismissal.pending.discard(member.uid)
        desk.look = desk.look or not dismissal.pending


def failed_too(desk: Desk, member: Member, failed: m.WorkerFailed, now: float) -> None:
    """Another worker ended in the round that is over: a consequence, or the first failure."""
    dismissal, uncounted = desk.dismissal, desk.uncounted
    if failed.token != desk.token or member.group_rank is None:
        return
    at = plausible(failed.at, desk.formed_at, now)
    if dismissal is not None and member.uid != dismissal.uid and at < dismissal.failed_at:
        dismissal.earlier = member.name
    elif uncounted is not None:
        cause = faults.cause_of(desk, member, failed, failed.message)
        if uncounted.failures.add(Report(member.uid, cause, at)):
            desk.book.blame(uncounted.at, cause)
            desk.version += 1
            desk.say(f"a worker of {member.name} failed earlier, by its node's clock: {failed.message}")


def came_back_failed(desk: Desk, member: Member, failed: m.WorkerFailed | None, now: float) -> None:
    """Its worker failed while its sidecar was not connected. None: nobody knows when, so it may have been first."""
    if failed is not None:
        failed_too(desk, member, failed, now)
    elif desk.dismissal is not None and member.uid != desk.dismissal.uid:
        desk.dismissal.earlier = member.name


def end_faulty_script(desk: Desk, member: Member, failed: m.WorkerFailed, now: float) -> None:
    """After the failure was counted: no recovery helps a script that fails everywhere in the same way."""
    if failed.token != desk.token:
        return
    workers = desk.size * desk.shape.nproc_per_node
    why = desk.script_fault.worker_failed(member.uid, failed, workers, desk.backoff.failures)
    if why:
        ending.fail(desk, why)


def deadline(desk: Desk) -> float | None:
    return None if desk.dismissal is None else desk.dismissal.until


def on_time(desk: Desk, now: float) -> None:
    """Give the member up, once everybody else has answered; who has not in time was lost before."""
    _count_gathered(desk, now)
    dismissal = desk.dismissal
    if dismissal is None:
        return
    if desk.state is not State.WAITING:
        desk.dismissal = None
    elif not desk.has_majority():
        dismissal.until = now + desk.silence.patience.answer_s
    elif not dismissal.pending:
        _decide(desk, dismissal, now)
    elif now >= dismissal.until:
        reason = "it did not answer after workers of other pods had failed"
        for member in [desk.roster.members[uid] for uid in sorted(dismissal.pending) if uid in desk.roster.members]:
            faults.lose(desk, member, Fault.NODE, reason, now)
        dismissal.pending.clear()


def _count_gathered(desk: Desk, now: float) -> None:
    """What was left uncounted; of what was lost or has left meanwhile `faults.take_blame` knows."""
    uncounted = desk.uncounted
    if uncounted is None or now < desk.gathers_until or not desk.has_majority():
        return
    desk.uncounted = None
    first = uncounted.failures.first
    member = desk.roster.members.get(first.pod_uid)
    if member is not None and member.uid not in desk.roster.leaving:  # else it goes by itself, and costs nothing
        stays = uncounted.stays or ("" if uncounted.failures.is_certain else UNCERTAIN)
        count(desk, member, first.cause, uncounted.at, now, failed_at=first.at, stays=stays)


def _decide(desk: Desk, dismissal: Dismissal, now: float) -> None:
    desk.dismissal = None
    member = desk.roster.members.get(dismissal.uid)
    if member is None or member.uid in desk.roster.leaving:
        return  # it goes by itself, and costs nothing
    if dismissal.earlier:
        desk.say(f"{member.name} is not replaced: a worker of {dismissal.earlier} failed earlier, by its node's clock")
        step = climb(_case(desk, member, dismissal.cause, UNCERTAIN, now), desk.offences.limits)
        _stays(desk, member, dismissal.cause, step, dismissal.at, now, certain=False)
        return
    desk.book.explain(dismissal.at, dismissal.reason)  # not before: who comes next in office may decide otherwise
    if not desk.faulty(member.node):
        rank = _rank(desk, member, dismissal.cause)
        desk.offences.add(Offence(dismissal.at, member.uid, rank, dismissal.charged, given_up=True))
    give_up(desk, member, dismissal.reason, now)


def _stays(desk: Desk, member: Member, cause: Cause, step: Step, at: float, now: float, *, certain: bool) -> None:
    """In place, or the end."""
    desk.inherit_later(now)
    desk.book.explain(at, step.reason)
    if step.rung is Rung.IN_PLACE and step.charged:
        known = Offence(at, member.uid, _rank(desk, member, cause))
        desk.offences.add(known if certain else Offence(at, "", None))
    elif step.rung is Rung.IN_PLACE:
        desk.offences.happened_again(desk.offences.within(now)[-1])
    else:
        who = f"rank {cause.rank} on {member.name}" if cause.rank is not None else member.name
        taken = desk.book.taken()
        tried = f"; recoveries so far: {taken}" if taken else ""
        ending.fail(desk, f"{step.reason}{tried}; the last failure: {who}: {cause.message}")


def _case(desk: Desk, member: Member, cause: Cause, stays: str, now: float) -> Case:
    rank, offences = _rank(desk, member, cause), desk.offences.within(now)
    newest = offences[-1] if offences else None
    lasts = newest is not None and any(entry.detected_at == newest.at for entry in desk.book.open)
    return Case(
        member.name,
        member.node,
        rank,
        desk.faulty(member.node)[:FAULTY_TOLD],
        stays or ("" if member.uid != desk.pod_uid or succession.heir_there(desk) else _FORGOTTEN),
        sum(offence.charged for offence in offences),
        sum(offence.pod_uid == member.uid for offence in offences),
        any(x.given_up and x.rank == rank and x.pod_uid != member.uid for x in offences),
        any(x.given_up and not x.charged for x in offences),
        lasts
        and newest is not None
        and bool(desk.roster.starting)
        and (newest.pod_uid, newest.rank) == (member.uid, rank)
        and not newest.again,
    )


def _rank(desk: Desk, member: Member, cause: Cause) -> int:
    return (member.group_rank or 0) * desk.shape.nproc_per_node if cause.rank is None else cause.rank


# Giving up -------------------------------------------------------------------------------------------------------


def give_up(desk: Desk, member: Member, reason: str, now: float) -> None:
    """It is no member any more: its launcher exits, and its pod is replaced."""
    desk.say(f"{member.name} on {member.node} is replaced: {reason}")
    desk.offences.give_up(member.uid, reason)
    own = member.uid == desk.pod_uid
    if own:
        succession.tell_estate(desk)
    desk.send(member, m.GivenUp(desk.office, reason))
    desk.hang_up(member.link, "its pod is replaced")
    _tell_lost(desk, member.join, reason, now)
    desk.roster.remove(member)
    desk.members_changed(now)
    desk.inherit_later(now)
    if own:
        leaving.pass_on(desk, f"its pod is replaced: {reason}")


def is_given_up(desk: Desk, link: int, join: m.Join, now: float) -> bool:
    """Whether the pod that joins was given up before: it is told again."""
    reason = desk.offences.given_up.get(join.pod_uid)
    if reason is None or desk.closed is not None:
        return False
    desk.out += [Send(link, m.GivenUp(desk.office, reason)), Hangup(link, "its pod is replaced")]
    _tell_lost(desk, join, reason, now)
    return True


def inherit(desk: Desk, history: History, now: float) -> None:
    """What a former coordinator knew, as a member brings it."""
    if not desk.offences.inherit(history):
        return
    if desk.state is State.SETTLING:
        desk.book.inherit(history.open)
        desk.backoff.inherit(history.failed_starts)
    for uid in history.given_up.keys() & desk.roster.members.keys():
        give_up(desk, desk.roster.members[uid], history.given_up[uid], now)
    desk.inherit_later(now)


def _tell_lost(desk: Desk, join: m.Join, reason: str, now: float) -> None:
    """Once: the operator waits from the first report on, and a pod whose launcher is stuck connects again and again."""
    if join.pod_uid in desk.lost:
        return
    desk.lost[join.pod_uid] = Lost(join.pod_uid, join.pod_name, join.node, Fault.PROCESS, f"replaced: {reason}", now)
    faults.forget_old_losses(desk)
    desk.version += 1

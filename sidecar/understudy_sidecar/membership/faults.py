"""What breaks a round: workers that fail, members that are lost; and what is booked about it.

Rules: the first fault of a round is its cause; a member that proves to have been lost before or at the same time
revises it. While a member is leaving (its workers may still save), worker failures are its consequence. Messages of
another round than the running one have been dropped before they come here.
"""

from collections.abc import Sequence

from understudy_protocol import membership as m
from understudy_protocol.observer import Cause, Lost, Recovery
from understudy_protocol.words import NO_ROUND, Fault, WorkersState
from understudy_sidecar.membership.desk import LOST_KEPT, Desk, State
from understudy_sidecar.membership.roster import Member

#: What goes with a lost member (its node's other pods, its rack's other nodes) is known so soon: one round for all. So
#: long, too, the failures of a round are gathered to find the first one.
GATHER_S = 0.02
#: Why the ranks of a member that ended go to another: neither costs a restart of the budget.
LOST = "its pod is lost"
LEAVES = "its pod was asked to end"


def lose(desk: Desk, member: Member, fault: Fault, reason: str, now: float, *, local_rank: int = 0) -> None:
    """The member counts as lost: its rank is vacant, and its pod is to be replaced.

    local_rank: of the worker that is the reason.
    """
    rank, acked = member.group_rank, member.uid not in desk.roster.unacked
    desk.say(f"{member.name} on {member.node} is lost ({fault.value}): {reason}")
    desk.hang_up(member.link, f"lost: {reason}")
    desk.lost[member.uid] = Lost(member.uid, member.name, member.node, fault, reason, now)
    desk.losses[member.uid] = (desk.losses.get(member.uid, (0, 0.0))[0] + 1, now)
    forget_old_losses(desk)
    leaves = member.uid in desk.roster.leaving
    desk.roster.remove(member)
    desk.members_changed(now)
    if desk.draining is not None:
        desk.draining.pending.discard(member.uid)
    if desk.dismissal is not None:
        desk.dismissal.pending.discard(member.uid)
    if rank is None or rank in desk.roster.finished:
        return
    desk.backoff.lost(now)
    cause, why = _cause_of_loss(desk, member, reason, local_rank), LEAVES if leaves else LOST
    blamed = desk.book.blames_worker()
    if blamed is not None and desk.offences.gave_up(blamed.detected_at):
        blamed = None  # everybody else was there then
    if blamed is not None and (not acked or member.last_heard <= blamed.detected_at):
        take_blame(desk, member, fault, reason, why, now, local_rank=local_rank)
        _break(desk, fault, cause, now)
    elif desk.book.tells(cause.pod, why):
        _break(desk, fault, cause, now)
    else:
        desk.book.lost(member.name, why)
        open_fault(desk, fault, cause, now, why)


def take_blame(
    desk: Desk, member: Member, fault: Fault, reason: str, why: str, now: float, *, local_rank: int = 0
) -> None:
    """Off the worker that the newest entry blames: it only failed because this member was gone, or was going."""
    blamed = desk.book.blames_worker()
    assert blamed is not None
    desk.book.revise(fault, _cause_of_loss(desk, member, reason, local_rank), why)
    desk.offences.take_back(blamed.detected_at)
    desk.dismissal = desk.uncounted = None
    desk.inherit_later(now)


def _cause_of_loss(desk: Desk, member: Member, reason: str, local_rank: int) -> Cause:
    rank = None if member.group_rank is None else member.group_rank * desk.shape.nproc_per_node + local_rank
    return Cause(rank, member.name, member.node, None, None, reason)


def forget_old_losses(desk: Desk) -> None:
    while len(desk.lost) > LOST_KEPT:
        desk.lost.pop(next(iter(desk.lost)))
    while len(desk.losses) > LOST_KEPT:
        desk.losses.pop(next(iter(desk.losses)))


def mark_failed(desk: Desk, member: Member) -> None:
    desk.version += 1
    member.workers = WorkersState.FAILED
    desk.roster.starting.discard(member.uid)


def is_consequence(desk: Desk, now: float) -> bool:
    """Whether workers break because of a member that leaves (its end brings the next round), or one that is silent."""
    active = desk.roster.active()
    if any(x.uid in desk.roster.leaving for x in active):
        return True
    suspects = [x for x in active if x.uid in desk.roster.suspects]
    if not suspects or not desk.has_majority():
        return False
    for suspect in suspects:
        lose(desk, suspect, Fault.NODE, "its connection went silent, and workers of other pods failed or hang", now)
    return True


def cause_of(desk: Desk, member: Member, failed: m.WorkerFailed | None, message: str) -> Cause:
    if failed is None:
        return Cause(None, member.name, member.node, None, None, message)
    rank = (member.group_rank or 0) * desk.shape.nproc_per_node + failed.local_rank
    return Cause(rank, member.name, member.node, failed.exit_code, failed.signal, message)


def acked(desk: Desk, member: Member) -> None:
    """The member is known to have its assignment of the running round."""
    desk.roster.unacked.discard(member.uid)
    if not desk.roster.unacked:
        desk.silence.all_acked()


def started(desk: Desk, member: Member, now: float) -> None:
    desk.version += 1
    member.workers = WorkersState.RUNNING
    desk.roster.starting.discard(member.uid)
    if not desk.roster.starting:
        desk.started_at = now
        if desk.stepped == NO_ROUND:
            recovered(desk, desk.book.running(now), now)


def stepped(desk: Desk, member: Member, progress: m.Progress, now: float) -> None:
    """A step of the running round. A recovery ends with the first one of a pod that also made the last step before it.

    Where no such pod is left, the first step of any ends it, and how long training paused stays unknown.
    """
    if desk.stepped != desk.token:
        desk.inherit_later(now)  # an heir with none of the round's pods would take an earlier step for the last one
    desk.stepped = member.stepped = desk.token
    if not desk.book.awaits_step(desk.token.round):
        return
    measured = progress.pause_s if member.measures else None
    if measured is not None or not any(x.measures for x in desk.roster.active()):
        recovered(desk, desk.book.stepped(desk.token.round, now, measured), now)


def finished(desk: Desk, member: Member) -> None:
    desk.version += 1
    member.workers = WorkersState.FINISHED
    desk.roster.starting.discard(member.uid)
    if desk.draining is not None:
        desk.draining.pending.discard(member.uid)
    if member.group_rank is not None:
        desk.roster.finished.add(member.group_rank)


def recovered(desk: Desk, done: Sequence[Recovery], now: float) -> None:
    for entry in done:
        how = entry.strategy.value if entry.strategy is not None else "nothing"
        end = f"all workers were running {now - entry.detected_at:.2f} s after the fault"
        if entry.pause_s is not None:
            end = f"training paused for {entry.pause_s:.2f} s"
        elif entry.resumed_at is not None:
            end = f"the first step ended {now - entry.detected_at:.2f} s after the fault"
        desk.say(f"recovered from {entry.fault.value} by {how}, round {entry.round}: {end}")
    if done:
        desk.version += 1
        desk.inherit_later(now)


def open_fault(
    desk: Desk, fault: Fault, cause: Cause, now: float, reason: str = "", *, at: float | None = None
) -> None:
    """A new entry in the book; the round that runs is over.

    reason: why it is mended as it will be. at: when the fault was detected; None: now.
    """
    desk.book.begin(fault, cause, desk.token.round + 1, now if at is None else at, reason)
    desk.inherit_later(now)
    _break(desk, fault, cause, now)


def _break(desk: Desk, fault: Fault, cause: Cause, now: float) -> None:
    """The running round is over, if one runs."""
    desk.look = True
    if fault in (Fault.POD, Fault.NODE):
        desk.gathers_until = now + GATHER_S
    if desk.state is State.RUNNING:
        desk.state = State.WAITING
        desk.vacant_since, desk.started_at, desk.hanging = now, None, None
    where = f"{cause.pod} on {cause.node}"
    desk.say(f"fault {fault.value} in round {desk.token}: {where}: {cause.message}")

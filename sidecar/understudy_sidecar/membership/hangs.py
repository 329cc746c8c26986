"""A training hangs: workers make no steps any more, and their launchers say so (faults.hang.stepTimeout).

Rules: whoever hangs holds up all others in their next collective, so all tell within a moment, each of its slowest
worker. They are gathered until every active has told or has finished, or for GATHER_S, or until a worker fails of it.
The slowest rank is the cause: the one with the lowest step, of these the one that made it first. From there on it is as
with a failed worker; but its pod is given up only if no other pod can be the one that the others wait for: all have
told, and nobody else is at that step. A step takes back what its member has told. Members that leave, or are silent,
are the cause of what hangs; who neither steps nor tells is for silence.py to find. Everything that is asked at each
message is O(1).
"""

from understudy_protocol import membership as m
from understudy_protocol.observer import Cause
from understudy_protocol.words import Fault
from understudy_sidecar.membership import escalation, faults
from understudy_sidecar.membership.desk import Desk, Hanging, State
from understudy_sidecar.membership.roster import Member

#: Launchers look twice a second, and let the stacks of their workers out first.
GATHER_S = 3.0
UNCERTAIN = "nobody knows which pod hangs"


def on_hung(desk: Desk, member: Member, hung: m.Hung, now: float) -> None:
    if desk.hanging is None:
        desk.hanging = Hanging(now + GATHER_S)
        desk.say(f"{member.name} says that its workers hang: no step for {hung.silent_s:.0f} s")
    desk.hanging.told[member.uid] = hung


def on_step(desk: Desk, member: Member) -> None:
    """It trains."""
    if desk.hanging is not None:
        desk.hanging.told.pop(member.uid, None)


def on_worker_failed(desk: Desk, member: Member, failed: m.WorkerFailed, now: float) -> None:
    """It may have waited for who hangs for as long as its collectives do."""
    faults.mark_failed(desk, member)
    if not _decide(desk, now):
        escalation.worker_failed(desk, member, failed, failed.message, now)


def deadline(desk: Desk) -> float | None:
    return None if desk.hanging is None else desk.hanging.until


def on_time(desk: Desk, now: float) -> None:
    if desk.hanging is None:
        return
    if desk.state is not State.RUNNING:
        desk.hanging = None
        return
    roster = desk.roster
    if now >= desk.hanging.until or len(desk.hanging.told) + len(roster.finished) >= len(roster.holders):
        _decide(desk, now)


def _decide(desk: Desk, now: float) -> bool:
    """By what is known now. False if nobody hangs."""
    told, desk.hanging = ({} if desk.hanging is None else desk.hanging.told), None
    hung = [(desk.roster.members[uid], message) for uid, message in told.items() if uid in desk.roster.members]
    if not hung:
        return False
    if not faults.is_consequence(desk, now):
        member, slowest = min(hung, key=lambda x: (x[1].step, x[1].at, x[0].group_rank))
        cause = _cause(desk, member, slowest, [x.step for _, x in hung if x is not slowest])
        stays = "" if _is_certain(desk, hung, slowest) else UNCERTAIN
        escalation.worker_fault(desk, Fault.HANG, member, cause, now, stays=stays)
    return True


def _is_certain(desk: Desk, hung: list[tuple[Member, m.Hung]], slowest: m.Hung) -> bool:
    """Whether only the slowest member can hold up the others. Who waits in a collective may be at the same step."""
    all_told = len(hung) + len(desk.roster.finished) >= len(desk.roster.holders)
    return all_told and sum(message.step == slowest.step for _, message in hung) == 1


def _cause(desk: Desk, member: Member, slowest: m.Hung, others: list[int]) -> Cause:
    rank = (member.group_rank or 0) * desk.shape.nproc_per_node + slowest.local_rank
    message = f"no step for {slowest.silent_s:.0f} s; slowest: rank {rank} at step {slowest.step}"
    if others:
        least, most = min(others), max(others)
        message += f" (others: {least})" if least == most else f" (others: {least} to {most})"
    return Cause(rank, member.name, member.node, None, None, message)

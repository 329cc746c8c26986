"""A training hangs: workers make no steps any more, and their launchers say so (faults.hang.stepTimeout); or a round
makes no first step, which the coordinator alone can tell (faults.hang.startTimeout).

Rules: whoever hangs holds up all others in their next collective, so all tell within a moment, each of its slowest
worker. They are gathered until every active has told or has finished, or for GATHER_S, or until a worker fails of it.
The slowest rank is the cause: the one with the lowest step, of these the one that made it first. From there on it is as
with a failed worker; but its pod is given up only if no other pod can be the one that the others wait for: all have
told, and nobody else is at that step. A step takes back what its member has told. Members that leave, or are silent,
are the cause of what hangs; who neither steps nor tells is for silence.py to find. Everything that is asked at each
message is O(1).

Before the first step: if no worker of the round has made a step within startTimeout after the round was formed, the
coordinator asks all actives for the stacks of their workers, and gathers the answers for STACKS_S. A step of any worker
ends this. The first suspect is a rank whose pod does not answer, first of all one whose workers have not started. If
all answer, it is the rank whose workers started last. If the workers of one pod alone have not started, the pod is
replaced, and no restart is charged. A coordinator without a majority may have missed the step: it waits.
"""

from understudy_protocol import membership as m
from understudy_protocol.observer import Cause
from understudy_protocol.words import NO_ROUND, Fault, WorkersState
from understudy_sidecar.membership import escalation, faults, leaving
from understudy_sidecar.membership.desk import Desk, Hanging, State
from understudy_sidecar.membership.roster import Member

#: Launchers look twice a second, and let the stacks of their workers out first.
GATHER_S = 3.0
#: A launcher has its workers write one after the other, which takes 6 s at most.
STACKS_S = 8.0
UNCERTAIN = "it is not known which pod hangs"


def expect_step(desk: Desk, now: float) -> None:
    """A round begins, or goes on under a new coordinator."""
    has_limit = desk.shape.start_timeout_s > 0 and desk.stepped != desk.token
    desk.start_expires = now + desk.shape.start_timeout_s if has_limit else None


def on_hung(desk: Desk, member: Member, hung: m.Hung, now: float) -> None:
    asked = desk.hanging is not None and desk.hanging.before_first_step
    if hung.step < 0 and not asked:
        return  # a step has come since it was asked
    if desk.hanging is None:
        desk.hanging = Hanging(now + GATHER_S)
        desk.say(f"{member.name} reports that its workers hang: no step for {hung.silent_s:.0f} s")
    desk.hanging.told[member.uid] = hung


def on_step(desk: Desk, member: Member) -> None:
    """It trains."""
    desk.start_expires = None
    if desk.hanging is not None and desk.hanging.before_first_step:
        desk.hanging = None
    if desk.hanging is not None:
        desk.hanging.told.pop(member.uid, None)


def on_worker_failed(desk: Desk, member: Member, failed: m.WorkerFailed, now: float) -> None:
    """It may have waited for who hangs for as long as its collectives do."""
    faults.mark_failed(desk, member)
    if not _decide(desk, now):
        escalation.worker_failed(desk, member, failed, failed.message, now)


def deadline(desk: Desk) -> float | None:
    if desk.hanging is not None:
        return desk.hanging.until
    return desk.start_expires if desk.state is State.RUNNING else None


def on_time(desk: Desk, now: float) -> None:
    if desk.state is not State.RUNNING:
        desk.hanging = desk.start_expires = None
        return
    if desk.start_expires is not None and now >= desk.start_expires:
        _ask(desk, now)
    if desk.hanging is None:
        return
    roster = desk.roster
    if now >= desk.hanging.until or len(desk.hanging.told) + len(roster.finished) >= len(roster.holders):
        _decide(desk, now)


def _decide(desk: Desk, now: float) -> bool:
    """By what is known now. False if nobody hangs."""
    if desk.hanging is not None and desk.hanging.before_first_step:
        return _decide_without_step(desk, desk.hanging.told, now)
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


# Before the first step ---------------------------------------------------------------------------------------------


def _ask(desk: Desk, now: float) -> None:
    if desk.stepped == desk.token:  # a member has brought it back
        desk.start_expires = None
    elif not desk.has_majority():
        desk.start_expires = now + GATHER_S
    else:
        desk.start_expires, desk.hanging = None, Hanging(now + STACKS_S, before_first_step=True)
        active = desk.roster.active()
        desk.broadcast([x.link for x in active if x.link is not None], m.WriteStacks(desk.token))
        desk.say(f"no step within {now - desk.formed_at:.0f} s: asks the launchers of {len(active)} members for stacks")


def _decide_without_step(desk: Desk, told: dict[str, m.Hung], now: float) -> bool:
    """False if nothing hangs."""
    desk.hanging = None
    active = [x for x in desk.roster.active() if x.workers not in (WorkersState.FAILED, WorkersState.FINISHED)]
    if desk.stepped == desk.token or not active:
        return False
    if faults.is_consequence(desk, now):
        return True
    without_answer = [x for x in active if x.uid not in told]
    not_started = [x for x in without_answer if x.uid in desk.roster.starting]
    local_rank = 0
    if len(not_started) == len(without_answer) == 1 < len(active):
        reason = f"its workers have not started within {now - desk.formed_at:.0f} s"
        leaving.replace_pods(desk, not_started, reason, now)
        return True
    if not_started:
        member, why = not_started[0], "its workers have not started"
    elif without_answer:
        member, why = without_answer[0], "its launcher did not answer"
    else:
        member = min(active, key=lambda x: (told[x.uid].silent_s, x.group_rank))
        why, local_rank = "its workers started last", told[member.uid].local_rank
    rank = (member.group_rank or 0) * desk.shape.nproc_per_node + local_rank
    message = f"no step for {now - desk.formed_at:.0f} s since the start; first suspect: rank {rank} ({why})"
    if desk.stepped == NO_ROUND:
        message += "; unset faults.hang.startTimeout if the script never calls step()"
    cause = Cause(rank, member.name, member.node, None, None, message)
    escalation.worker_fault(desk, Fault.HANG, member, cause, now, stays=UNCERTAIN)
    return True

"""Hang detection: workers make no steps any more, and their launchers report it (faults.hang.stepTimeout); or a round
makes no first step, which only the coordinator can detect (faults.hang.startTimeout).

Rules: a worker that hangs blocks all others in their next collective, so all launchers report within a moment, each
about its slowest worker. The coordinator gathers reports until every active has reported or finished, or for GATHER_S,
or until a worker fails. The cause is the slowest rank: the one with the lowest step, and among these the one that made
it first. Then the coordinator recovers as from a failed worker. It evicts the pod only if the others can wait for no
other pod: all actives have reported, and no other rank is at that step. A step cancels the report of its member. If
members are leaving or silent, they are the cause. silence.py finds members that neither step nor report. All work per
message is O(1).

Before the first step: if no worker of the round has made a step within startTimeout after the round was formed, the
coordinator asks all actives for the stacks of their workers, and gathers the answers for STACKS_S. A step of any worker
ends this. The first suspect is a rank whose pod does not answer, preferably one whose workers have not started. If all
answer, it is the rank whose workers started last. If the workers of one pod alone have not started, the pod is
replaced, and no restart is charged. A coordinator without a majority may have missed the step: it waits.
"""

from dataclasses import dataclass

from understudy_protocol import membership as m
from understudy_protocol.enums import NO_ROUND, WorkersState
from understudy_protocol.observer import Cause
from understudy_sidecar.membership.coordinator_state import CoordinatorState
from understudy_sidecar.membership.roster import MemberRecord
from understudy_sidecar.membership.round_state import RoundPhase

#: Launchers check four times a second, and write the stacks of their workers before they report.
GATHER_S = 3.0
#: A launcher has its workers write one after the other, which takes 6 s at most.
STACKS_S = 8.0
UNCERTAIN = "it is not known which pod hangs"


@dataclass(frozen=True)
class HungWorker:
    """The worker that the others wait for. keep_reason: why its pod cannot be evicted."""

    member: MemberRecord
    cause: Cause
    keep_reason: str


@dataclass(frozen=True)
class MissingStart:
    """Only the workers of this member have not started."""

    member: MemberRecord
    reason: str


Hang = HungWorker | MissingStart


def on_hung(state: CoordinatorState, member: MemberRecord, hung: m.Hung, now: float) -> None:
    if hung.step < 0 and not state.hangs.before_first_step:
        return  # a step has ended the request for stacks
    if state.hangs.until is None:
        state.hangs.gather(now + GATHER_S)
        state.log(f"{member.name} reports that its workers hang: no step for {hung.silent_s:.0f} s")
    state.hangs.on_hung(member.uid, hung)


def deadline(state: CoordinatorState) -> float | None:
    return state.hangs.deadline if state.round.phase is RoundPhase.RUNNING else None


def on_time(state: CoordinatorState, now: float) -> Hang | None:
    """The hang, if all reports about it have come, or their time is over."""
    hangs, roster = state.hangs, state.roster
    if state.round.phase is not RoundPhase.RUNNING:
        if hangs.deadline is not None:
            hangs.end_round()
        return None
    if hangs.start_expires is not None and now >= hangs.start_expires:
        _request_stacks(state, now)
    if hangs.until is None:
        return None
    are_complete = len(hangs.reports) + len(roster.finished) >= len(roster.holders)
    return take_reported(state, now) if now >= hangs.until or are_complete else None


def take_reported(state: CoordinatorState, now: float) -> Hang | None:
    """Decide from the reports so far, and forget them. None if no worker hangs."""
    if state.hangs.until is None:
        return None
    reports, before_first_step = state.hangs.reports, state.hangs.before_first_step
    state.hangs.forget()
    if before_first_step:
        return _without_step(state, reports, now)
    members = state.roster.members
    hung = [(members[uid], message) for uid, message in reports.items() if uid in members]
    if not hung:
        return None
    member, slowest = min(hung, key=lambda x: (x[1].step, x[1].at, x[0].group_rank))
    cause = _cause(state, member, slowest, [x.step for _, x in hung if x is not slowest])
    return HungWorker(member, cause, "" if _is_certain(state, hung, slowest) else UNCERTAIN)


def _is_certain(state: CoordinatorState, hung: list[tuple[MemberRecord, m.Hung]], slowest: m.Hung) -> bool:
    """Whether only the slowest member can block the others. Members that wait in a collective may be at its step."""
    all_reported = len(hung) + len(state.roster.finished) >= len(state.roster.holders)
    return all_reported and sum(message.step == slowest.step for _, message in hung) == 1


def _cause(state: CoordinatorState, member: MemberRecord, slowest: m.Hung, others: list[int]) -> Cause:
    rank = (member.group_rank or 0) * state.shape.nproc_per_node + slowest.local_rank
    message = f"no step for {slowest.silent_s:.0f} s; slowest: rank {rank} at step {slowest.step}"
    if others:
        least, most = min(others), max(others)
        message += f" (others: {least})" if least == most else f" (others: {least} to {most})"
    return Cause(rank, member.name, member.node, None, None, message)


# Before the first step ---------------------------------------------------------------------------------------------


def _request_stacks(state: CoordinatorState, now: float) -> None:
    if state.round.stepped == state.round.token:  # a member has reported a step in its Join
        state.hangs.end_start_limit()
    elif not state.has_majority():
        state.hangs.postpone_start_limit(now + GATHER_S)
    else:
        state.hangs.request_stacks(now + STACKS_S)
        active = state.roster.active_members()
        state.broadcast([x.link for x in active if x.link is not None], m.WriteStacks(state.round.token))
        since_s = now - state.round.formed_at
        state.log(f"no step within {since_s:.0f} s: asks the launchers of {len(active)} members for stacks")


def _without_step(state: CoordinatorState, reports: dict[str, m.Hung], now: float) -> Hang | None:
    active = [x for x in state.roster.active_members() if x.workers not in (WorkersState.FAILED, WorkersState.FINISHED)]
    if state.round.stepped == state.round.token or not active:
        return None
    without_answer = [x for x in active if x.uid not in reports]
    not_started = [x for x in without_answer if x.uid in state.roster.starting]
    since_s = now - state.round.formed_at
    if len(not_started) == len(without_answer) == 1 < len(active):
        return MissingStart(not_started[0], f"its workers have not started within {since_s:.0f} s")
    local_rank = 0
    if not_started:
        member, why = not_started[0], "its workers have not started"
    elif without_answer:
        member, why = without_answer[0], "its launcher did not answer"
    else:
        member = min(active, key=lambda x: (reports[x.uid].silent_s, x.group_rank))
        why, local_rank = "its workers started last", reports[member.uid].local_rank
    rank = (member.group_rank or 0) * state.shape.nproc_per_node + local_rank
    message = f"no step for {since_s:.0f} s since the start; first suspect: rank {rank} ({why})"
    if state.round.stepped == NO_ROUND:
        message += "; unset faults.hang.startTimeout if the script reports no steps"
    return HungWorker(member, Cause(rank, member.name, member.node, None, None, message), UNCERTAIN)

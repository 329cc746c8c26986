"""Hang detection: workers make no steps any more, and their launchers report it (faults.hang.stepTimeout); or a round
makes no first step, which only the coordinator can detect (faults.hang.startTimeout).

Rules: a worker that hangs blocks all others in their next collective, so all launchers report within a moment, each
about its slowest worker. The coordinator gathers reports until every active has reported or finished, or for GATHER_S,
or until a worker fails. The cause is the slowest rank: the one with the lowest step, and among these the one that made
it first. Then it recovers as from a failed worker, but evicts the pod only if the others can wait for no other pod: all
have reported, and no other one is at that step. A step cancels the report of its member. If members are leaving or
silent, they are the cause. silence.py finds members that neither step nor report. All work per message is O(1).

Before the first step: if no worker of the round has made a step within startTimeout after the round was formed, the
coordinator asks all actives for the stacks of their workers, and gathers the answers for STACKS_S. A step of any worker
ends this. The first suspect is a rank whose pod does not answer, preferably one whose workers have not started. If all
answer, it is the rank whose workers started last. If the workers of one pod alone have not started, the pod is
replaced, and no restart is charged. A coordinator without a majority may have missed the step: it waits.
"""

from understudy_protocol import membership as m
from understudy_protocol.enums import NO_ROUND, Fault, WorkersState
from understudy_protocol.observer import Cause
from understudy_sidecar.membership import escalation, faults, leaving
from understudy_sidecar.membership.coordinator_state import CoordinatorState, HangReports, Phase
from understudy_sidecar.membership.roster import MemberRecord

#: Launchers check twice a second, and write the stacks of their workers before they report.
GATHER_S = 3.0
#: A launcher has its workers write one after the other, which takes 6 s at most.
STACKS_S = 8.0
UNCERTAIN = "it is not known which pod hangs"


def expect_step(state: CoordinatorState, now: float) -> None:
    """A round begins, or continues under a new coordinator."""
    has_limit = state.shape.start_timeout_s > 0 and state.stepped != state.token
    state.start_expires = now + state.shape.start_timeout_s if has_limit else None


def on_hung(state: CoordinatorState, member: MemberRecord, hung: m.Hung, now: float) -> None:
    asked = state.hang_reports is not None and state.hang_reports.before_first_step
    if hung.step < 0 and not asked:
        return  # a step has ended the request for stacks
    if state.hang_reports is None:
        state.hang_reports = HangReports(now + GATHER_S)
        state.log(f"{member.name} reports that its workers hang: no step for {hung.silent_s:.0f} s")
    state.hang_reports.reports[member.uid] = hung


def on_step(state: CoordinatorState, member: MemberRecord) -> None:
    """A worker of this member has made a step."""
    state.start_expires = None
    if state.hang_reports is not None and state.hang_reports.before_first_step:
        state.hang_reports = None
    if state.hang_reports is not None:
        state.hang_reports.reports.pop(member.uid, None)


def on_worker_failed(state: CoordinatorState, member: MemberRecord, failed: m.WorkerFailed, now: float) -> None:
    """Check the hang reports first: the worker may have failed in a collective because another one hangs."""
    faults.mark_failed(state, member)
    if not _decide_from_reports(state, now):
        escalation.on_worker_failed(state, member, failed, failed.message, now)


def deadline(state: CoordinatorState) -> float | None:
    if state.hang_reports is not None:
        return state.hang_reports.until
    return state.start_expires if state.phase is Phase.RUNNING else None


def on_time(state: CoordinatorState, now: float) -> None:
    if state.phase is not Phase.RUNNING:
        state.hang_reports = state.start_expires = None
        return
    if state.start_expires is not None and now >= state.start_expires:
        _request_stacks(state, now)
    if state.hang_reports is None:
        return
    roster = state.roster
    if now >= state.hang_reports.until or len(state.hang_reports.reports) + len(roster.finished) >= len(roster.holders):
        _decide_from_reports(state, now)


def _decide_from_reports(state: CoordinatorState, now: float) -> bool:
    """Decide from the reports so far. False if no worker hangs."""
    if state.hang_reports is not None and state.hang_reports.before_first_step:
        return _decide_without_step(state, state.hang_reports.reports, now)
    reports, state.hang_reports = ({} if state.hang_reports is None else state.hang_reports.reports), None
    hung = [(state.roster.members[uid], message) for uid, message in reports.items() if uid in state.roster.members]
    if not hung:
        return False
    if not faults.is_consequence(state, now):
        member, slowest = min(hung, key=lambda x: (x[1].step, x[1].at, x[0].group_rank))
        cause = _cause(state, member, slowest, [x.step for _, x in hung if x is not slowest])
        keep_reason = "" if _is_certain(state, hung, slowest) else UNCERTAIN
        escalation.open_worker_fault(state, Fault.HANG, member, cause, now, keep_reason=keep_reason)
    return True


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
    if state.stepped == state.token:  # a member has reported a step in its Join
        state.start_expires = None
    elif not state.has_majority():
        state.start_expires = now + GATHER_S
    else:
        state.start_expires, state.hang_reports = None, HangReports(now + STACKS_S, before_first_step=True)
        active = state.roster.active_members()
        state.broadcast([x.link for x in active if x.link is not None], m.WriteStacks(state.token))
        state.log(
            f"no step within {now - state.formed_at:.0f} s: asks the launchers of {len(active)} members for stacks"
        )


def _decide_without_step(state: CoordinatorState, reports: dict[str, m.Hung], now: float) -> bool:
    """False if no worker hangs."""
    state.hang_reports = None
    active = [x for x in state.roster.active_members() if x.workers not in (WorkersState.FAILED, WorkersState.FINISHED)]
    if state.stepped == state.token or not active:
        return False
    if faults.is_consequence(state, now):
        return True
    without_answer = [x for x in active if x.uid not in reports]
    not_started = [x for x in without_answer if x.uid in state.roster.starting]
    local_rank = 0
    if len(not_started) == len(without_answer) == 1 < len(active):
        reason = f"its workers have not started within {now - state.formed_at:.0f} s"
        leaving.replace_pods(state, not_started, reason, now)
        return True
    if not_started:
        member, why = not_started[0], "its workers have not started"
    elif without_answer:
        member, why = without_answer[0], "its launcher did not answer"
    else:
        member = min(active, key=lambda x: (reports[x.uid].silent_s, x.group_rank))
        why, local_rank = "its workers started last", reports[member.uid].local_rank
    rank = (member.group_rank or 0) * state.shape.nproc_per_node + local_rank
    message = f"no step for {now - state.formed_at:.0f} s since the start; first suspect: rank {rank} ({why})"
    if state.stepped == NO_ROUND:
        message += "; unset faults.hang.startTimeout if the script never calls step()"
    cause = Cause(rank, member.name, member.node, None, None, message)
    escalation.open_worker_fault(state, Fault.HANG, member, cause, now, keep_reason=UNCERTAIN)
    return True

"""Drills: the coordinator breaks a worker on purpose, because the operator orders it (spec.drills).

Rules: only in the round that the order names, once, and only while all of its workers run and nothing else is decided:
otherwise nothing is broken. Only while the budget has a restart left, because the recovery is charged. The first fault
of a worker in that round counts as the drill's: it never counts against a pod or a rank (escalation.py). The round is
part of the history, so the next coordinator knows the drill, too.
"""

from understudy_protocol import membership as m
from understudy_protocol.enums import Drill, WorkersState
from understudy_protocol.observer import DrillOrder
from understudy_protocol.recovery import DrilledRound
from understudy_sidecar.membership import config_change
from understudy_sidecar.membership.coordinator_state import CoordinatorState
from understudy_sidecar.membership.round_state import RoundPhase


def on_order(state: CoordinatorState, order: DrillOrder, now: float) -> None:
    member = state.roster.members.get(order.pod_uid)
    if member is None or state.fault_history.is_drilled(order.token.round):
        return
    reason = _reason_against(state, order, now)
    if reason:
        state.log(f"no drill ({order.drill.value}) on {member.name}: {reason}")
        return
    state.fault_history.drill(DrilledRound(order.token.round, now + order.within_s))
    config_change.send_leader_snapshot(state)  # first: this coordinator may be lost at any moment
    state.send(member, m.BreakWorker(order.token, order.drill))
    state.log(f"a drill ({order.drill.value}) breaks a worker of {member.name} in round {order.token}")


def _reason_against(state: CoordinatorState, order: DrillOrder, now: float) -> str:
    member = state.roster.members[order.pod_uid]
    if state.round.phase is not RoundPhase.RUNNING or order.token != state.round.token:
        return f"round {order.token} does not run"
    is_at_work = member.group_rank is not None and member.link is not None and member.workers is WorkersState.RUNNING
    if not is_at_work or state.roster.starting or state.roster.leaving or state.draining is not None:
        return "its workers do not run, or other members start or leave"
    if order.drill is Drill.HANG and state.round.stepped != order.token:
        return "no worker has made a step in this round, so nothing would detect the hang"
    if not state.fault_history.restarts_left(now):
        return "the budget of restarts is spent"
    return "" if state.has_majority() else "no majority of the voters is connected"

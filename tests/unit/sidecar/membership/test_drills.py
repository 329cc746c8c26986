"""Drills of workers: what the coordinator breaks, and that the fault counts against the budget alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.sidecar.membership.driven import DrivenCoordinator, running
from understudy_protocol import membership as m
from understudy_protocol.enums import Drill, Fault, RoundToken, Strategy
from understudy_protocol.observer import DrillOrder, Nodes
from understudy_protocol.recovery import CountedFault, DrilledRound, History
from understudy_sidecar.membership.events import FromOperator
from understudy_sidecar.membership.fault_history import FaultHistory
from understudy_sidecar.membership.ladder import BudgetLimits

WITHIN_S = 60.0


def order(driven: DrivenCoordinator, pod: str = "active-1", drill: Drill = Drill.PROCESS, **given: Any) -> None:
    token = given.get("token", driven.token)
    driven.do(FromOperator(Nodes((), driven.now, drill=DrillOrder(token, f"uid-{pod}", drill, WITHIN_S))))


def broken(driven: DrivenCoordinator) -> dict[str, list[m.BreakWorker]]:
    found = {name: driven.take(name, m.BreakWorker) for name in list(driven.sent)}
    return {name: messages for name, messages in found.items() if messages}


def counted(driven: DrivenCoordinator) -> list[CountedFault]:
    return driven.coordinator.state.fault_history.in_window(driven.now)


def job(**given: Any) -> DrivenCoordinator:
    return running(3, max_in_place=2, in_place_max_per_pod=1, **given)


def test_a_worker_is_broken_once_in_the_round_of_the_order() -> None:
    driven = job()
    token = driven.token
    order(driven)
    order(driven)
    assert broken(driven) == {"active-1": [m.BreakWorker(token, Drill.PROCESS)]}


def test_the_next_coordinator_knows_of_the_drill_before_the_worker_is_broken() -> None:
    """Found by the simulation (seed 1395921): the coordinator hung at once, and the next one evicted the pod."""
    driven = job()
    driven.later(5.0, "active-0", "active-1", "active-2", "spare-0")  # they become voters
    driven.sent.clear()
    order(driven)
    (snapshot,) = driven.take("spare-0", m.LeaderSnapshot)
    assert snapshot.history.drilled == DrilledRound(driven.token.round, driven.now + WITHIN_S)
    kinds = [type(message) for message in driven.sent["active-1"]]
    assert kinds.index(m.LeaderSnapshot) < kinds.index(m.BreakWorker)


def test_the_fault_of_a_drill_is_charged_to_the_budget_and_to_no_pod_or_rank() -> None:
    driven = job()
    order(driven)
    driven.fail_worker("active-1")
    assert set(driven.assigned()) == {"active-0", "active-1", "active-2"}
    recovery = driven.recovery()
    assert (recovery.fault, recovery.strategy) == (Fault.PROCESS, Strategy.IN_PLACE)
    assert recovery.reason == "a drill: restart 1 of 2 within 1 h"
    assert [(fault.is_charged, fault.pod_uid, fault.rank) for fault in counted(driven)] == [(True, "", None)]
    assert driven.coordinator.snapshot().restarts_left == 1


def test_a_pod_that_has_used_its_share_is_not_evicted_by_a_drill() -> None:
    driven = job()
    driven.fail_worker("active-1")
    driven.report_started("active-0", "active-1", "active-2")
    driven.report_step("active-0", 1)
    order(driven)
    driven.fail_worker("active-1")
    assert [x for x in driven.sent if driven.take(x, m.Evicted)] == []
    assert driven.recovery().strategy is Strategy.IN_PLACE


def test_the_next_fault_of_the_same_pod_is_its_first() -> None:
    driven = job()
    order(driven)
    driven.fail_worker("active-1")
    driven.report_started("active-0", "active-1", "active-2")
    driven.report_step("active-0", 1)
    driven.fail_worker("active-1")
    assert driven.recovery().reason == "restart 2 of 2 within 1 h"
    assert [fault.pod_uid for fault in counted(driven)] == ["", "uid-active-1"]


def test_a_fault_long_after_an_order_is_not_the_drills() -> None:
    driven = job()
    order(driven)
    driven.later(WITHIN_S + 1, "active-0", "active-1", "active-2", "spare-0")
    driven.fail_worker("active-1")
    assert driven.recovery().reason == "restart 1 of 2 within 1 h"


@pytest.mark.parametrize("obstacle", ["another round", "a spare", "an unknown pod", "a member that starts", "a drain"])
def test_nothing_is_broken_unless_the_round_runs_undisturbed(obstacle: str) -> None:
    driven = job()
    match obstacle:
        case "another round":
            order(driven, token=RoundToken(1, 1, driven.token.round + 1))
        case "a spare":
            order(driven, "spare-0")
        case "an unknown pod":
            order(driven, "nobody")
        case "a member that starts":
            driven.fail_worker("active-0")
            order(driven)
        case "a drain":
            driven.receive("active-0", m.Leaving("SIGTERM", 30.0))
            order(driven)
    assert broken(driven) == {}


def test_no_worker_is_stopped_before_the_first_step_of_the_round() -> None:
    driven = job()
    driven.fail_worker("active-0")
    driven.report_started("active-0", "active-1", "active-2")
    order(driven, drill=Drill.HANG)
    assert broken(driven) == {}
    driven.report_step("active-0", 1)
    order(driven, drill=Drill.HANG)
    assert list(broken(driven)) == ["active-1"]


def test_nothing_is_broken_once_the_budget_is_spent() -> None:
    driven = running(3, max_in_place=0)
    order(driven)
    assert broken(driven) == {}


def test_the_next_coordinator_knows_the_drill() -> None:
    driven = job()
    order(driven)
    history = driven.coordinator.leader_snapshot().history
    assert history is not None
    assert history.drilled == DrilledRound(driven.token.round, driven.now + WITHIN_S)
    learned = FaultHistory(BudgetLimits(2, 3600.0, 1))
    learned.restore(history)
    assert learned.is_of_drill(driven.token.round, driven.now + WITHIN_S)
    # an older history does not replace it
    older = History(history.term, history.number + 1, (), {}, (), 0, DrilledRound(-1, driven.now + 999))
    learned.restore(older)
    assert learned.drilled == history.drilled

"""A job that may shrink: when it continues with fewer members, which members move, and when it grows back."""

from __future__ import annotations

import pytest

from tests.unit.sidecar.membership.driven import DrivenCoordinator, running
from understudy_protocol import membership as m
from understudy_protocol.enums import RoundToken, WorkersState
from understudy_protocol.observer import NodeFact, Nodes
from understudy_sidecar.membership.events import FromOperator
from understudy_sidecar.membership.round_state import RoundPhase

SPARE_TIMEOUT_S = 30.0
SURVIVORS = ("active-1", "active-2", "active-3")


def shrinkable(min_actives: int = 2) -> DrivenCoordinator:
    return running(4, spares=0, min_actives=min_actives)


def shrunk() -> DrivenCoordinator:
    driven = shrinkable()
    driven.drop("active-1")
    driven.later(SPARE_TIMEOUT_S + 1, "active-0", "active-2", "active-3")
    driven.report_started("active-0", "active-2", "active-3")
    driven.report_step("active-0")
    return driven


def test_it_waits_for_a_spare_first() -> None:
    driven = shrinkable()
    driven.drop("active-0")
    driven.later(SPARE_TIMEOUT_S - 1, *SURVIVORS)
    assert driven.assigned() == {}
    driven.join("spare-9")
    assert driven.assigned() == {"spare-9": 0, "active-1": 1, "active-2": 2, "active-3": 3}


def test_then_it_continues_and_moves_as_few_members_as_possible() -> None:
    driven = shrinkable()
    driven.drop("active-0")
    driven.later(SPARE_TIMEOUT_S + 1, *SURVIVORS)
    (assign,) = driven.take("active-1", m.Assign)
    assert (assign.group_world_size, assign.world_size) == (3, 3)
    assert driven.assigned() == {"active-2": 2, "active-3": 0}
    assert driven.coordinator.snapshot().actives == 3


@pytest.mark.parametrize(("minimum", "goes_on"), [(3, True), (4, False), (0, False)])
def test_it_does_not_shrink_below_its_minimum(minimum: int, goes_on: bool) -> None:
    driven = shrinkable(minimum)
    driven.drop("active-0")
    driven.later(3 * SPARE_TIMEOUT_S, *SURVIVORS)
    assert bool(driven.assigned()) is goes_on


def test_a_shrunken_job_restarts_in_place_without_waiting_again() -> None:
    driven = shrunk()
    driven.assigned()
    driven.fail_worker("active-0")
    assert driven.assigned() == {"active-0": 0, "active-2": 2, "active-3": 1}


def test_it_grows_back_at_the_next_round() -> None:
    driven = shrunk()
    driven.assigned()
    driven.join("spare-9")
    assert driven.assigned() == {}
    driven.fail_worker("active-0")
    assert driven.assigned() == {"active-0": 0, "active-3": 1, "active-2": 2, "spare-9": 3}


def test_all_members_of_the_smaller_round_finish_the_job() -> None:
    driven = shrunk()
    for name in ("active-0", "active-2", "active-3"):
        driven.receive(name, m.Finished(driven.token))
    driven.answer_heartbeats("active-0", "active-2", "active-3")
    assert driven.coordinator.closed is not None


def test_a_surplus_member_waits_and_closes_nothing() -> None:
    driven = running(2, spares=1)
    for name in ("active-5", "spare-6", "spare-7"):
        driven.join(name)
    assert driven.assigned() == {}
    assert driven.coordinator.closed is None


def test_a_new_coordinator_adopts_a_smaller_round() -> None:
    driven = DrivenCoordinator(4, epoch=2, at_least_round=3, min_actives=2)
    for name, rank in (("active-0", 0), ("active-1", 1), ("active-2", 2)):
        driven.join(name, RoundToken(1, 1, 3), rank, WorkersState.RUNNING, group_world_size=3)
    assert driven.coordinator.phase is RoundPhase.RUNNING
    assert driven.coordinator.snapshot().actives == 3


def test_a_member_on_a_faulty_node_gets_no_rank_until_the_verdict_expires() -> None:
    driven = running()
    driven.do(FromOperator(Nodes((NodeFact("node-of-spare-0", hardware_finding="XID 79", until=driven.now + 60.0),))))
    driven.drop("active-0")
    assert driven.assigned() == {}
    driven.later(61.0, "active-1", "spare-0")
    driven.join("spare-9")
    assert driven.assigned() == {"spare-0": 0, "active-1": 1}


def test_a_spare_in_the_same_topology_domain_comes_first() -> None:
    driven = running(spares=0)
    domains = {"node-of-active-0": "rack-1", "node-of-spare-0": "rack-2", "node-of-spare-1": "rack-1"}
    driven.do(FromOperator(Nodes(tuple(NodeFact(node, domain) for node, domain in domains.items()))))
    driven.join("spare-0")
    driven.join("spare-1")
    driven.assigned()
    driven.drop("active-0")
    assert driven.assigned() == {"spare-1": 0, "active-1": 1}

"""A job that may shrink: when it goes on with fewer members, who moves, and when it grows back."""

from __future__ import annotations

import pytest

from tests.unit.sidecar.membership.driven import Driven, running
from understudy_protocol import membership as m
from understudy_protocol.observer import NodeFact, Nodes
from understudy_protocol.words import RoundToken, WorkersState
from understudy_sidecar.membership.desk import State
from understudy_sidecar.membership.events import Told

SPARE_TIMEOUT_S = 30.0
SURVIVORS = ("active-1", "active-2", "active-3")


def shrinkable(min_actives: int = 2) -> Driven:
    return running(4, spares=0, min_actives=min_actives)


def shrunk() -> Driven:
    office = shrinkable()
    office.drop("active-1")
    office.later(SPARE_TIMEOUT_S + 1, "active-0", "active-2", "active-3")
    office.started("active-0", "active-2", "active-3")
    office.stepped("active-0")
    return office


def test_it_waits_for_a_spare_first() -> None:
    office = shrinkable()
    office.drop("active-0")
    office.later(SPARE_TIMEOUT_S - 1, *SURVIVORS)
    assert office.assigned() == {}
    office.join("spare-9")
    assert office.assigned() == {"spare-9": 0, "active-1": 1, "active-2": 2, "active-3": 3}


def test_then_it_goes_on_and_only_who_must_moves_down() -> None:
    office = shrinkable()
    office.drop("active-0")
    office.later(SPARE_TIMEOUT_S + 1, *SURVIVORS)
    (assign,) = office.take("active-1", m.Assign)
    assert (assign.group_world_size, assign.world_size) == (3, 3)
    assert office.assigned() == {"active-2": 2, "active-3": 0}
    assert office.coordinator.snapshot().actives == 3


@pytest.mark.parametrize(("minimum", "goes_on"), [(3, True), (4, False), (0, False)])
def test_not_below_its_minimum(minimum: int, goes_on: bool) -> None:
    office = shrinkable(minimum)
    office.drop("active-0")
    office.later(3 * SPARE_TIMEOUT_S, *SURVIVORS)
    assert bool(office.assigned()) is goes_on


def test_a_shrunken_job_restarts_in_place_without_waiting_again() -> None:
    office = shrunk()
    office.assigned()
    office.worker_fails("active-0")
    assert office.assigned() == {"active-0": 0, "active-2": 2, "active-3": 1}


def test_it_grows_back_at_the_next_round() -> None:
    office = shrunk()
    office.assigned()
    office.join("spare-9")
    assert office.assigned() == {}
    office.worker_fails("active-0")
    assert office.assigned() == {"active-0": 0, "active-3": 1, "active-2": 2, "spare-9": 3}


def test_all_of_the_smaller_round_finish_the_job() -> None:
    office = shrunk()
    for name in ("active-0", "active-2", "active-3"):
        office.hear(name, m.Finished(office.token))
    assert office.coordinator.closed is not None


def test_a_surplus_member_waits_and_closes_nothing() -> None:
    office = running(2, spares=1)
    for name in ("active-5", "spare-6", "spare-7"):
        office.join(name)
    assert office.assigned() == {}
    assert office.coordinator.closed is None


def test_a_new_coordinator_adopts_a_smaller_round() -> None:
    office = Driven(4, epoch=2, at_least_round=3, min_actives=2)
    for name, rank in (("active-0", 0), ("active-1", 1), ("active-2", 2)):
        office.join(name, RoundToken(1, 1, 3), rank, WorkersState.RUNNING, world=3)
    assert office.coordinator.state is State.RUNNING
    assert office.coordinator.snapshot().actives == 3


def test_nobody_on_a_faulty_node_gets_a_rank_until_the_verdict_expires() -> None:
    office = running()
    office.do(Told(Nodes((NodeFact("node-of-spare-0", faulty="XID 79", until=office.now + 60.0),))))
    office.drop("active-0")
    assert office.assigned() == {}
    office.later(61.0, "active-1", "spare-0")
    office.join("spare-9")
    assert office.assigned() == {"spare-0": 0, "active-1": 1}


def test_a_spare_of_the_same_topology_domain_comes_first() -> None:
    office = running(spares=0)
    domains = {"node-of-active-0": "rack-1", "node-of-spare-0": "rack-2", "node-of-spare-1": "rack-1"}
    office.do(Told(Nodes(tuple(NodeFact(node, domain) for node, domain in domains.items()))))
    office.join("spare-0")
    office.join("spare-1")
    office.assigned()
    office.drop("active-0")
    assert office.assigned() == {"spare-1": 0, "active-1": 1}

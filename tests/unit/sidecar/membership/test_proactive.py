"""faults.proactive: a member on a node that has turned bad gives its ranks to a spare before it fails."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.sidecar.membership.driven import Driven, running
from understudy_protocol import membership as m
from understudy_protocol.observer import NodeFact, Nodes
from understudy_protocol.words import Fault, FaultClass, Proactive, Strategy, Verdict
from understudy_sidecar.membership.events import Told

GRACE_S = 30.0
PAIRS = ((0, 1), (2, 3), (4, 5))
EVERYBODY = ("active-0", "active-1", "active-2", "spare-0")


def job(proactive: Proactive, **given: Any) -> Driven:
    return running(3, proactive=proactive, grace_s=GRACE_S, **given)


def broken(name: str, **also: Any) -> NodeFact:
    return NodeFact(f"node-of-{name}", faulty="gpu-xid: Xid 79", fault_class=FaultClass.HARDWARE, **also)


def goes(name: str, fault_class: FaultClass = FaultClass.MAINTENANCE, **also: Any) -> NodeFact:
    return NodeFact(f"node-of-{name}", fault_class=fault_class, going="gke-maintenance: ONGOING", **also)


def tell(office: Driven, *facts: NodeFact) -> None:
    office.do(Told(Nodes(facts, office.now)))


def drained(office: Driven, *names: str) -> None:
    for name in names:
        office.hear(name, m.Drained(office.token))


def drains(office: Driven) -> dict[str, float]:
    """Who was told to drain, and for how long."""
    found = {name: office.take(name, m.Drain) for name in list(office.sent)}
    return {name: round(told[-1].grace_s, 3) for name, told in found.items() if told}


def given_up(office: Driven) -> list[str]:
    return [name for name in list(office.sent) if office.take(name, m.GivenUp)]


def test_off_nobody_is_swapped() -> None:
    office = job(Proactive.OFF)
    tell(office, broken("active-1"))
    office.later(60, *EVERYBODY)
    assert (office.assigned(), given_up(office), drains(office)) == ({}, [], {})


@pytest.mark.parametrize("fact", [broken("active-1"), goes("active-1")])
def test_now_it_is_swapped_at_once_and_nobody_saves(fact: NodeFact) -> None:
    office = job(Proactive.NOW)
    tell(office, fact)
    assert given_up(office) == ["active-1"]
    assert drains(office) == {}
    assert office.assigned() == {"active-0": 0, "spare-0": 1, "active-2": 2}
    recovery = office.recovery()
    assert (recovery.fault, recovery.strategy, recovery.cause.pod) == (Fault.NODE, Strategy.SPARE_SWAP, "active-1")
    assert (fact.faulty or fact.going) in recovery.cause.message


def test_before_maintenance_all_save_first_and_then_it_is_swapped() -> None:
    office = job(Proactive.NEXT_CHECKPOINT)
    tell(office, goes("active-1"))
    assert drains(office) == dict.fromkeys(("active-0", "active-1", "active-2"), GRACE_S - 2)
    drained(office, "active-0", "active-2")
    assert (office.assigned(), given_up(office)) == ({}, [])  # it still saves
    drained(office, "active-1")
    assert given_up(office) == ["active-1"]
    assert office.assigned() == {"active-0": 0, "spare-0": 1, "active-2": 2}
    assert "Maintenance: gke-maintenance: ONGOING" in office.recovery().cause.message


def test_it_may_save_before_the_others_have() -> None:
    office = job(Proactive.NEXT_CHECKPOINT)
    tell(office, goes("active-1"))
    drained(office, "active-1")
    assert given_up(office) == ["active-1"]
    assert office.assigned() == {}  # the others still save
    drained(office, "active-0", "active-2")
    assert office.assigned() == {"active-0": 0, "spare-0": 1, "active-2": 2}


def test_whoever_takes_longer_than_the_grace_is_not_waited_for() -> None:
    office = job(Proactive.NEXT_CHECKPOINT)
    tell(office, goes("active-1"))
    drained(office, "active-0", "active-2")
    office.later(GRACE_S - 1.9, *EVERYBODY)
    assert given_up(office) == ["active-1"]
    assert office.assigned() == {"active-0": 0, "spare-0": 1, "active-2": 2}
    assert office.lost() == {"active-1": "Process"}
    assert "its grace is over" in office.recovery().cause.message


def test_before_a_preemption_there_is_only_the_little_grace_of_the_node() -> None:
    office = job(Proactive.NEXT_CHECKPOINT)
    tell(office, goes("active-1", FaultClass.PREEMPTION, grace_s=10.0))
    assert drains(office) == dict.fromkeys(("active-0", "active-1", "active-2"), 9.0)


def test_broken_hardware_saves_nothing_and_without_its_shards_nobody_does() -> None:
    office = job(Proactive.NEXT_CHECKPOINT)
    tell(office, broken("active-1"))
    assert (given_up(office), drains(office)) == (["active-1"], {})
    assert office.assigned() == {"active-0": 0, "spare-0": 1, "active-2": 2}


def test_where_the_others_hold_its_shards_they_save_first() -> None:
    office = job(Proactive.NEXT_CHECKPOINT, replica_groups=((0, 1, 2),))
    tell(office, broken("active-1"))
    assert given_up(office) == ["active-1"]
    assert set(drains(office)) == {"active-0", "active-2"}
    assert office.assigned() == {}
    drained(office, "active-0", "active-2")
    assert office.assigned() == {"active-0": 0, "spare-0": 1, "active-2": 2}


@pytest.mark.parametrize("proactive", [Proactive.NOW, Proactive.NEXT_CHECKPOINT])
def test_without_a_spare_it_trains_on_until_there_is_one(proactive: Proactive) -> None:
    office = job(proactive, spares=0)
    tell(office, broken("active-1"))
    assert given_up(office) == []
    office.join("spare-7")
    assert given_up(office) == ["active-1"]
    assert office.assigned() == {"active-0": 0, "spare-7": 1, "active-2": 2}


@pytest.mark.parametrize("fact", [broken("spare-0"), goes("spare-0")])
def test_a_spare_on_a_bad_node_is_none(fact: NodeFact) -> None:
    office = job(Proactive.NOW)
    tell(office, broken("active-1"), fact)
    assert (given_up(office), office.assigned()) == ([], {})


def test_as_many_go_at_once_as_there_are_spares_broken_hardware_first() -> None:
    office = job(Proactive.NOW, spares=2)
    tell(office, goes("active-0"), broken("active-1"), broken("active-2"))
    assert sorted(given_up(office)) == ["active-1", "active-2"]
    assigned = office.assigned()
    assert assigned["active-0"] == 0
    assert {assigned["spare-0"], assigned["spare-1"]} == {1, 2}
    assert office.coordinator.state.value == "running"


def test_all_members_on_broken_hardware_go_at_once_with_one_save_of_the_others() -> None:
    """Found by the simulation (seed 89610): each of five cost the others a save of its own, of 28 s."""
    # given a job of three replica groups, two of whose members are on broken hardware, and two spares
    office = running(6, spares=2, proactive=Proactive.NEXT_CHECKPOINT, grace_s=GRACE_S, replica_groups=PAIRS)
    # when the operator tells of both nodes
    tell(office, broken("active-1"), broken("active-2"))
    # then both are replaced, and the others save once
    assert given_up(office) == ["active-1", "active-2"]
    others = ("active-0", "active-3", "active-4", "active-5")
    assert drains(office) == dict.fromkeys(others, GRACE_S - 2)
    drained(office, *others)
    assert office.assigned() == {"active-0": 0, "active-3": 3, "active-4": 4, "active-5": 5, "spare-0": 1, "spare-1": 2}


def test_a_verdict_that_has_expired_swaps_nobody() -> None:
    office = job(Proactive.NOW, spares=0)
    tell(office, broken("active-1", until=office.now + 5))
    office.later(6, *EVERYBODY[:3])
    office.join("spare-7")
    assert given_up(office) == []


def test_a_round_that_is_just_starting_is_waited_for() -> None:
    office = job(Proactive.NOW, spares=2)
    office.worker_fails("active-0")
    assert len(office.assigned()) == 3
    tell(office, broken("active-1"))
    assert given_up(office) == []
    office.started("active-0", "active-1", "active-2")
    assert given_up(office) == ["active-1"]


def test_what_a_swap_costs_is_nothing_of_the_budget() -> None:
    office = job(Proactive.NOW, max_in_place=0)
    tell(office, broken("active-1"))
    office.started("active-0", "spare-0", "active-2")
    office.stepped("active-0", 2, pause_s=0.5)
    assert office.coordinator.closed is None
    assert office.recovery().resumed_at is not None
    assert office.coordinator.desk.offences.within(office.now) == []


def test_one_that_is_lost_while_it_saves_is_lost_once() -> None:
    office = job(Proactive.NEXT_CHECKPOINT)
    tell(office, goes("active-1"))
    office.drop("active-1")
    drained(office, "active-0", "active-2")
    assert office.assigned() == {"active-0": 0, "spare-0": 1, "active-2": 2}
    assert [x.cause.pod for x in office.coordinator.snapshot().recoveries] == ["active-1"]


# What members bring back ---------------------------------------------------------------------------------------------


def test_before_the_operator_has_told_anything_a_coordinator_goes_by_what_members_were_told() -> None:
    """The operator may be away: nobody is given ranks on hardware that is known to be broken."""
    office = job(Proactive.OFF, spares=0)
    verdict = m.NodeVerdict(Verdict.FAULTY, "gpu-xid: Xid 79", None, FaultClass.HARDWARE, at=office.now - 60)
    office.join("spare-8", verdict=verdict)
    office.drop("active-1")
    office.later(1, *EVERYBODY)
    assert office.assigned() == {}
    office.join("spare-9")
    assert office.assigned() == {"active-0": 0, "spare-9": 1, "active-2": 2}


def test_what_the_operator_tells_takes_its_place() -> None:
    office = job(Proactive.OFF, spares=0)
    verdict = m.NodeVerdict(Verdict.FAULTY, "gpu-xid: Xid 79", None, FaultClass.HARDWARE, at=office.now - 60)
    office.join("spare-8", verdict=verdict)
    office.drop("active-1")
    tell(office)
    assert office.assigned() == {"active-0": 0, "spare-8": 1, "active-2": 2}


def test_a_round_that_waits_goes_on_when_a_verdict_expires() -> None:
    office = job(Proactive.OFF)
    tell(office, broken("spare-0", until=office.now + 5))
    office.drop("active-1")
    office.later(4, *EVERYBODY)
    assert office.assigned() == {}
    office.later(2, *EVERYBODY)
    assert office.assigned() == {"active-0": 0, "spare-0": 1, "active-2": 2}

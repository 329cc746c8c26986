"""faults.proactiveReplacement: a member on a node that has turned bad gives its ranks to a spare before it fails."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.sidecar.membership.driven import DrivenCoordinator, running
from understudy_protocol import membership as m
from understudy_protocol.enums import Fault, FaultClass, Proactive, Strategy, Verdict
from understudy_protocol.observer import DrainRequest, NodeFact, Nodes
from understudy_sidecar.membership.events import FromOperator

GRACE_S = 30.0
PAIRS = ((0, 1), (2, 3), (4, 5))
ALL_MEMBERS = ("active-0", "active-1", "active-2", "spare-0")


ALL_ACTIVES = ("active-0", "active-1", "active-2")


def job(proactive: Proactive, **given: Any) -> DrivenCoordinator:
    return running(3, proactive=proactive, grace_s=GRACE_S, **given)


def broken(name: str, **also: Any) -> NodeFact:
    return NodeFact(f"node-of-{name}", hardware_finding="gpu-xid: Xid 79", fault_class=FaultClass.HARDWARE, **also)


def goes(name: str, fault_class: FaultClass = FaultClass.MAINTENANCE, **also: Any) -> NodeFact:
    return NodeFact(f"node-of-{name}", fault_class=fault_class, leaving_reason="gke-maintenance: ONGOING", **also)


def send_nodes(driven: DrivenCoordinator, *facts: NodeFact) -> None:
    driven.do(FromOperator(Nodes(facts, driven.now)))


def drained(driven: DrivenCoordinator, *names: str) -> None:
    for name in names:
        driven.receive(name, m.Drained(driven.token))


def drains(driven: DrivenCoordinator) -> dict[str, float]:
    """The pods that received a Drain, with its grace period."""
    found = {name: driven.take(name, m.Drain) for name in list(driven.sent)}
    return {name: round(reported[-1].grace_s, 3) for name, reported in found.items() if reported}


def evicted(driven: DrivenCoordinator) -> list[str]:
    return [name for name in list(driven.sent) if driven.take(name, m.Evicted)]


def test_off_replaces_no_member() -> None:
    driven = job(Proactive.OFF)
    send_nodes(driven, broken("active-1"))
    driven.later(60, *ALL_MEMBERS)
    assert (driven.assigned(), evicted(driven), drains(driven)) == ({}, [], {})


@pytest.mark.parametrize("fact", [broken("active-1"), goes("active-1")])
def test_now_replaces_the_member_at_once_without_a_save(fact: NodeFact) -> None:
    driven = job(Proactive.NOW)
    send_nodes(driven, fact)
    assert evicted(driven) == ["active-1"]
    assert drains(driven) == {}
    assert driven.assigned() == {"active-0": 0, "spare-0": 1, "active-2": 2}
    recovery = driven.recovery()
    assert (recovery.fault, recovery.strategy, recovery.cause.pod) == (Fault.NODE, Strategy.SPARE_SWAP, "active-1")
    assert (fact.hardware_finding or fact.leaving_reason) in recovery.cause.message


def test_a_swap_whose_spare_is_lost_meanwhile_keeps_its_reason() -> None:
    # given a member that is drained because its node ends, and a spare that is lost while all save
    driven = job(Proactive.NEXT_CHECKPOINT)
    send_nodes(driven, goes("active-1"))
    driven.drop("spare-0")
    drained(driven, *ALL_ACTIVES)
    # when another pod takes its ranks
    driven.join("spare-1")
    # then the reason begins with the swap: the operator does not count it against the node
    assert driven.recovery().reason == "it is swapped before it fails; no spare was available"


def test_before_maintenance_all_save_first_and_then_the_member_is_replaced() -> None:
    driven = job(Proactive.NEXT_CHECKPOINT)
    send_nodes(driven, goes("active-1"))
    assert drains(driven) == dict.fromkeys(("active-0", "active-1", "active-2"), GRACE_S - 2)
    drained(driven, "active-0", "active-2")
    assert (driven.assigned(), evicted(driven)) == ({}, [])  # active-1 still saves
    drained(driven, "active-1")
    assert evicted(driven) == ["active-1"]
    assert driven.assigned() == {"active-0": 0, "spare-0": 1, "active-2": 2}
    assert "Maintenance: gke-maintenance: ONGOING" in driven.recovery().cause.message


def test_the_member_is_evicted_when_it_has_saved_before_the_others() -> None:
    driven = job(Proactive.NEXT_CHECKPOINT)
    send_nodes(driven, goes("active-1"))
    drained(driven, "active-1")
    assert evicted(driven) == ["active-1"]
    assert driven.assigned() == {}  # the others still save
    drained(driven, "active-0", "active-2")
    assert driven.assigned() == {"active-0": 0, "spare-0": 1, "active-2": 2}


def test_a_member_that_saves_for_longer_than_the_grace_is_evicted() -> None:
    driven = job(Proactive.NEXT_CHECKPOINT)
    send_nodes(driven, goes("active-1"))
    drained(driven, "active-0", "active-2")
    driven.later(GRACE_S - 1.9, *ALL_MEMBERS)
    assert evicted(driven) == ["active-1"]
    assert driven.assigned() == {"active-0": 0, "spare-0": 1, "active-2": 2}
    assert driven.lost_pods() == {"active-1": "Process"}
    assert "its grace is over" in driven.recovery().cause.message


def test_a_coordinator_without_a_majority_evicts_no_drained_member() -> None:
    """Found by the simulation (seed 1151953): its successor evicted the member from a later round."""
    driven = job(Proactive.NEXT_CHECKPOINT)
    send_nodes(driven, goes("active-1"))
    # given a coordinator that did not run, and asks its members whether they still follow it
    driven.now += 20.0
    drained(driven, "active-1")
    driven.later(GRACE_S - 20.0, "active-1")
    assert evicted(driven) == []
    # when they do, then the grace is over
    driven.answer_heartbeats(*ALL_MEMBERS)
    driven.later(0.1, *ALL_MEMBERS)
    assert evicted(driven) == ["active-1"]


def test_before_a_preemption_the_grace_of_the_node_limits_the_save() -> None:
    driven = job(Proactive.NEXT_CHECKPOINT)
    send_nodes(driven, goes("active-1", FaultClass.PREEMPTION, grace_s=10.0))
    assert drains(driven) == dict.fromkeys(("active-0", "active-1", "active-2"), 9.0)


def test_a_member_on_broken_hardware_saves_nothing_and_without_its_shards_no_member_does() -> None:
    driven = job(Proactive.NEXT_CHECKPOINT)
    send_nodes(driven, broken("active-1"))
    assert (evicted(driven), drains(driven)) == (["active-1"], {})
    assert driven.assigned() == {"active-0": 0, "spare-0": 1, "active-2": 2}


def test_if_the_others_have_its_shards_they_save_first() -> None:
    driven = job(Proactive.NEXT_CHECKPOINT, replica_groups=((0, 1, 2),))
    send_nodes(driven, broken("active-1"))
    assert evicted(driven) == ["active-1"]
    assert set(drains(driven)) == {"active-0", "active-2"}
    assert driven.assigned() == {}
    drained(driven, "active-0", "active-2")
    assert driven.assigned() == {"active-0": 0, "spare-0": 1, "active-2": 2}


@pytest.mark.parametrize("proactive", [Proactive.NOW, Proactive.NEXT_CHECKPOINT])
def test_without_a_spare_the_member_trains_on_until_there_is_one(proactive: Proactive) -> None:
    driven = job(proactive, spares=0)
    send_nodes(driven, broken("active-1"))
    assert evicted(driven) == []
    driven.join("spare-7")
    assert evicted(driven) == ["active-1"]
    assert driven.assigned() == {"active-0": 0, "spare-7": 1, "active-2": 2}


@pytest.mark.parametrize("fact", [broken("spare-0"), goes("spare-0")])
def test_a_spare_on_a_bad_node_does_not_count(fact: NodeFact) -> None:
    driven = job(Proactive.NOW)
    send_nodes(driven, broken("active-1"), fact)
    assert (evicted(driven), driven.assigned()) == ([], {})


def test_as_many_members_are_replaced_at_once_as_there_are_spares_broken_hardware_first() -> None:
    driven = job(Proactive.NOW, spares=2)
    send_nodes(driven, goes("active-0"), broken("active-1"), broken("active-2"))
    assert sorted(evicted(driven)) == ["active-1", "active-2"]
    assigned = driven.assigned()
    assert assigned["active-0"] == 0
    assert {assigned["spare-0"], assigned["spare-1"]} == {1, 2}
    assert driven.coordinator.phase.value == "running"


def test_all_members_on_broken_hardware_are_replaced_at_once_with_one_save_of_the_others() -> None:
    """Found by the simulation (seed 89610): each of five members caused another save of the others, of 28 s."""
    # given a job of three replica groups, two of whose members are on broken hardware, and two spares
    driven = running(6, spares=2, proactive=Proactive.NEXT_CHECKPOINT, grace_s=GRACE_S, replica_groups=PAIRS)
    # when the operator reports both nodes
    send_nodes(driven, broken("active-1"), broken("active-2"))
    # then both are replaced, and the others save once
    assert evicted(driven) == ["active-1", "active-2"]
    others = ("active-0", "active-3", "active-4", "active-5")
    assert drains(driven) == dict.fromkeys(others, GRACE_S - 2)
    drained(driven, *others)
    assert driven.assigned() == {"active-0": 0, "active-3": 3, "active-4": 4, "active-5": 5, "spare-0": 1, "spare-1": 2}


def test_an_expired_verdict_replaces_no_member() -> None:
    driven = job(Proactive.NOW, spares=0)
    send_nodes(driven, broken("active-1", until=driven.now + 5))
    driven.later(6, *ALL_MEMBERS[:3])
    driven.join("spare-7")
    assert evicted(driven) == []


def test_the_replacement_waits_for_a_round_that_is_just_starting() -> None:
    driven = job(Proactive.NOW, spares=2)
    driven.fail_worker("active-0")
    assert len(driven.assigned()) == 3
    send_nodes(driven, broken("active-1"))
    assert evicted(driven) == []
    driven.report_started("active-0", "active-1", "active-2")
    assert evicted(driven) == ["active-1"]


def test_a_proactive_replacement_is_not_charged() -> None:
    driven = job(Proactive.NOW, max_in_place=0)
    send_nodes(driven, broken("active-1"))
    driven.report_started("active-0", "spare-0", "active-2")
    driven.report_step("active-0", 2, pause_s=0.5)
    assert driven.coordinator.closed is None
    assert driven.recovery().resumed_at is not None
    assert driven.coordinator.state.fault_history.in_window(driven.now) == []


def test_a_member_that_is_lost_while_it_saves_is_lost_once() -> None:
    driven = job(Proactive.NEXT_CHECKPOINT)
    send_nodes(driven, goes("active-1"))
    driven.drop("active-1")
    drained(driven, "active-0", "active-2")
    assert driven.assigned() == {"active-0": 0, "spare-0": 1, "active-2": 2}
    assert [x.cause.pod for x in driven.coordinator.snapshot().recoveries] == ["active-1"]


# Pods that users drain ------------------------------------------------------------------------------------------------


def user_drains(driven: DrivenCoordinator, *names: str, facts: tuple[NodeFact, ...] = ()) -> None:
    drains = tuple(DrainRequest(f"uid-{name}", "a new kernel") for name in names)
    driven.do(FromOperator(Nodes(facts, driven.now, drains)))


@pytest.mark.parametrize("proactive", list(Proactive))
def test_a_drained_pod_is_replaced_once_all_have_saved(proactive: Proactive) -> None:
    driven = job(proactive, max_in_place=0)
    user_drains(driven, "active-1")
    assert drains(driven) == dict.fromkeys(("active-0", "active-1", "active-2"), GRACE_S - 2)
    drained(driven, "active-0", "active-1", "active-2")
    assert evicted(driven) == ["active-1"]
    assert driven.assigned() == {"active-0": 0, "spare-0": 1, "active-2": 2}
    # it is the end of a pod, which counts against neither the budget nor the node
    recovery = driven.recovery()
    assert (recovery.fault, recovery.strategy, recovery.cause.rank) == (Fault.POD, Strategy.SPARE_SWAP, 1)
    assert (recovery.reason, recovery.cause.message) == ("a user drains its pod", "its pod is drained: a new kernel")
    assert driven.coordinator.state.fault_history.in_window(driven.now) == []


def test_an_answer_to_the_drain_of_another_round_replaces_no_pod() -> None:
    driven = job(Proactive.OFF)
    user_drains(driven, "active-1")
    driven.receive("active-1", m.Drained(replace(driven.token, round=driven.token.round + 1)))
    assert evicted(driven) == []
    drained(driven, "active-1")
    assert evicted(driven) == ["active-1"]


def test_a_drained_pod_trains_on_until_a_spare_waits_that_is_not_drained() -> None:
    driven = job(Proactive.OFF)
    user_drains(driven, "active-1", "spare-0")
    driven.later(60, *ALL_MEMBERS)
    assert (drains(driven), evicted(driven)) == ({}, [])
    driven.join("spare-7")
    assert set(drains(driven)) == {"active-0", "active-1", "active-2"}


def drained_one_after_the_other() -> DrivenCoordinator:
    """Two drained pods, and one spare at a time: the first pod is replaced, and another spare waits."""
    driven = job(Proactive.OFF)
    user_drains(driven, "active-1", "active-2")
    drains(driven)
    drained(driven, *ALL_ACTIVES)
    assert driven.assigned() == {"active-0": 0, "spare-0": 1, "active-2": 2}
    driven.join("spare-7")
    return driven


def test_the_training_makes_a_step_between_two_drains() -> None:
    """Found by the simulation (seed 904862): four drained pods, and no step for two minutes."""
    driven = drained_one_after_the_other()
    driven.report_started("active-0", "spare-0", "active-2")
    assert drains(driven) == {}
    driven.report_step("spare-0", 2)
    assert set(drains(driven)) == {"active-0", "spare-0", "active-2"}


def test_a_drain_waits_at_most_a_minute_for_the_first_step_of_a_round() -> None:
    driven = drained_one_after_the_other()
    driven.report_started("active-0", "spare-0", "active-2")
    driven.later(59.9, "active-0", "spare-0", "active-2", "spare-7")
    assert drains(driven) == {}
    driven.later(0.2, "active-0", "spare-0", "active-2", "spare-7")
    assert set(drains(driven)) == {"active-0", "spare-0", "active-2"}


def test_a_withdrawn_drain_replaces_no_pod() -> None:
    driven = job(Proactive.OFF, spares=0)
    user_drains(driven, "active-1")
    user_drains(driven)
    driven.join("spare-7")
    assert (drains(driven), evicted(driven)) == ({}, [])


def test_a_drained_spare_gets_ranks_only_if_no_other_spare_waits() -> None:
    driven = job(Proactive.OFF, spares=2)
    user_drains(driven, "spare-0")
    driven.drop("active-1")
    assert driven.assigned() == {"active-0": 0, "spare-1": 1, "active-2": 2}
    driven = job(Proactive.OFF)
    user_drains(driven, "spare-0")
    driven.drop("active-1")
    assert driven.assigned() == {"active-0": 0, "spare-0": 1, "active-2": 2}


def test_all_pods_of_a_drained_node_are_replaced_in_one_round_if_there_are_spares() -> None:
    driven = job(Proactive.OFF, spares=2)
    user_drains(driven, "active-0", "active-1")
    drained(driven, "active-0", "active-1", "active-2")
    assert sorted(evicted(driven)) == ["active-0", "active-1"]
    assert set(driven.assigned()) == {"spare-0", "spare-1", "active-2"}
    assert [entry.cause.pod for entry in driven.coordinator.snapshot().recoveries] == ["active-0", "active-1"]


def test_half_of_the_voters_are_replaced_one_after_the_other_so_that_a_majority_is_left() -> None:
    """Found by the simulation (seed 1585987): the job stood still until the operator appointed a coordinator."""
    # given a job of four voters
    driven = running(2, spares=2, grace_s=GRACE_S)
    names = ("active-0", "active-1", "spare-0", "spare-1")
    driven.later(1.0, *names)
    assert len(driven.coordinator.snapshot().voters) == 4
    # when a user drains both active pods
    user_drains(driven, "active-0", "active-1")
    assert set(drains(driven)) == {"active-0", "active-1"}
    drained(driven, "active-0", "active-1")
    # then all save, and one of them is replaced
    assert evicted(driven) == ["active-0"]
    assert driven.assigned() == {"spare-0": 0, "active-1": 1}
    # and the other one when the next round makes steps, and the remaining pods are the voters
    driven.report_started("spare-0", "active-1")
    driven.report_step("spare-0")
    assert drains(driven) == {}
    driven.later(1.0, *names[1:])
    assert set(drains(driven)) == {"spare-0", "active-1"}
    assert len(driven.coordinator.snapshot().voters) == 3
    drained(driven, "spare-0", "active-1")
    assert evicted(driven) == ["active-1"]
    assert driven.assigned() == {"spare-0": 0, "spare-1": 1}


def test_a_drained_pod_on_broken_hardware_saves_nothing() -> None:
    driven = job(Proactive.OFF)
    user_drains(driven, "active-1", facts=(broken("active-1"),))
    assert (evicted(driven), drains(driven)) == (["active-1"], {})


def test_a_drain_of_a_pod_whose_node_is_preempted_soon_takes_no_longer_than_the_node_has() -> None:
    driven = job(Proactive.OFF)
    user_drains(driven, "active-1", facts=(goes("active-1", FaultClass.PREEMPTION, grace_s=10.0),))
    assert drains(driven) == dict.fromkeys(("active-0", "active-1", "active-2"), 9.0)


# Verdicts in Joins ----------------------------------------------------------------------------------------------------


def test_before_the_operator_has_sent_verdicts_a_coordinator_uses_those_of_the_members() -> None:
    """The operator may be away: no member gets ranks on hardware that is known to be broken."""
    driven = job(Proactive.OFF, spares=0)
    verdict = m.NodeVerdict(Verdict.FAULTY, "gpu-xid: Xid 79", None, FaultClass.HARDWARE, at=driven.now - 60)
    driven.join("spare-8", verdict=verdict)
    driven.drop("active-1")
    driven.later(1, *ALL_MEMBERS)
    assert driven.assigned() == {}
    driven.join("spare-9")
    assert driven.assigned() == {"active-0": 0, "spare-9": 1, "active-2": 2}


def test_verdicts_of_the_operator_replace_those_of_the_members() -> None:
    driven = job(Proactive.OFF, spares=0)
    verdict = m.NodeVerdict(Verdict.FAULTY, "gpu-xid: Xid 79", None, FaultClass.HARDWARE, at=driven.now - 60)
    driven.join("spare-8", verdict=verdict)
    driven.drop("active-1")
    send_nodes(driven)
    assert driven.assigned() == {"active-0": 0, "spare-8": 1, "active-2": 2}


def test_a_waiting_round_continues_when_a_verdict_expires() -> None:
    driven = job(Proactive.OFF)
    send_nodes(driven, broken("spare-0", until=driven.now + 5))
    driven.drop("active-1")
    driven.later(4, *ALL_MEMBERS)
    assert driven.assigned() == {}
    driven.later(2, *ALL_MEMBERS)
    assert driven.assigned() == {"active-0": 0, "spare-0": 1, "active-2": 2}

"""A worker's fault, told to a coordinator that may be cut off: the ladder waits until a majority is back."""

from __future__ import annotations

from tests.unit.sidecar.membership.driven import Driven, running
from understudy_protocol import membership as m
from understudy_protocol.observer import Appoint
from understudy_protocol.words import CloseReason, Fault, Strategy, WorkersState
from understudy_sidecar.membership.desk import State
from understudy_sidecar.membership.events import Tick

LATE_S = 1.0
SUCCESSION_S = 0.5

ACTIVES = ("active-0", "active-1", "active-2")
EVERYBODY = (*ACTIVES, "spare-0", "spare-1")
APART = m.Apart("the coordinator was not heard for 15 s")


def settled(**given: object) -> Driven:
    """Three actives and two spares, of which any three are a majority."""
    office = running(3, spares=2, **given)
    office.later(SUCCESSION_S + 0.1)
    acknowledge(office)
    assert len(office.coordinator.snapshot().electorate) == len(EVERYBODY)
    office.sent.clear()
    return office


def acknowledge(office: Driven) -> None:
    for name in list(office.sent):
        for succession in office.take(name, m.Succession):
            office.hear(name, m.SuccessionAck(succession.electorate))


def stood_still(**given: object) -> Driven:
    """It has hung for so long that its members look for another."""
    office = settled(**given)
    due = office.coordinator.deadline()
    assert due is not None
    office.now = due + LATE_S + 20.0
    return office


def cut_off(office: Driven, *names: str) -> None:
    for name in names:
        office.drop(name, silent=True)


def charged(office: Driven) -> int:
    return sum(offence.charged for offence in office.coordinator.desk.offences.within(office.now))


def told_to_heirs(office: Driven) -> list[tuple[float, ...]]:
    return [estate.charges for name in list(office.sent) for estate in office.take(name, m.Estate)]


def test_one_that_was_replaced_while_it_stood_still_charges_nothing() -> None:
    """Found by the simulation (seed 6254): the charge went with an heir to the coordinator in office."""
    # given members that follow another by now, but for one that was frozen for as long
    office = stood_still()
    for name in ("active-0", "active-2", "spare-0", "spare-1"):
        office.hear(name, APART)
    # when that one's worker fails, because its peers have gone
    office.worker_fails("active-1", "a peer has gone")
    office.later(1.0, "active-1")
    # then the round is over, and nothing is charged, here or with the heirs
    assert office.coordinator.state is State.WAITING
    assert charged(office) == 0
    assert set(told_to_heirs(office)) <= {()}
    # and nobody else is in the end
    office.later(20.0, "active-1")
    assert office.resigned
    assert charged(office) == 0


def test_a_minority_does_not_end_the_job_for_a_spent_budget() -> None:
    office = settled(max_in_place=0)
    office.worker_fails("active-2")
    office.answers("active-0", "active-1")
    assert office.lost() == {"active-2": "Process"}
    office.later(SUCCESSION_S + 0.1)
    acknowledge(office)
    # given a coordinator that is cut off from most of its voters, and its budget is spent
    cut_off(office, "active-0", "spare-0", "spare-1")
    # when a worker on its side fails
    office.worker_fails("active-1", "a peer has gone")
    office.later(10.0, "active-1")
    assert office.coordinator.closed is None
    # but it does once they are back, if that was what the worker did by itself
    for name in ("active-0", "spare-0", "spare-1"):
        office.join(name, office.token, 0 if name == "active-0" else None)
    office.answers(*list(office.sent))  # a majority confirms that the coordinator is followed
    assert office.coordinator.closed is not None
    assert office.coordinator.closed.reason is CloseReason.FAILED


def test_members_that_hung_up_while_it_stood_still_may_return_and_keep_their_ranks() -> None:
    """Found by the simulation (seed 43039): it gave the ranks of such a member away without a majority."""
    # given a coordinator that stood still, and two members that hung up meanwhile
    office = stood_still()
    office.do(Tick())
    for name in ("active-0", "spare-0"):
        office.drop(name)
    # when one of them connects again, then it is still an active of the running round
    office.join("active-0", office.token, 0, WorkersState.RUNNING)
    assert office.coordinator.desk.roster.members["uid-active-0"].group_rank == 0
    assert office.lost() == {}
    # and the other one is lost if it does not return within 2 s after a majority has answered
    office.answers("active-0", "active-1", "active-2", "spare-1")
    office.later(1.9, "active-0", "active-1", "active-2", "spare-1")
    assert office.lost() == {}
    office.later(0.2, "active-0", "active-1", "active-2", "spare-1")
    assert office.lost() == {"spare-0": "Pod"}


def test_it_is_counted_when_a_majority_has_answered() -> None:
    office = stood_still()
    office.worker_fails("active-1")
    assert (charged(office), office.assigned()) == (0, {})
    office.now += 0.5
    office.answers("active-0", "active-2")
    assert charged(office) == 0
    office.answers("spare-0")
    assert charged(office) == 1
    assert office.assigned() == {"active-0": 0, "active-1": 1, "active-2": 2}
    recovery = office.recovery()
    assert (recovery.fault, recovery.strategy, recovery.cause.pod) == (Fault.PROCESS, Strategy.IN_PLACE, "active-1")
    assert recovery.reason == "restart 1 of 2 within 1 h"


def test_a_member_that_was_silent_before_is_the_cause() -> None:
    office = stood_still()
    cut_off(office, "active-0")
    office.worker_fails("active-1", "a peer has gone")
    office.answers("active-1", "active-2", "spare-0")
    assert office.lost() == {"active-0": "Node"}
    assert office.assigned() == {"spare-0": 0, "active-1": 1, "active-2": 2}
    (entry,) = office.coordinator.snapshot().recoveries
    assert (entry.fault, entry.cause.pod) == (Fault.NODE, "active-0")
    assert charged(office) == 0


def test_so_is_one_that_leaves_as_is_told_only_then() -> None:
    office = stood_still()
    office.worker_fails("active-1", "a peer has gone")
    office.hear("active-0", m.Leaving("the trainer container got SIGTERM", 30.0))
    office.answers(*EVERYBODY)
    (entry,) = office.coordinator.snapshot().recoveries
    assert (entry.fault, entry.cause.pod) == (Fault.POD, "active-0")
    assert charged(office) == 0


def test_its_pod_is_asked_about_only_then() -> None:
    office = stood_still(in_place_max_per_pod=0)
    office.worker_fails("active-1")
    office.answers("active-0", "active-1", "active-2")
    office.answers("active-0", "active-2")
    assert office.lost() == {"active-1": "Process"}
    assert office.recovery().strategy is Strategy.SPARE_SWAP


def test_that_another_ones_worker_failed_earlier_is_known_then() -> None:
    office = stood_still(in_place_max_per_pod=0)
    office.worker_fails("active-1", "a peer has gone", at=office.now)
    office.worker_fails("active-0", "exit code 1", at=office.now - 0.2)
    office.answers(*EVERYBODY)
    assert office.lost() == {}
    assert office.recovery().reason.endswith("but it is not known which pod failed first")
    assert charged(office) == 1


def test_a_pod_that_has_gone_by_then_costs_nothing() -> None:
    office = stood_still()
    office.worker_fails("active-1")
    office.now += 0.1
    office.answers("active-1")
    office.hear("active-1", m.Gone("its launcher has ended"))
    office.answers("active-0", "active-2", "spare-0")
    assert charged(office) == 0
    assert office.assigned() == {"active-0": 0, "spare-0": 1, "active-2": 2}
    assert {(x.cause.pod, x.reason) for x in office.coordinator.snapshot().recoveries} == {
        ("active-1", "its pod is lost")
    }


def test_an_appointment_makes_it_count() -> None:
    """There is no electorate whose majority could be elsewhere."""
    office = stood_still()
    office.worker_fails("active-1")
    office.coordinator.appoint(Appoint(2, 0, {}), office.now)
    assert charged(office) == 1
    assert office.coordinator.state is State.RUNNING

"""A member is asked to end: who saves, who waits for whom, and who takes its rank."""

from __future__ import annotations

from tests.unit.sidecar.membership.driven import Driven, running
from understudy_protocol import membership as m
from understudy_protocol.words import Fault, Verdict, WorkersState
from understudy_sidecar.membership.desk import State

GRACE_S = 30.0
LEAVING = m.Leaving("deleted", GRACE_S)
FAULTY = m.Leaving("deleted", GRACE_S, Verdict.FAULTY)


def drained(office: Driven, *names: str) -> None:
    for name in names:
        office.hear(name, m.Drained(office.token))


def test_all_other_actives_are_drained_so_that_a_save_can_have_all_ranks() -> None:
    office = running(3)
    office.hear("active-0", LEAVING)
    assert [len(office.take(f"active-{rank}", m.Drain)) for rank in range(3)] == [0, 1, 1]
    assert office.take("spare-0", m.Drain) == []


def test_the_next_round_follows_when_all_have_saved_and_it_has_gone() -> None:
    office = running(3)
    office.hear("active-0", LEAVING)
    drained(office, "active-1")
    office.hear("active-0", m.Gone("its launcher has ended"))
    assert office.assigned() == {}  # active-2 still saves
    assert "still save" in office.coordinator.snapshot().waiting_for
    drained(office, "active-2")
    assert office.assigned() == {"spare-0": 0, "active-1": 1, "active-2": 2}
    assert office.recovery().cause.pod == "active-0"


def test_nobody_is_waited_for_longer_than_the_grace_less_a_margin() -> None:
    office = running(3)
    office.hear("active-0", LEAVING)
    office.hear("active-0", m.Gone("its launcher has ended"))
    office.later(GRACE_S - 3, "active-1", "active-2", "spare-0")
    assert office.assigned() == {}
    office.later(1.5, "active-1", "active-2", "spare-0")
    assert office.assigned() == {"spare-0": 0, "active-1": 1, "active-2": 2}


def test_what_fails_during_a_drain_is_nobodys_fault() -> None:
    office = running(3, max_in_place=0)
    office.hear("active-0", LEAVING)
    office.worker_fails("active-1", "a peer has gone")
    drained(office, "active-1", "active-2")
    office.hear("active-0", m.Gone("its launcher has ended"))
    assert office.coordinator.closed is None
    assert [x.cause.pod for x in office.coordinator.snapshot().recoveries] == ["active-0"]


def test_from_a_faulty_node_it_is_swapped_at_once_and_nobody_saves() -> None:
    office = running(3)
    office.hear("active-0", FAULTY)
    assert office.take("active-1", m.Drain) == []
    assert office.assigned() == {"spare-0": 0, "active-1": 1, "active-2": 2}
    assert office.recovery().fault is Fault.NODE


def test_a_spare_that_leaves_takes_no_rank_any_more() -> None:
    office = running(spares=2)
    office.hear("spare-0", LEAVING)
    assert office.take("active-0", m.Drain) == []
    office.drop("active-0")
    assert office.assigned() == {"spare-1": 0, "active-1": 1}


def test_one_that_has_finished_keeps_nobody_from_finishing() -> None:
    """Found by the simulation (seed 45): the others were drained in their last step, and the job never ended."""
    office = running()
    office.hear("active-0", m.Finished(office.token))
    office.hear("active-0", LEAVING)
    assert office.take("active-1", m.Drain) == []
    office.hear("active-0", m.Gone("its launcher has ended"))
    office.hear("active-1", m.Finished(office.token))
    assert office.coordinator.closed is not None


def test_where_the_others_had_finished_by_then_those_that_were_drained_run_again() -> None:
    office = running(3)
    office.hear("active-0", LEAVING)
    office.hear("active-0", m.Finished(office.token))
    office.hear("active-0", m.Gone("its launcher has ended"))
    office.hear("active-1", m.Finished(office.token))
    drained(office, "active-2")
    assert office.assigned() == {"spare-0": 0, "active-1": 1, "active-2": 2}


def test_members_of_version_1_are_not_waited_for() -> None:
    office = Driven(2)
    office.join("spare-0")
    office.join("active-0")
    office.join("active-1", votes=False)
    office.assigned()
    office.hear("active-0", LEAVING)
    office.hear("active-0", m.Gone("its launcher has ended"))
    assert office.assigned() == {"spare-0": 0, "active-1": 1}


def test_a_leave_that_came_with_a_join_counts() -> None:
    """Found by the simulation (seed 1634): it was told to a hall, and the next coordinator never heard of it."""
    office = running()
    office.drop("active-0", silent=True)
    office.join("active-0", office.token, 0, WorkersState.RUNNING, leaving=LEAVING)
    assert len(office.take("active-1", m.Drain)) == 1
    assert office.coordinator.state is State.RUNNING

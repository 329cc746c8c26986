"""When a Lease of another layout is held: another replica's clock is never used."""

from understudy_operator.plan.leadership.lease_election import Lease
from understudy_operator.plan.leadership.other_layouts import OtherLayouts

HELD = {"operator-0-of-2": Lease("a", 15.0, "7")}


def test_without_leases_none_is_held():
    assert OtherLayouts().held_lease({}, 0.0, 0.1) == ""


def test_a_lease_is_held_until_it_was_not_renewed_for_its_duration_since_the_first_answer():
    others = OtherLayouts()
    assert others.held_lease(HELD, 0.0, 1.0) == "operator-0-of-2"
    assert others.held_lease(HELD, 15.9, 16.0) == "operator-0-of-2"
    assert others.held_lease(HELD, 16.0, 16.1) == ""


def test_only_a_read_that_was_requested_after_the_duration_proves_that_the_lease_has_expired():
    others = OtherLayouts()
    others.held_lease(HELD, 0.0, 1.0)
    # given a read that was requested in time, and answered late
    assert others.held_lease(HELD, 15.9, 18.0) == "operator-0-of-2"


def test_each_renewal_restarts_the_duration():
    others = OtherLayouts()
    others.held_lease(HELD, 0.0, 1.0)
    renewed = {"operator-0-of-2": Lease("a", 15.0, "8")}
    assert others.held_lease(renewed, 16.0, 17.0) == "operator-0-of-2"
    assert others.held_lease(renewed, 31.9, 32.0) == "operator-0-of-2"
    assert others.held_lease(renewed, 32.0, 32.1) == ""


def test_a_released_lease_is_not_held():
    assert OtherLayouts().held_lease({"operator": Lease("", 1.0, "9")}, 0.0, 0.1) == ""


def test_one_held_lease_among_several_is_enough():
    leases = {"operator-0-of-3": Lease("", 1.0, "1"), "operator-1-of-3": Lease("b", 15.0, "2")}
    assert OtherLayouts().held_lease(leases, 0.0, 0.1) == "operator-1-of-3"


def test_a_lease_that_was_deleted_and_created_again_counts_from_its_new_state():
    others = OtherLayouts()
    others.held_lease(HELD, 0.0, 1.0)
    assert others.held_lease({}, 20.0, 20.1) == ""
    assert others.held_lease(HELD, 30.0, 30.1) == "operator-0-of-2"

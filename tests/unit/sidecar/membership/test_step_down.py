"""A coordinator without an observer that can only wait steps down: another one may have been appointed."""

from tests.unit.sidecar.membership.driven import DrivenCoordinator, running
from understudy_sidecar.membership.events import ObserversChanged

STEP_DOWN_S = 15.0


def cut_off_coordinator() -> DrivenCoordinator:
    """It was frozen; when it runs again all others have gone, and no operator is connected."""
    driven = running(spares=0)
    driven.do(ObserversChanged(0))
    driven.drop("active-1")
    return driven


def test_it_steps_down_after_a_while() -> None:
    """Found by the simulation (seed 135): its own member stayed with it, and the job waited for that forever."""
    driven = cut_off_coordinator()
    driven.later(STEP_DOWN_S - 0.1, "active-0")
    assert not driven.step_down_reason
    driven.later(0.1, "active-0")
    assert driven.step_down_reason
    assert driven.coordinator.deadline() is None


def test_it_stays_while_an_observer_is_connected() -> None:
    driven = cut_off_coordinator()
    driven.do(ObserversChanged(1))
    driven.later(10 * STEP_DOWN_S, "active-0")
    assert not driven.step_down_reason


def test_it_stays_while_its_round_runs() -> None:
    driven = running()
    driven.do(ObserversChanged(0))
    driven.later(10 * STEP_DOWN_S, "active-0", "active-1", "spare-0")
    assert not driven.step_down_reason


def test_an_observer_that_disconnects_gives_it_the_whole_time_again() -> None:
    driven = cut_off_coordinator()
    driven.do(ObserversChanged(1))
    driven.later(STEP_DOWN_S, "active-0")
    driven.do(ObserversChanged(0))
    driven.later(STEP_DOWN_S - 1, "active-0")
    assert not driven.step_down_reason


def test_no_first_round_is_formed_without_an_operator() -> None:
    """Found by the simulation (seeds 1061539 and 1364575): the operator has appointed another coordinator, which has
    other pods, and the two trainings ran beside each other.
    """
    # given a coordinator that has lost the operator before it has all its pods
    driven = DrivenCoordinator(actives=2)
    driven.join("active-0")
    driven.do(ObserversChanged(0))
    # when the last one joins
    driven.join("active-1")
    # then it forms the first round only once an operator is connected again
    driven.later(14.0, "active-0", "active-1")
    assert (driven.token.round, driven.step_down_reason) == (-1, False)
    driven.do(ObserversChanged(1))
    assert driven.token.round == 0


def test_the_next_round_needs_no_operator() -> None:
    # given a training whose operator is gone
    driven = running()
    driven.do(ObserversChanged(0))
    # when a pod is lost
    driven.drop("active-1")
    # then the spare has its rank
    assert driven.assigned() == {"active-0": 0, "spare-0": 1}

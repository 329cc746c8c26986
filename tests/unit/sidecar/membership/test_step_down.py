"""A coordinator that nobody watches, and that can only wait, makes way: another may have been appointed."""

from tests.unit.sidecar.membership.driven import DrivenCoordinator, running
from understudy_sidecar.membership.events import ObserversChanged

RESIGN_S = 15.0


def deposed() -> DrivenCoordinator:
    """It was frozen; when it thaws all others have gone, and no operator is there."""
    driven = running(spares=0)
    driven.do(ObserversChanged(0))
    driven.drop("active-1")
    return driven


def test_it_resigns_after_a_while() -> None:
    """Found by the simulation (seed 135): its own member stayed with it, and the job waited for that for ever."""
    driven = deposed()
    driven.later(RESIGN_S - 0.1, "active-0")
    assert not driven.step_down_reason
    driven.later(0.1, "active-0")
    assert driven.step_down_reason
    assert driven.coordinator.deadline() is None


def test_it_stays_while_it_is_watched() -> None:
    driven = deposed()
    driven.do(ObserversChanged(1))
    driven.later(10 * RESIGN_S, "active-0")
    assert not driven.step_down_reason


def test_it_stays_while_its_round_runs() -> None:
    driven = running()
    driven.do(ObserversChanged(0))
    driven.later(10 * RESIGN_S, "active-0", "active-1", "spare-0")
    assert not driven.step_down_reason


def test_a_watch_that_ends_gives_it_the_whole_time_again() -> None:
    driven = deposed()
    driven.do(ObserversChanged(1))
    driven.later(RESIGN_S, "active-0")
    driven.do(ObserversChanged(0))
    driven.later(RESIGN_S - 1, "active-0")
    assert not driven.step_down_reason

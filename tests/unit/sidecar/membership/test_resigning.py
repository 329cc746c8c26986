"""A coordinator that nobody watches, and that can only wait, makes way: another may have been appointed."""

from tests.unit.sidecar.membership.driven import Driven, running
from understudy_sidecar.membership.events import Watched

RESIGN_S = 15.0


def deposed() -> Driven:
    """It was frozen; when it thaws all others have gone, and no operator is there."""
    office = running(spares=0)
    office.do(Watched(0))
    office.drop("active-1")
    return office


def test_it_resigns_after_a_while() -> None:
    """Found by the simulation (seed 135): its own member stayed with it, and the job waited for that for ever."""
    office = deposed()
    office.later(RESIGN_S - 0.1, "active-0")
    assert not office.resigned
    office.later(0.1, "active-0")
    assert office.resigned
    assert office.coordinator.deadline() is None


def test_it_stays_while_it_is_watched() -> None:
    office = deposed()
    office.do(Watched(1))
    office.later(10 * RESIGN_S, "active-0")
    assert not office.resigned


def test_it_stays_while_its_round_runs() -> None:
    office = running()
    office.do(Watched(0))
    office.later(10 * RESIGN_S, "active-0", "active-1", "spare-0")
    assert not office.resigned


def test_a_watch_that_ends_gives_it_the_whole_time_again() -> None:
    office = deposed()
    office.do(Watched(1))
    office.later(RESIGN_S, "active-0")
    office.do(Watched(0))
    office.later(RESIGN_S - 1, "active-0")
    assert not office.resigned

"""The sidecar's clock, when the machine's wall clock is set."""

import pytest

from understudy_sidecar.clock import SlewedClock


class Machine:
    """Its wall clock, and the seconds since its boot."""

    def __init__(self) -> None:
        self.wall, self.uptime = 1_800_000_000.0, 500.0

    def pass_(self, seconds: float) -> None:
        self.wall += seconds
        self.uptime += seconds


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def clock(machine: Machine) -> SlewedClock:
    return SlewedClock(lambda: machine.wall, lambda: machine.uptime)


def test_it_is_the_wall_clock(machine: Machine, clock: SlewedClock) -> None:
    machine.pass_(3.5)
    assert clock.now() == 1_800_000_003.5


@pytest.mark.parametrize("step", [60.0, -60.0])
def test_a_step_of_the_wall_clock_is_no_jump_and_is_followed_within_ten_minutes(
    machine: Machine, clock: SlewedClock, step: float
) -> None:
    before = clock.now()
    machine.wall += step
    assert clock.now() == before
    # each second lasts between 0.9 and 1.1 seconds on this clock
    for _ in range(599):
        machine.pass_(1.0)
        assert 0.899 < clock.now() - before < 1.101
        before = clock.now()
    assert abs(clock.now() - machine.wall) > 0.05
    machine.pass_(2.0)
    assert abs(clock.now() - machine.wall) < 0.001


def test_a_large_step_is_followed_too(machine: Machine, clock: SlewedClock) -> None:
    """One coordinator records the time of a fault, and the next one reads it with the clock of another machine."""
    machine.wall -= 3600.0
    for _ in range(36_100):
        machine.pass_(1.0)
        clock.now()
    assert abs(clock.now() - machine.wall) < 0.001

"""A calculation that needs too much processor time is ended."""

import contextlib
import time

import pytest

from understudy_webhook.cpu_limit import CpuLimitExceeded, cpu_limit


def calculate_forever() -> None:
    while True:
        with contextlib.suppress(Exception):  # the calculation may handle errors
            sum(range(1000))


def test_an_endless_calculation_is_ended() -> None:
    began = time.process_time()
    with pytest.raises(CpuLimitExceeded), cpu_limit(0.05):
        calculate_forever()
    assert time.process_time() - began < 2.0


class Swallows:
    """Python ignores exceptions during its deletion."""

    def __del__(self) -> None:
        calculate_until(time.process_time() + 0.08)


def swallow_and_calculate_until(end: float) -> None:
    Swallows()
    calculate_until(end)


def calculate_until(end: float) -> None:
    while time.process_time() < end:
        sum(range(1000))


@pytest.mark.attack(
    "D2", "a calculation that is in a destructor when its time is up", before="it went on without a limit"
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_calculation_that_swallows_the_first_error_is_ended() -> None:
    began = time.process_time()
    with pytest.raises(CpuLimitExceeded), cpu_limit(0.05):
        swallow_and_calculate_until(began + 2.0)
    assert time.process_time() - began < 1.0


def test_a_short_calculation_and_the_code_after_it_are_not_ended() -> None:
    with cpu_limit(0.05):
        answer = 6 * 7
    before = time.process_time()
    while time.process_time() - before < 0.1:
        answer += 1
    assert answer > 42


def test_waiting_does_not_count_as_calculation() -> None:
    with cpu_limit(0.05):
        time.sleep(0.1)

"""A calculation that takes too much processor time ends."""

import contextlib
import time

import pytest

from understudy_webhook.cpu_limit import CpuLimitExceeded, cpu_limit


def calculate_forever() -> None:
    while True:
        with contextlib.suppress(Exception):  # a calculation may contain errors of its own
            sum(range(1000))


def test_a_calculation_without_an_end_ends() -> None:
    began = time.process_time()
    with pytest.raises(CpuLimitExceeded), cpu_limit(0.05):
        calculate_forever()
    assert time.process_time() - began < 2.0


def test_a_short_calculation_and_what_follows_it_are_not_ended() -> None:
    with cpu_limit(0.05):
        answer = 6 * 7
    before = time.process_time()
    while time.process_time() - before < 0.1:
        answer += 1
    assert answer > 42


def test_waiting_is_no_calculation() -> None:
    with cpu_limit(0.05):
        time.sleep(0.1)

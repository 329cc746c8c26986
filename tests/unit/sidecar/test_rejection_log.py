"""Few lines however many callers: one per kind and address, and a limit for many addresses."""

from __future__ import annotations

import logging

import pytest

from understudy_sidecar.rejection_log import RejectionLog

LINES = 100
QUIET_S = 60.0


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def complaints(clock: Clock) -> RejectionLog:
    return RejectionLog(logging.getLogger("complaints"), clock)


def test_the_first_of_a_kind_and_address_is_logged(complaints: RejectionLog, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        complaints.log("10.0.0.1", "no key", "does not know the key")
        complaints.log("10.0.0.1", "no hello", "said nothing")
        complaints.log("10.0.0.2", "no key", "does not know the key")
    assert caplog.messages == [
        "10.0.0.1 does not know the key",
        "10.0.0.1 said nothing",
        "10.0.0.2 does not know the key",
    ]


def test_rejections_that_were_not_logged_are_counted_and_logged_later(
    complaints: RejectionLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        complaints.log("10.0.0.1", "no key", "does not know the key")
    clock.now += QUIET_S - 1
    complaints.log("10.0.0.1", "no key", "does not know the key")
    clock.now += 1
    complaints.log("10.0.0.1", "no key", "does not know the key")
    assert caplog.messages == [
        "10.0.0.1 does not know the key",
        "10.0.0.1 5 more times: no key",
        "10.0.0.1 does not know the key",
    ]


def test_a_scanner_with_many_addresses_fills_no_log(
    complaints: RejectionLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(10 * LINES):
        complaints.log(f"10.0.{number // 256}.{number % 256}", "no key", "does not know the key")
    assert len(caplog.messages) == LINES
    clock.now += QUIET_S
    complaints.log("10.0.0.1", "no key", "does not know the key")
    assert len(caplog.messages) == LINES + 2
    assert caplog.messages[-2] == f"others {9 * LINES} more times: various reasons"

"""Rounds that fail right at their start: the next round waits, each time longer."""

from __future__ import annotations

import pytest

from tests.unit.sidecar.membership.driven import DrivenCoordinator, running
from understudy_protocol.enums import Fault
from understudy_sidecar.membership.backoff import Backoff

STARTED_WELL_S = 60.0

BOTH = ("active-0", "active-1")


def crash_loop(driven: DrivenCoordinator, rounds: int) -> list[float]:
    """So many rounds fail right at their start. Returns the seconds that each next round waits."""
    pauses = []
    for _ in range(rounds):
        driven.report_started(*BOTH)
        driven.fail_worker("active-1")
        failed_at, token = driven.now, driven.token
        while driven.token == token and driven.coordinator.closed is None:
            driven.later(0.5, *BOTH, "spare-0")
        pauses.append(driven.now - failed_at)
    return pauses


def test_the_first_failure_of_a_healthy_round_is_followed_by_the_next_round_at_once() -> None:
    driven = running()
    driven.fail_worker("active-1")
    assert driven.assigned() == {"active-0": 0, "active-1": 1}


def test_each_further_round_that_fails_at_its_start_is_followed_later() -> None:
    # given a round that made steps, and has failed
    driven = running(max_in_place=100)
    driven.fail_worker("active-1")
    # when the rounds after it fail before their first step, then each next round waits twice as long, up to half a
    # minute
    assert crash_loop(driven, 7) == [1, 2, 4, 8, 16, 30, 30]


def test_a_job_whose_first_round_fails_at_its_start_waits_too() -> None:
    driven = DrivenCoordinator(max_in_place=100)
    for name in BOTH:
        driven.join(name)
    assert crash_loop(driven, 3) == [1, 2, 4]


@pytest.mark.parametrize(("longest_s", "pauses"), [(3.0, [1, 2, 3, 3]), (0.5, [0.5, 0.5, 0.5, 0.5])])
def test_the_limit_of_the_job_counts(longest_s: float, pauses: list[float]) -> None:
    driven = running(max_in_place=100, backoff_max_s=longest_s)
    driven.fail_worker("active-1")
    assert crash_loop(driven, 4) == pauses


def test_a_job_may_disable_the_backoff() -> None:
    driven = running(max_in_place=100, backoff_max_s=0.0)
    for number in range(1, 9):
        driven.fail_worker("active-1")
        assert driven.token.round == number, "at once"
        driven.report_started(*BOTH)


def test_a_round_that_steps_resets_the_backoff() -> None:
    driven = running(max_in_place=100)
    driven.fail_worker("active-1")
    crash_loop(driven, 4)
    # when a round steps, and fails
    driven.report_started(*BOTH)
    driven.report_step("active-0")
    token = driven.token
    driven.fail_worker("active-1")
    # then the next round follows at once, and the one after that after a second
    assert driven.token == token.next_round()
    assert crash_loop(driven, 2) == [1, 2]


def test_a_minute_counts_as_a_step_if_the_script_reports_no_steps() -> None:
    # given a job that never reports a step, and has run for a minute
    driven = DrivenCoordinator()
    for name in BOTH:
        driven.join(name)
    driven.report_started(*BOTH)
    driven.later(STARTED_WELL_S + 1, *BOTH)
    # when a worker fails
    token = driven.token
    driven.fail_worker("active-1")
    # then the next round follows at once
    assert driven.token == token.next_round()


def test_a_minute_without_a_step_does_not_count_if_the_script_reports_steps() -> None:
    driven = running(max_in_place=100)
    driven.fail_worker("active-1")
    driven.report_started(*BOTH)
    driven.later(STARTED_WELL_S + 1, *BOTH, "spare-0")
    token = driven.token
    driven.fail_worker("active-1")
    assert driven.token == token, "it waits"


def test_the_pause_is_reported() -> None:
    driven = running(max_in_place=100)
    driven.fail_worker("active-1")
    crash_loop(driven, 2)
    driven.report_started(*BOTH)
    driven.fail_worker("active-1")
    why = "a pause of 4 s, because 3 rounds in a row failed at the start"
    assert driven.coordinator.snapshot().waiting_for == why
    assert f"the next round waits for {why}" in driven.logged


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_lost_member_ends_the_pause(when: str) -> None:
    """Faults other than a worker's failure are not delayed, nor is a failure that turns out to follow from another
    fault.
    """
    driven = running(max_in_place=100)
    driven.fail_worker("active-1")
    crash_loop(driven, 3)
    driven.report_started(*BOTH)
    token = driven.token
    if when == "before":
        driven.fail_worker("active-0")
        assert driven.token == token
    driven.drop("active-1")
    assert driven.token == token.next_round()
    assert driven.recovery().fault is Fault.POD


def test_the_budget_still_counts() -> None:
    driven = running(max_in_place=3)
    driven.fail_worker("active-1")
    crash_loop(driven, 2)
    driven.report_started(*BOTH)
    driven.fail_worker("active-1")
    driven.answer_heartbeats("active-0")
    assert driven.recovery().reason == "the budget of 3 restarts within 1 h is spent"


def test_rounds_that_lose_a_member_at_their_start_wait_from_the_fourth_in_a_row_on() -> None:
    """Found on a cluster: 97 rounds in 14 s, each of which killed healthy workers."""
    backoff, pauses = Backoff(30.0), []
    for number in range(6):
        # given a round that loses members before it has done anything: the workers of their peers fail too
        backoff.on_round(float(number))
        backoff.on_failure(float(number))
        backoff.on_loss(float(number))
        backoff.on_loss(number + 0.01)
        pauses.append(None if backoff.until is None else backoff.until - number)
    # then the first rounds follow at once, and the rounds after them later and later
    assert pauses == [None, None, None, 1.0, 2.0, 4.0]
    assert backoff.reason == "a pause of 4 s, because 6 rounds in a row lost a pod at the start"
    # and a step ends the backoff
    backoff.on_round(100.0)
    backoff.on_step()
    backoff.on_loss(100.0)
    assert (backoff.until, backoff.losses, backoff.failures) == (None, 0, 0)


@pytest.mark.parametrize("longest_s", [30.0, 0.0])
def test_ten_rounds_follow_at_once_and_then_one_every_three_seconds_whatever_ends_them(
    longest_s: float,
) -> None:
    """Found on a cluster: 97 rounds in 14 s, each of which killed healthy workers."""
    # given rounds that step, and lose a member right after that
    backoff, formed, now = Backoff(longest_s), [], 1000.0
    while now < 1014.0:
        if not backoff.is_waiting(now):
            backoff.on_round(now)
            formed.append(now - 1000.0)
            backoff.on_step()
            backoff.on_loss(now)
        now += 0.125
    # then ten of them follow at once
    assert formed[:10] == [0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0, 1.125]
    assert formed[10:] == [3.0, 6.0, 9.0, 12.0]
    assert backoff.reason == "a pause of up to 3 s, because the last 10 rounds ended within 30 s"
    # and after half a minute without a round, ten again
    assert not backoff.is_waiting(1045.0)


def test_a_member_that_was_lost_and_comes_back_is_the_last_candidate() -> None:
    # given an active member that was lost, whose rank a spare has taken, and that comes back
    driven = running(spares=2)
    driven.drop("active-1")
    assert driven.assigned() == {"active-0": 0, "spare-0": 1}
    driven.report_started("active-0", "spare-0")
    driven.join("active-1")
    # when rank 1, for which its pod was created, is vacant again, then the other spare takes it
    driven.drop("spare-0")
    assert driven.assigned() == {"active-0": 0, "spare-1": 1}
    # but if no other spare is there, the member takes it
    driven.report_started("active-0", "spare-1")
    driven.drop("spare-1")
    assert driven.assigned() == {"active-0": 0, "active-1": 1}

"""Rounds that fail right at their start: the next one waits, and longer each time."""

from __future__ import annotations

import pytest

from tests.unit.sidecar.membership.driven import Driven, running
from understudy_protocol.words import Fault
from understudy_sidecar.membership.backoff import Backoff

STARTED_WELL_S = 60.0

BOTH = ("active-0", "active-1")


def crash_loop(office: Driven, rounds: int) -> list[float]:
    """So many rounds that fail right at their start; how long each next one waits."""
    pauses = []
    for _ in range(rounds):
        office.started(*BOTH)
        office.worker_fails("active-1")
        failed_at, token = office.now, office.token
        while office.token == token and office.coordinator.closed is None:
            office.later(0.5, *BOTH, "spare-0")
        pauses.append(office.now - failed_at)
    return pauses


def test_the_first_failure_of_a_healthy_round_is_mended_at_once() -> None:
    office = running()
    office.worker_fails("active-1")
    assert office.assigned() == {"active-0": 0, "active-1": 1}


def test_each_further_round_that_fails_at_its_start_is_followed_later() -> None:
    # given a round that stepped, and has failed
    office = running(max_in_place=100)
    office.worker_fails("active-1")
    # when those after it fail before their first step, then each next one waits twice as long, up to half a minute
    assert crash_loop(office, 7) == [1, 2, 4, 8, 16, 30, 30]


def test_a_job_whose_first_round_fails_at_its_start_waits_too() -> None:
    office = Driven(max_in_place=100)
    for name in BOTH:
        office.join(name)
    assert crash_loop(office, 3) == [1, 2, 4]


@pytest.mark.parametrize(("longest_s", "pauses"), [(3.0, [1, 2, 3, 3]), (0.5, [0.5, 0.5, 0.5, 0.5])])
def test_the_jobs_limit_counts(longest_s: float, pauses: list[float]) -> None:
    office = running(max_in_place=100, backoff_max_s=longest_s)
    office.worker_fails("active-1")
    assert crash_loop(office, 4) == pauses


def test_a_job_may_have_none_of_it() -> None:
    office = running(max_in_place=100, backoff_max_s=0.0)
    for number in range(1, 9):
        office.worker_fails("active-1")
        assert office.token.round == number, "at once"
        office.started(*BOTH)


def test_a_round_that_steps_begins_anew() -> None:
    office = running(max_in_place=100)
    office.worker_fails("active-1")
    crash_loop(office, 4)
    # when a round steps, and fails
    office.started(*BOTH)
    office.stepped("active-0")
    token = office.token
    office.worker_fails("active-1")
    # then the next one follows at once, and the one after that after a second
    assert office.token == token.next_round()
    assert crash_loop(office, 2) == [1, 2]


def test_where_the_script_reports_no_steps_a_minute_counts_as_one() -> None:
    # given a job that never reports one, and has run for a minute
    office = Driven()
    for name in BOTH:
        office.join(name)
    office.started(*BOTH)
    office.later(STARTED_WELL_S + 1, *BOTH)
    # when a worker fails
    token = office.token
    office.worker_fails("active-1")
    # then the next round follows at once
    assert office.token == token.next_round()


def test_where_it_does_a_minute_without_one_counts_for_nothing() -> None:
    office = running(max_in_place=100)
    office.worker_fails("active-1")
    office.started(*BOTH)
    office.later(STARTED_WELL_S + 1, *BOTH, "spare-0")
    token = office.token
    office.worker_fails("active-1")
    assert office.token == token, "it waits"


def test_the_pause_is_told() -> None:
    office = running(max_in_place=100)
    office.worker_fails("active-1")
    crash_loop(office, 2)
    office.started(*BOTH)
    office.worker_fails("active-1")
    why = "a pause of 4 s, because 3 rounds in a row failed at the start"
    assert office.coordinator.snapshot().waiting_for == why
    assert f"the next round waits for {why}" in office.said


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_lost_member_ends_the_pause(when: str) -> None:
    """Faults other than a worker's failure are not delayed, nor is what a worker's failure turns out to follow from."""
    office = running(max_in_place=100)
    office.worker_fails("active-1")
    crash_loop(office, 3)
    office.started(*BOTH)
    token = office.token
    if when == "before":
        office.worker_fails("active-0")
        assert office.token == token
    office.drop("active-1")
    assert office.token == token.next_round()
    assert office.recovery().fault is Fault.POD


def test_the_budget_counts_as_ever() -> None:
    office = running(max_in_place=3)
    office.worker_fails("active-1")
    crash_loop(office, 2)
    office.started(*BOTH)
    office.worker_fails("active-1")
    office.answers("active-0")
    assert office.recovery().reason == "the budget of 3 restarts within 1 h is spent"


def test_rounds_that_lose_a_member_at_their_start_wait_too_from_the_fourth_in_a_row_on() -> None:
    """97 rounds in 14 s have been seen, each of which killed healthy workers."""
    backoff, pauses = Backoff(30.0), []
    for number in range(6):
        # given a round that loses members before it has done anything: the workers of their peers fail too
        backoff.formed(float(number))
        backoff.failed(float(number))
        backoff.lost(float(number))
        backoff.lost(number + 0.01)
        pauses.append(None if backoff.until is None else backoff.until - number)
    # then the first rounds follow at once, and those after them ever later
    assert pauses == [None, None, None, 1.0, 2.0, 4.0]
    assert backoff.why == "a pause of 4 s, because 6 rounds in a row lost a pod at the start"
    # and a step ends that
    backoff.formed(100.0)
    backoff.stepped()
    backoff.lost(100.0)
    assert (backoff.until, backoff.losses, backoff.failures) == (None, 0, 0)


@pytest.mark.parametrize("longest_s", [30.0, 0.0])
def test_of_rounds_that_end_for_any_reason_ten_follow_at_once_and_then_one_every_three_seconds(
    longest_s: float,
) -> None:
    """Found on a cluster: 97 rounds in 14 s, each of which killed healthy workers."""
    # given rounds that step, and lose a member just after that
    backoff, formed, now = Backoff(longest_s), [], 1000.0
    while now < 1014.0:
        if not backoff.waits(now):
            backoff.formed(now)
            formed.append(now - 1000.0)
            backoff.stepped()
            backoff.lost(now)
        now += 0.125
    # then ten of them follow at once
    assert formed[:10] == [0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0, 1.125]
    assert formed[10:] == [3.0, 6.0, 9.0, 12.0]
    assert backoff.why == "a pause of up to 3 s, because the last 10 rounds ended within 30 s"
    # and after half a minute without any, ten again
    assert not backoff.waits(1045.0)


def test_a_member_that_was_lost_and_comes_back_is_the_last_candidate() -> None:
    # given an active that was lost, whose rank a spare has taken, and that comes back
    office = running(spares=2)
    office.drop("active-1")
    assert office.assigned() == {"active-0": 0, "spare-0": 1}
    office.started("active-0", "spare-0")
    office.join("active-1")
    # when rank 1, for which its pod was made, is vacant again, then the other spare takes it
    office.drop("spare-0")
    assert office.assigned() == {"active-0": 0, "spare-1": 1}
    # but where nobody else is there, it does
    office.started("active-0", "spare-1")
    office.drop("spare-1")
    assert office.assigned() == {"active-0": 0, "active-1": 1}

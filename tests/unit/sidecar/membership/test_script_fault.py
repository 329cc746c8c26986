"""A script that fails on all ranks before its first step, round after round: the job ends, if it is configured so."""

from __future__ import annotations

from tests.unit.sidecar.membership.driven import DrivenCoordinator
from understudy_protocol import membership as m
from understudy_protocol.enums import CloseReason, RoundToken

BOTH = ("active-0", "active-1")
BOOM = "ValueError: no such dataset"


def job(rounds: int = 3, nproc: int = 1) -> DrivenCoordinator:
    """A job of two members that has never trained."""
    driven = DrivenCoordinator(max_in_place=1000, nproc=nproc, script_fault_rounds=rounds)
    for name in BOTH:
        driven.join(name)
    return driven


def next_round(driven: DrivenCoordinator, failed: RoundToken) -> None:
    """Unless the job has ended."""
    while driven.token == failed and closed(driven) is None:
        driven.later(0.5, *BOTH)


def fails(driven: DrivenCoordinator, first: str = BOOM, second: str = BOOM) -> None:
    """A round whose workers start, and fail with these exceptions; then the next round, if one follows."""
    driven.report_started(*BOTH)
    token = driven.token
    for name, message in zip(BOTH, (first, second), strict=True):
        driven.fail_worker(name, message, token)
    next_round(driven, token)


def closed(driven: DrivenCoordinator) -> m.Close | None:
    return driven.coordinator.closed


def test_three_rounds_in_a_row_end_the_job_in_one_line() -> None:
    driven = job()
    for _ in range(2):
        fails(driven)
        assert closed(driven) is None
    fails(driven)
    assert closed(driven) == m.Close(
        CloseReason.FAILED,
        "the script failed on all 2 ranks before its first step, in 3 rounds in a row: ValueError: no such dataset",
    )


def test_a_job_without_the_option_continues() -> None:
    driven = job(rounds=0)
    for _ in range(9):
        fails(driven)
    assert closed(driven) is None


def test_all_workers_of_all_members_have_to_fail() -> None:
    # given two workers per member, of which only the first ones fail
    driven = job(nproc=2)
    for _ in range(5):
        fails(driven)
    assert closed(driven) is None
    # when the others fail as well, three times
    for _ in range(3):
        driven.report_started(*BOTH)
        token = driven.token
        for local_rank in (0, 1):
            for name in BOTH:
                driven.receive(name, m.WorkerFailed(token, local_rank, 1, None, BOOM, driven.now))
        next_round(driven, token)
    # then the job ends
    assert closed(driven) is not None


def test_a_rank_that_does_not_fail_restarts_the_count() -> None:
    driven = job()
    fails(driven)
    fails(driven)
    driven.report_started(*BOTH)
    token = driven.token
    driven.fail_worker("active-1", BOOM)
    next_round(driven, token)
    fails(driven)
    fails(driven)
    assert closed(driven) is None
    fails(driven)
    assert closed(driven) is not None


def test_a_step_restarts_the_count() -> None:
    driven = job()
    fails(driven)
    fails(driven)
    driven.report_started(*BOTH)
    driven.report_step("active-0")
    token = driven.token
    for name in BOTH:
        driven.fail_worker(name, BOOM, token)
    next_round(driven, token)
    fails(driven)
    fails(driven)
    assert closed(driven) is None
    fails(driven)
    assert closed(driven) is not None


def test_another_exception_restarts_the_count() -> None:
    driven = job()
    fails(driven)
    fails(driven)
    for _ in range(2):
        fails(driven, "KeyError: 'lr'", "KeyError: 'lr'")
    assert closed(driven) is None
    fails(driven, "KeyError: 'lr'", "KeyError: 'lr'")
    assert closed(driven) is not None


def test_ranks_that_fail_with_different_exceptions_are_no_fault_of_the_script() -> None:
    driven = job()
    for _ in range(5):
        fails(driven, BOOM, "ConnectionError: rank 0 hung up")
    assert closed(driven) is None


def test_exceptions_that_differ_in_numbers_are_equal() -> None:
    driven = job()
    for number in range(3):
        fails(driven, f"RuntimeError: rank 0 at 0x7f3a{number}", f"RuntimeError: rank 1 at 0x9c2b{number}")
    assert closed(driven) is not None


def test_signals_are_no_exceptions() -> None:
    driven = job()
    for _ in range(5):
        driven.report_started(*BOTH)
        token = driven.token
        for name in BOTH:
            driven.receive(name, m.WorkerFailed(token, 0, None, "SIGKILL", "killed by SIGKILL", driven.now))
        next_round(driven, token)
    assert closed(driven) is None


def test_different_exit_codes_are_different_exceptions() -> None:
    driven = job()
    for _ in range(5):
        driven.report_started(*BOTH)
        token = driven.token
        for code, name in enumerate(BOTH, 1):
            driven.receive(name, m.WorkerFailed(token, 0, code, None, f"exit code {code}", driven.now))
        next_round(driven, token)
    assert closed(driven) is None

"""A script that fails on all ranks before its first step, round after round: the job ends, if it says so."""

from __future__ import annotations

from tests.unit.sidecar.membership.driven import Driven
from understudy_protocol import membership as m
from understudy_protocol.words import CloseReason, RoundToken

BOTH = ("active-0", "active-1")
BOOM = "ValueError: no such dataset"


def job(rounds: int = 3, nproc: int = 1) -> Driven:
    """A job of two members that has never trained."""
    office = Driven(max_in_place=1000, nproc=nproc, script_fault_rounds=rounds)
    for name in BOTH:
        office.join(name)
    return office


def next_round(office: Driven, failed: RoundToken) -> None:
    """Unless the job has ended."""
    while office.token == failed and closed(office) is None:
        office.later(0.5, *BOTH)


def fails(office: Driven, first: str = BOOM, second: str = BOOM) -> None:
    """A round whose workers start, and fail with these exceptions; then the next round, if one follows."""
    office.started(*BOTH)
    token = office.token
    for name, message in zip(BOTH, (first, second), strict=True):
        office.worker_fails(name, message, token)
    next_round(office, token)


def closed(office: Driven) -> m.Close | None:
    return office.coordinator.closed


def test_three_rounds_in_a_row_end_the_job_in_one_line() -> None:
    office = job()
    for _ in range(2):
        fails(office)
        assert closed(office) is None
    fails(office)
    assert closed(office) == m.Close(
        CloseReason.FAILED,
        "the script failed on all 2 ranks before its first step, in 3 rounds in a row: ValueError: no such dataset",
    )


def test_a_job_that_does_not_ask_for_it_goes_on() -> None:
    office = job(rounds=0)
    for _ in range(9):
        fails(office)
    assert closed(office) is None


def test_all_workers_of_all_members_have_to_fail() -> None:
    # given two workers a member, of which only the first ones fail
    office = job(nproc=2)
    for _ in range(5):
        fails(office)
    assert closed(office) is None
    # when the others fail as well, three times
    for _ in range(3):
        office.started(*BOTH)
        token = office.token
        for local_rank in (0, 1):
            for name in BOTH:
                office.hear(name, m.WorkerFailed(token, local_rank, 1, None, BOOM, office.now))
        next_round(office, token)
    # then the job ends
    assert closed(office) is not None


def test_a_rank_that_does_not_fail_begins_the_count_anew() -> None:
    office = job()
    fails(office)
    fails(office)
    office.started(*BOTH)
    token = office.token
    office.worker_fails("active-1", BOOM)
    next_round(office, token)
    fails(office)
    fails(office)
    assert closed(office) is None
    fails(office)
    assert closed(office) is not None


def test_a_step_begins_the_count_anew() -> None:
    office = job()
    fails(office)
    fails(office)
    office.started(*BOTH)
    office.stepped("active-0")
    token = office.token
    for name in BOTH:
        office.worker_fails(name, BOOM, token)
    next_round(office, token)
    fails(office)
    fails(office)
    assert closed(office) is None
    fails(office)
    assert closed(office) is not None


def test_another_exception_begins_the_count_anew() -> None:
    office = job()
    fails(office)
    fails(office)
    for _ in range(2):
        fails(office, "KeyError: 'lr'", "KeyError: 'lr'")
    assert closed(office) is None
    fails(office, "KeyError: 'lr'", "KeyError: 'lr'")
    assert closed(office) is not None


def test_ranks_that_fail_with_different_exceptions_are_no_fault_of_the_script() -> None:
    office = job()
    for _ in range(5):
        fails(office, BOOM, "ConnectionError: rank 0 hung up")
    assert closed(office) is None


def test_numbers_make_no_exception_another_one() -> None:
    office = job()
    for number in range(3):
        fails(office, f"RuntimeError: rank 0 at 0x7f3a{number}", f"RuntimeError: rank 1 at 0x9c2b{number}")
    assert closed(office) is not None


def test_signals_are_no_exceptions() -> None:
    office = job()
    for _ in range(5):
        office.started(*BOTH)
        token = office.token
        for name in BOTH:
            office.hear(name, m.WorkerFailed(token, 0, None, "SIGKILL", "killed by SIGKILL", office.now))
        next_round(office, token)
    assert closed(office) is None


def test_different_exit_codes_are_different_exceptions() -> None:
    office = job()
    for _ in range(5):
        office.started(*BOTH)
        token = office.token
        for code, name in enumerate(BOTH, 1):
            office.hear(name, m.WorkerFailed(token, 0, code, None, f"exit code {code}", office.now))
        next_round(office, token)
    assert closed(office) is None

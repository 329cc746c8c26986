"""The sessions that run, and their order."""

from __future__ import annotations

from benchmarks.rendezvous.plan import Case, Choice, Session, System, plan

ROUNDS = (Case.FIRST_ROUND, Case.NEXT_ROUND)
UNDERSTUDY, AIOHTTP, NVRX, TORCH = System.UNDERSTUDY, System.AIOHTTP, System.NVRX, System.TORCH_DYNAMIC


def test_the_systems_of_a_size_take_turns() -> None:
    chosen = plan(Choice(cases=ROUNDS, sizes=(64,), runs=2))

    assert [x.run for x in chosen] == [0] * 4 + [1] * 4
    assert [x.system for x in chosen] == [UNDERSTUDY, AIOHTTP, NVRX, TORCH] * 2
    assert {x.size for x in chosen} == {64}


def test_the_two_rounds_are_one_session() -> None:
    assert plan(Choice(cases=ROUNDS, systems=(UNDERSTUDY,), sizes=(64,), runs=1)) == [
        Session(UNDERSTUDY, 64, 0, ROUNDS)
    ]


def test_torch_has_a_first_round_alone() -> None:
    assert {x.cases for x in plan(Choice(systems=(TORCH,)))} == {(Case.FIRST_ROUND,)}
    assert plan(Choice(systems=(TORCH,), cases=(Case.NEXT_ROUND,))) == []


def test_a_system_that_is_known_not_to_finish_is_tried_three_times() -> None:
    runs = [x.size for x in plan(Choice(systems=(TORCH,), runs=5))]

    assert {size: runs.count(size) for size in runs} == {64: 5, 256: 3, 1024: 3}


def test_without_a_choice_all_sessions_run() -> None:
    whole = plan(Choice())

    assert {case for x in whole for case in x.cases} == set(Case)
    assert {x.size for x in whole if x.system is NVRX} == {64, 256, 1024, 4096, 10000}
    assert len([x for x in whole if x.system is UNDERSTUDY and x.size == 1024 and x.cases == ROUNDS]) == 5
    assert len(whole) == len(set(whole))


def test_all_sessions_take_less_than_an_hour() -> None:
    assert sum(x.expected_s for x in plan(Choice())) < 60 * 60


def test_chosen_sizes_replace_those_of_each_case() -> None:
    chosen = plan(Choice(systems=(UNDERSTUDY,), sizes=(128,), runs=1))

    assert [(x.size, x.cases) for x in chosen] == [
        (128, ROUNDS),
        (128, (Case.FAILOVER,)),
        (128, (Case.SILENT_NODE,)),
        (128, (Case.REST,)),
    ]

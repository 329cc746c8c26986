"""The tables of records and goals."""

from __future__ import annotations

from benchmarks.goals import Goal, check
from benchmarks.records import Record
from benchmarks.tables import goal_rows, markdown, plain, record_rows

UNDERSTUDY = Record("understudy", "next-round", 1024, "seconds", "s", 0.05, 0.0456, 1.25, 5)
PEER = Record("nvrx", "next-round", 1024, "seconds", "s", 3.0, 1.5, 123.4, 5)
NEVER = Record("torch-dynamic", "next-round", 1024, "seconds", "s", None, 219.998, None, 1)


def test_a_row_has_all_systems_ours_first() -> None:
    assert record_rows([NEVER, PEER, UNDERSTUDY]) == [
        ("case", "members", "metric", "understudy", "nvrx", "torch-dynamic"),
        ("next-round", "1,024", "seconds", "0.050 [0.046 … 1.25] (5)", "3 [1.5 … 123] (5)", "not within 220 (1)"),
    ]


def test_a_cell_says_how_many_runs_did_not_end() -> None:
    mixed = Record("torchrun", "worker", 4, "first_step_s", "s", None, 60.0, None, 5, 3)

    assert record_rows([mixed])[1] == ("worker", "4", "first_step_s", "not within 60 (3 of 5)")


def test_a_cell_that_was_not_measured_is_empty() -> None:
    remaining = Record("understudy", "rest", 1, "rss_mb", "MB", 40.0, 40.0, 41.0, 3)

    assert record_rows([UNDERSTUDY, PEER, remaining])[2] == ("rest", "1", "rss_mb", "40 [40 … 41] (3)", "")


def test_cases_keep_their_order_and_sizes_are_sorted() -> None:
    records = [Record("understudy", case, size, "seconds", "s", 1, 1, 1, 1) for case in "ba" for size in (4096, 64)]

    assert [row[:2] for row in record_rows(records)[1:]] == [("b", "64"), ("b", "4,096"), ("a", "64"), ("a", "4,096")]


def test_a_goal_has_its_bounds_and_its_measurement() -> None:
    goal = Goal("next-round", 1024, "seconds", at_most=0.2, peer="nvrx", at_most_ratio=1 / 15)
    rows = goal_rows(check([goal, Goal("rest", 1, "rss_mb", at_most=50)], [UNDERSTUDY, PEER]))

    assert rows[1:] == [
        ("next-round", "1,024", "seconds", "≤ 0.2 and ≤ 0.0667 of nvrx", "0.050, 0.0167 of nvrx", "met"),
        ("rest", "1", "rss_mb", "≤ 50", "", "not measured"),
    ]


def test_as_text_and_as_markdown() -> None:
    rows = [("case", "x"), ("rest", "10"), ("a longer one", "")]

    assert plain(rows) == "case          x\nrest          10\na longer one"
    assert markdown(rows) == "| case | x |\n| --- | --- |\n| rest | 10 |\n| a longer one |  |"

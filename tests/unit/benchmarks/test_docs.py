"""The page's tables are made anew from what was built; what is written by hand stays."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.docs import PAGE, UnknownTable, rewritten
from benchmarks.nights import Night, append_night
from benchmarks.records import Record, write_records


def page(kind: str, table: str = "old\n") -> str:
    return f"before\n<!-- rendezvous:{kind} -->\n{table}<!-- end -->\nafter, with <!-- end -->\n"


@pytest.fixture
def built(tmp_path: Path) -> Path:
    write_records(tmp_path / "rendezvous.json", [Record("understudy", "rest", 1, "rss_mb", "MB", 40.0, 40.0, 41.0, 3)])
    (tmp_path / "rendezvous.machine.json").write_text(json.dumps({"command": "make it", "cores": "2"}))
    return tmp_path


def test_a_table_is_made_anew_and_its_surroundings_stay(built: Path) -> None:
    table = "| case | members | metric | understudy |\n| --- | --- | --- | --- |\n"
    new = page("records", f"{table}| rest | 1 | rss_mb | 40 [40 … 41] (3) |\n")

    assert rewritten(page("records"), built) == new
    assert rewritten(new, built) == new


def test_goals_and_the_machine_have_tables_too(built: Path) -> None:
    assert "| rest | 1 | rss_mb | ≤ 45 | 40 | met |" in rewritten(page("goals"), built)
    assert "| command | `make it` |" in rewritten(page("machine"), built)


def test_a_benchmark_that_was_not_run_keeps_its_tables(tmp_path: Path) -> None:
    assert rewritten(page("records"), tmp_path) == page("records")


def test_nights_of_simulation_come_from_their_committed_file(tmp_path: Path) -> None:
    empty = "<!-- simulation:nights -->\n<!-- end -->"
    assert rewritten(empty, tmp_path, tmp_path) == empty
    append_night(tmp_path / "nights.json", Night("2026-11-25", "data plane", "41e8486", 0, 700, 120.0))
    row = "| 2026-11-25 | data plane | 41e8486 | 0 | 700 | 2 | none |\n"
    assert row in rewritten(empty, tmp_path / "nothing built", tmp_path)


def test_a_marker_that_nothing_makes_is_an_error(built: Path) -> None:
    with pytest.raises(UnknownTable, match="rendezvous:figures"):
        rewritten(page("figures"), built)


def test_the_page_has_every_table() -> None:
    markers = re.findall(r"<!-- (rendezvous:[a-z]+) -->", PAGE.read_text())

    assert markers == ["rendezvous:machine", "rendezvous:goals", "rendezvous:records"]

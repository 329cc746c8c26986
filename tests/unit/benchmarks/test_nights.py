"""Each night of simulation is recorded with its first seed, and the docs' table has the sum."""

from __future__ import annotations

from pathlib import Path

from benchmarks.nights import Night, append_night, night_rows, read_nights

FIRST = Night("2026-11-24", "data plane", "30d9375", 20_000, 20_000, 3600.0)
SECOND = Night("2026-11-25", "data plane", "41e8486", 40_000, 712, 130.0, (40_009, 40_700))


def test_nights_are_appended_in_their_order(tmp_path: Path) -> None:
    file = tmp_path / "results" / "nights.json"
    assert read_nights(file) == []
    append_night(file, FIRST)
    append_night(file, SECOND)
    assert read_nights(file) == [FIRST, SECOND]
    assert [line[:22] for line in file.read_text().splitlines()] == [
        "[", '{"date": "2026-11-24",', '{"date": "2026-11-25",', "]",
    ]  # fmt: skip


def test_the_table_has_each_night_and_the_sum_of_each_simulation() -> None:
    operator = Night("2026-11-25", "operator", "41e8486", 3_000, 3_000, 600.0)
    assert night_rows([FIRST, SECOND, operator])[1:] == [
        ("2026-11-24", "data plane", "30d9375", "20,000", "20,000", "60", "none"),
        ("2026-11-25", "data plane", "41e8486", "40,000", "712", "2", "40009, 40700"),
        ("2026-11-25", "operator", "41e8486", "3,000", "3,000", "10", "none"),
        ("all", "data plane", "", "", "20,712", "62", "2"),
        ("all", "operator", "", "", "3,000", "10", "0"),
    ]

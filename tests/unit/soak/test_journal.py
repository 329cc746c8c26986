"""A soak that is stopped at any moment continues where it was, and never causes a fault twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.journal import Stage, append_entry, read_journal, state_of

DRAWN = [{"event": "drawn", "number": number, "kind": "pod"} for number in range(3)]
DONE = [{"event": "outcome", "number": number, "seconds": 1000.0} for number in range(3)]


@pytest.mark.parametrize(
    ("entries", "hours", "number", "elapsed_s", "stage"),
    [
        ([], 1.0, 0, 0.0, Stage.FAULT),
        (DRAWN[:1], 1.0, 1, 0.0, Stage.UNDO),
        ([DRAWN[0], DONE[0]], 1.0, 1, 1000.0, Stage.FAULT),
        ([DRAWN[0], DONE[0], DRAWN[1]], 0.1, 2, 1000.0, Stage.UNDO),
        ([*DRAWN, *DONE], 0.9, 3, 3000.0, Stage.FAULT),
        ([*DRAWN, *DONE], 0.8, 3, 3000.0, Stage.REPORT),
        ([*DRAWN, *DONE, {"event": "began"}], 6.0, 3, 3000.0, Stage.FAULT),
    ],
)
def test_the_state_follows_from_the_journal(
    entries: list[dict[str, object]], hours: float, number: int, elapsed_s: float, stage: Stage
) -> None:
    state = state_of(entries)
    assert (state.next_number, state.elapsed_s, state.stage(hours)) == (number, elapsed_s, stage)


def test_an_interrupted_fault_gets_an_outcome_and_the_next_number_follows() -> None:
    interrupted = {"event": "outcome", "number": 1, "result": "interrupted"}
    state = state_of([DRAWN[0], DONE[0], DRAWN[1], interrupted])
    assert (state.next_number, state.open, state.elapsed_s) == (2, None, 1000.0)


def test_an_incomplete_line_is_ignored_and_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "soak" / "1.jsonl"
    assert read_journal(file) == []
    first = append_entry(file, "drawn", number=0)
    with file.open("a") as torn:
        torn.write('{"event": "outco')
    assert read_journal(file) == [first] == [{"event": "drawn", "number": 0}]
    second = append_entry(file, "outcome", number=0, seconds=2.5)
    assert read_journal(file) == [first, second]

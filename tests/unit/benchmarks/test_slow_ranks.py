"""What make bench-slow-ranks reads from its trainings."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.slow_ranks import alarms, describe_trouble
from tests.torchrun.windows import windows


def test_a_window_counts_once_all_ranks_have_reported_it(tmp_path: Path) -> None:
    assert windows(tmp_path, ranks=2) == []
    (tmp_path / "windows").write_text("0 20\n1 20\n0 40\n1 60\n0 60\n")
    assert windows(tmp_path, ranks=2) == [20, 60]


def test_each_line_about_a_slow_rank_is_an_alarm(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("step 1\nunderstudy: SlowRank: rank 2 (pod node-1, …)\nstep 2\n")
    assert alarms(tmp_path) == ["understudy: SlowRank: rank 2 (pod node-1, …)"]


@pytest.mark.parametrize(
    ("code", "log", "trouble"),
    [
        (None, "step 1", ""),
        (1, "step 1", "the training has ended with exit code 1"),
        (0, "step 1", "the training has ended with exit code 0"),
        (None, "understudy: FaultDetected: Process", "a fault has happened"),
    ],
)
def test_a_training_that_ends_or_has_a_fault_shows_nothing(
    tmp_path: Path, code: int | None, log: str, trouble: str
) -> None:
    (tmp_path / "log").write_text(log)
    assert describe_trouble(code, tmp_path) == trouble

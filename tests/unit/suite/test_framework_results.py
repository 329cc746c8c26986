"""The results of `make frameworks`, and the lines of a training that they come from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.frameworks.results import Result, matrix_rows, read_results, run_rows, write_result
from tests.frameworks.training import Resumed, Step, parsed

DDP = Result("DDP", "torch 2", 1.84, 0.55, "forks", "nothing", "2026-11-25", "abc", "2 (Xeon)", 1.02)
JAX = replace(DDP, case="JAX", versions="jax 1", start="new processes", date="2026-11-26", speed=4.5)


def test_a_case_replaces_its_own_result_and_keeps_those_of_others(tmp_path: Path) -> None:
    file = tmp_path / "frameworks.json"
    for result in (JAX, DDP, replace(JAX, worker_s=3.0)):
        write_result(file, result, ["DDP", "JAX"])
    assert read_results(file) == [DDP, replace(JAX, worker_s=3.0)]


def test_the_result_of_a_case_that_does_not_exist_any_more_is_dropped(tmp_path: Path) -> None:
    file = tmp_path / "frameworks.json"
    write_result(file, DDP, ["DDP", "JAX"])
    write_result(file, JAX, ["JAX"])
    assert read_results(file) == [JAX]


def test_the_table_has_a_row_for_each_case() -> None:
    assert matrix_rows([DDP, JAX])[1:] == [
        ("DDP", "torch 2", "1.8 s", "0.6 s", "forks", "nothing"),
        ("JAX", "jax 1", "1.8 s", "0.6 s", "new processes", "nothing"),
    ]


def test_results_that_were_measured_at_different_times_are_different_runs() -> None:
    assert run_rows([DDP, replace(DDP, case="FSDP2"), JAX])[1:] == [
        ("2026-11-25", "abc", "2 (Xeon)", "1.0 times that of the quiet machine", "2"),
        ("2026-11-26", "abc", "2 (Xeon)", "4.5 times that of the quiet machine", "1"),
    ]


def test_only_the_lines_of_rank_0_are_records_of_a_training() -> None:
    assert parsed("[rank 0] resumes at step 20", 7.0) == Resumed(7.0, 20)
    assert parsed("[rank 0] step 21 loss 0.125", 7.5) == Step(7.5, 21, 0.125)
    assert parsed("step 21 loss 0.125", 7.5) == Step(7.5, 21, 0.125)  # without Understudy
    assert parsed("[rank 1] step 21 loss 0.125", 7.5) is None
    assert parsed("[rank 0] step 21 of 100", 7.5) is None

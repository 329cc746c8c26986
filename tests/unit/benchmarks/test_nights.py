"""Each night of simulation is recorded with its first seed, and the table in the docs has the sum."""

from __future__ import annotations

import contextlib
import multiprocessing
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.nights import Night, append_night, night_rows, read_nights
from tests.cluster.paths import CHECKOUT
from tests.simulation import __main__ as simulation
from tests.simulation_operator import __main__ as simulation_operator

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


def test_the_sum_counts_a_seed_of_two_nights_once(tmp_path: Path) -> None:
    again = Night("2026-11-25", "data plane", "41e8486", 30_000, 12_000, 2000.0)
    assert night_rows([FIRST, again])[-1] == ("all", "data plane", "", "", "22,000", "93", "0")


@pytest.mark.parametrize(("simulation", "name"), [("simulation", "data plane"), ("simulation_operator", "operator")])
def test_the_command_appends_each_run_with_its_first_seed_and_number(
    tmp_path: Path, simulation: str, name: str
) -> None:
    # given a file with a night
    file = tmp_path / "nights.json"
    append_night(file, FIRST)
    # when two seeds are run, as `make simulate` and `make simulate-operator` do
    command = [sys.executable, "-m", f"tests.{simulation}", "--seeds=2", "--first-seed=71", f"--record={file}"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    # then they are recorded after it
    first, night = read_nights(file)
    assert first == FIRST
    assert (night.simulation, night.first_seed, night.seeds, night.failed) == (name, 71, 2, ())
    assert night.seconds > 0


class Pool(contextlib.nullcontext[None]):
    """A pool of processes, whose later batches end first."""

    def __enter__(self) -> Pool:  # type: ignore[override]
        return self

    def imap(self, run: Callable[[range], object], batches: list[range]) -> Iterator[object]:
        return map(run, batches)

    def imap_unordered(self, run: Callable[[range], object], batches: list[range]) -> Iterator[object]:
        return map(run, reversed(batches))

    def terminate(self) -> None:
        pass


def listed(seeds: range) -> tuple[int, list[int]]:
    return len(seeds), [seed for seed in seeds if 30 <= seed < 34]


def reported(seeds: range) -> tuple[int, dict[int, str]]:
    return len(seeds), {seed: "broken" for seed in seeds if 30 <= seed < 34}


@pytest.mark.parametrize(("module", "batch"), [(simulation, listed), (simulation_operator, reported)])
def test_a_run_that_stops_early_records_the_seeds_that_ran_and_all_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, batch: object
) -> None:
    # given four batches of 25 seeds, the second one with four seeds that break a rule
    monkeypatch.setattr(multiprocessing, "Pool", Pool)
    monkeypatch.setattr(module, "_batch", batch)
    monkeypatch.setattr(simulation, "shrink", lambda case: (case, "broken"))
    file = tmp_path / "nights.json"
    # when the run may have three failures
    assert module.main(["--seeds=100", "--most-failures=3", f"--record={file}"]) == 1
    # then it has ended with the second batch, and the seeds 0 to 49 are recorded
    (night,) = read_nights(file)
    assert (night.first_seed, night.seeds, night.failed) == (0, 50, (30, 31, 32, 33))

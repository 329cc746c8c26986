"""The frameworks' environment (scripts/frameworks), undisturbed runs, and the table at the end."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.report import RESULTS
from benchmarks.tables import plain
from tests.frameworks.cases import Case
from tests.frameworks.results import matrix_rows, read_results
from tests.frameworks.training import undisturbed
from tests.machine_speed import REFERENCE_S, machine_seconds

FILE = RESULTS / "frameworks.json"


@pytest.fixture(scope="session")
def environment() -> Path:
    """The folder of the Python environment."""
    return Path(os.environ["UNDERSTUDY_FRAMEWORKS"])


@pytest.fixture(scope="session")
def speed() -> float:
    return round(machine_seconds() / REFERENCE_S, 2)


@pytest.fixture(scope="session")
def expected(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], dict[int, float]]:
    """The losses of an undisturbed run, by step; each script runs once with the same arguments."""
    known: dict[tuple[str, ...], dict[int, float]] = {}

    def losses(case: Case) -> dict[int, float]:
        key = (case.script, *case.arguments)
        if key not in known:
            known[key] = undisturbed(case, tmp_path_factory.mktemp("undisturbed"), environment)
        return known[key]

    return losses


@pytest.fixture
def checkpoints(tmp_path: Path) -> Iterator[Path]:
    """The folder of a training's checkpoints."""
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        yield Path(folder)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if results := read_results(FILE):
        table = plain(matrix_rows(results))
        terminalreporter.write_line(f"\n{table}\n\nwritten: {FILE}; `make bench-docs` writes the page")

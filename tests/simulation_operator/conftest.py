"""`pytest tests/simulation_operator --operator-seed N` replays one seed; `--operator-seeds COUNT` runs as many."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("simulation of the operator")
    group.addoption("--operator-seed", type=int, default=None, help="replay this one seed")
    group.addoption("--operator-seeds", type=int, default=None, help="how many seeds to run (default: SEEDS)")
    group.addoption("--operator-first-seed", type=int, default=0, help="the first of them (default: %(default)s)")

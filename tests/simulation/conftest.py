"""`pytest tests/simulation --seed N` replays one seed; `--seeds COUNT` runs as many, from `--first-seed` on."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("simulation")
    group.addoption("--seed", type=int, default=None, help="replay this one seed of the simulation")
    group.addoption("--seeds", type=int, default=None, help="how many seeds to run (default: SEEDS)")
    group.addoption("--first-seed", type=int, default=0, help="the first of them (default: %(default)s)")

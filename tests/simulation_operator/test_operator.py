"""The operator against an API server that behaves correctly, and under faults of everything that it depends on."""

import pytest

from tests.seeds import find_seed
from tests.simulation_operator.mutations import MUTATIONS, Mutation, broken
from tests.simulation_operator.rules import Violation
from tests.simulation_operator.run import draw_case, run_case

SEEDS = 25
SEEDS_TO_FIND = 60


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    def option(name: str, default: int | None) -> int | None:
        value: int | None = metafunc.config.getoption(name, default)
        return value  # pytest does not read this folder's conftest if it got no path

    if "seed" in metafunc.fixturenames:
        seed, first = option("--operator-seed", None), option("--operator-first-seed", 0) or 0
        count = option("--operator-seeds", SEEDS) or SEEDS
        metafunc.parametrize("seed", [seed] if seed is not None else range(first, first + count))


def test_the_invariants_hold_once_the_faults_are_over(seed: int) -> None:
    run_case(draw_case(seed))


def test_a_seed_replays_exactly() -> None:
    assert run_case(draw_case(7)) == run_case(draw_case(7))


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.description)
def test_a_broken_rule_is_found(mutation: Mutation) -> None:
    with broken(mutation):
        found = find_seed(
            f"operator: {mutation.description}",
            SEEDS_TO_FIND,
            lambda seed: run_case(mutation.case(draw_case(seed))),
            Violation,
            lambda violation: bool(violation.rules & {*mutation.breaks}),
        )
    assert found is not None, f"{mutation.description}: {SEEDS_TO_FIND} seeds, none breaks {mutation.breaks}"

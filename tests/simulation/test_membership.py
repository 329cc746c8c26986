"""Random faults, seeded: the invariants of docs/contributors/design.md hold, and the job ends correctly."""

import pytest

from tests.simulation.run import draw_case, run_case

BATCH = 25
SEEDS = 100


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    def option(name: str, default: int | None) -> int | None:
        value: int | None = metafunc.config.getoption(name, default)
        return value  # pytest does not read this folder's conftest if it got no path

    if "seeds" in metafunc.fixturenames:
        seed, first, count = option("--seed", None), option("--first-seed", 0) or 0, option("--seeds", SEEDS) or SEEDS
        every = [seed] if seed is not None else list(range(first, first + count))
        batches = [every[at : at + BATCH] for at in range(0, len(every), BATCH)]
        metafunc.parametrize("seeds", batches, ids=[f"{batch[0]}-{batch[-1]}" for batch in batches])


def test_invariants_hold_under_random_faults(seeds: list[int]) -> None:
    for seed in seeds:
        run_case(draw_case(seed))


def test_a_seed_replays_to_the_letter() -> None:
    first, again = (run_case(draw_case(7)) for _ in range(2))
    assert list(first.world.trace) == list(again.world.trace)
    assert first.world.events == again.world.events

"""Jobs that share a pool, under faults of everything that the operator depends on, including kills between two writes
of a claim.
"""

from collections import Counter
from dataclasses import replace

import pytest

from tests.seeds import find_seed
from tests.simulation_operator import world
from tests.simulation_operator.faults import Fault, Setup
from tests.simulation_operator.mutations import POOL_MUTATIONS, Mutation, broken
from tests.simulation_operator.rules import Violation
from tests.simulation_operator.run import Case, draw_pool_case, run_case

SEEDS = 25
SEEDS_TO_FIND = 200


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        seed = metafunc.config.getoption("--operator-seed", None)
        first = metafunc.config.getoption("--operator-first-seed", 0) or 0
        count = metafunc.config.getoption("--operator-seeds", SEEDS) or SEEDS
        metafunc.parametrize("seed", [seed] if seed is not None else range(first, first + count))


def test_claims_are_exclusive_and_none_is_lost_or_left(seed: int) -> None:
    run_case(draw_pool_case(seed))


def test_a_seed_replays_exactly() -> None:
    """Names of spares were truly random: a seed that had failed in one run passed in the next one."""
    assert run_case(draw_pool_case(3)) == run_case(draw_pool_case(3))


def test_the_runs_have_claims_and_kills() -> None:
    # given the traces of some runs
    traces = [line for seed in range(15) for line in run_case(draw_pool_case(seed))]

    # then claims were made and carried out, and operators were killed between their writes
    seen = Counter("kill" for line in traces if line.endswith("is killed"))
    seen.update("claim" for line in traces if "claims 1 of" in line)
    seen.update("warm" for line in traces if "claims 1 of the pool, Warm" in line)
    seen.update("adopted" for line in traces if "gets the order of job" in line)
    assert seen["kill"] > 5
    assert seen["claim"] > 20
    assert seen["warm"] > 2
    assert seen["adopted"] > 2


@pytest.mark.parametrize("number", range(15))
def test_two_operators_that_both_act_do_not_claim_a_spare_twice(number: int) -> None:
    # given two replicas without a lease
    case = draw_pool_case(number)
    setup = replace(case.setup, replicas=2, lease=False)

    # then no spare is ever claimed by two jobs, and its place is not taken by two pods, or while it runs
    run_case(replace(case, setup=setup))


@pytest.mark.parametrize("warm", [False, True])
def test_the_operators_memory_is_bounded_even_if_pools_are_replaced(
    warm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a job with pods that replace spares of four deleted pools of one name, and all spares answer
    monkeypatch.setattr(world, "DEAF", 0.0)
    strikes = ["lose pods", "replace pool"] * 4
    draws = [0.0, 0.1, 0.001, 0.1, 0.002, 0.1, 0.0, 0.9]
    faults = [Fault(10.0 + 6.0 * at, strikes[at], 1.0, draws[at]) for at in range(8)]
    setup = Setup(4, 1, ((3, 0),), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, pool=1, warm=warm)

    # then all invariants hold in the end, including the bound of the operator's memory
    trace = run_case(Case(0, setup, tuple(faults)))
    assert sum("claims 1 of the pool" in line for line in trace) == 4


@pytest.mark.parametrize("mutation", POOL_MUTATIONS, ids=lambda mutation: mutation.description)
def test_a_broken_rule_is_found(mutation: Mutation) -> None:
    def run(seed: int) -> None:
        case = draw_pool_case(seed)
        run_case(replace(case, setup=replace(case.setup, warm=mutation.warm)))

    with broken(mutation):
        found = find_seed(
            f"pools: {mutation.description}",
            SEEDS_TO_FIND,
            run,
            Violation,
            lambda violation: bool(violation.rules & {*mutation.breaks}),
        )
    assert found is not None, f"{mutation.description}: {SEEDS_TO_FIND} seeds, none breaks {mutation.breaks}"

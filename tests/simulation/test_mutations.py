"""The simulation bites: each deliberate bug of mutations.py is found within its seeds."""

import pytest

from tests.simulation.mutations import MUTATIONS, Mutation
from tests.simulation.run import draw_case, run_case
from tests.simulation.world import Violation


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_deliberate_bug_is_found(mutation: Mutation) -> None:
    with mutation.open():
        for seed in range(mutation.seeds):
            try:
                run_case(draw_case(seed))
            except Violation:
                return
    pytest.fail(f"{mutation.name}: no violation in {mutation.seeds} seeds")

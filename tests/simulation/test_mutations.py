"""The simulation finds each deliberate bug of mutations.py within its number of seeds, by a rule that it breaks."""

import pytest

from tests.seeds import find_seed
from tests.simulation.mutations import MUTATIONS, SCHEDULED, Mutation, ScheduledMutation
from tests.simulation.run import draw_case, run_case
from tests.simulation.world import Violation


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_deliberate_bug_is_found(mutation: Mutation) -> None:
    with mutation.open():
        found = find_seed(
            f"data plane: {mutation.name}",
            mutation.seeds,
            lambda seed: run(mutation, seed),
            Violation,
            lambda violation: violation.rule in mutation.breaks,
        )
    assert found is not None, f"{mutation.name}: {mutation.seeds} seeds, none breaks {mutation.breaks}"


def run(mutation: Mutation, seed: int) -> None:
    case = draw_case(seed)
    if {*mutation.kinds} <= {fault.kind for fault in case.faults}:
        run_case(case)


@pytest.mark.parametrize("mutation", SCHEDULED, ids=lambda mutation: mutation.name)
def test_a_deliberate_bug_is_found_by_its_schedule(mutation: ScheduledMutation) -> None:
    with mutation.open(), pytest.raises((Violation, AssertionError)):
        mutation.scenario()

"""Random faults, seeded: the invariants of docs/design.md hold after every event, and the job ends as it should."""

import pytest

from tests.simulation.run import draw_case, run_case
from understudy_protocol.words import CloseReason

BATCH = 25
SEEDS = 100


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    def option(name: str, default: int | None) -> int | None:
        value: int | None = metafunc.config.getoption(name, default)
        return value  # this folder's conftest is unread where `pytest` got no path

    if "seeds" in metafunc.fixturenames:
        seed, first, count = option("--seed", None), option("--first-seed", 0) or 0, option("--seeds", SEEDS) or SEEDS
        every = [seed] if seed is not None else list(range(first, first + count))
        batches = [every[at : at + BATCH] for at in range(0, len(every), BATCH)]
        metafunc.parametrize("seeds", batches, ids=[f"{batch[0]}-{batch[-1]}" for batch in batches])


def test_invariants_hold_under_random_faults(seeds: list[int]) -> None:
    for seed in seeds:
        run_case(draw_case(seed))


def test_a_pod_that_was_cut_off_from_the_newest_round_reports_its_own_pause() -> None:
    """Two halves trained for a second, and the model knew the last step of one."""
    run_case(draw_case(5380))


def test_a_pod_that_others_have_trained_without_does_not_measure_how_long_training_stood_still() -> None:
    """It had made a step, its rank was given away, all who stepped after it were lost, and it got a rank again."""
    run_case(draw_case(706))


def test_an_heir_that_was_frozen_brings_no_charge_back() -> None:
    """The charge was taken back meanwhile: the pod was lost before it restarted."""
    run_case(draw_case(4907))


def test_a_seed_replays_to_the_letter() -> None:
    first, again = (run_case(draw_case(7)) for _ in range(2))
    assert list(first.world.trace) == list(again.world.trace)
    assert first.world.events == again.world.events


def test_a_pod_that_is_given_up_while_its_launcher_is_stopped_may_exit_with_that() -> None:
    """The job succeeded before the launcher went on, and it heard of both, in this order."""
    (pod,) = [pod for pod in run_case(draw_case(9712)).pods if pod.name == "active-3"]
    assert pod.exit_code == 84


def test_where_the_pod_that_knew_of_the_success_goes_the_others_end_by_a_round_of_their_own() -> None:
    """They were cut off when it was told, and a stopped launcher ends when its pod is deleted after that."""
    pods = run_case(draw_case(10280)).pods
    assert {pod.recorded_close.reason for pod in pods if pod.recorded_close} == {CloseReason.SUCCEEDED}
    assert max(pod.told_at for pod in pods) == pytest.approx(1_000_107.0, abs=0.1)

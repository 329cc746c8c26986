"""Losses that differ from those of a run without faults."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.e2e.report import Entry
from tests.e2e.undisturbed import differences

#: Two neighboring steps of the example differ by a thousandth or less.
EXPECTED = [2.4571, 2.4563, 2.4551, 2.4546]


def entry(step: int, loss: float | None, round_number: int = 0) -> Entry:
    return Entry("step", step, loss, (1, 1, round_number), 1000.0 + step)


UNDISTURBED = [entry(step, loss) for step, loss in enumerate(EXPECTED, 1)]


def test_a_training_with_the_losses_of_a_run_without_faults_has_no_differences() -> None:
    # given a training that has repeated two steps in another round
    repeated = [replace(x, token=(1, 1, 1), loss=EXPECTED[x.step - 1] * (1 + 3e-10)) for x in UNDISTURBED[1:]]
    done = replace(UNDISTURBED[-1], event="done")
    assert differences([*UNDISTURBED[:3], *repeated, done], EXPECTED) == []


@pytest.mark.parametrize(
    "report",
    [
        pytest.param([entry(1, 2.4571), entry(2, 2.4551)], id="a step is missing in the training"),
        pytest.param([entry(1, 2.4571), entry(2, 2.4571)], id="a step was trained twice"),
        pytest.param([entry(1, 2.4571 * (1 + 3e-9))], id="by three billionths"),
        pytest.param([entry(1, float("nan"))], id="not a number"),
        pytest.param([entry(1, None)], id="no loss"),
        pytest.param([entry(1, 2.4571), entry(2, 2.4563), entry(2, 2.4564, 1)], id="only when it was repeated"),
    ],
)
def test_each_other_loss_is_a_difference(report: list[Entry]) -> None:
    (difference,) = differences(report, EXPECTED)
    assert difference == f"{report[-1]}: expected a loss of {EXPECTED[report[-1].step - 1]}"


def test_a_step_that_is_not_reported_is_a_difference() -> None:
    assert differences([UNDISTURBED[0], UNDISTURBED[3]], EXPECTED) == [
        "step 2 is not reported",
        "step 3 is not reported",
    ]


def test_a_training_without_steps_is_a_difference() -> None:
    assert differences([Entry("resumed", 0, None, (1, 1, 0), 1000.0)], EXPECTED) == ["no step is reported"]

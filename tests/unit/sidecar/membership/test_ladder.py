"""The restart policy ladder, row by row: the step for a fault of a worker, and the wording of its reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from understudy_sidecar.membership.ladder import BudgetLimits, FaultCase, LadderStep, choose_step, format_duration

LIMITS = BudgetLimits(restarts=10, window_s=3600.0, per_pod=1)
FIRST = FaultCase("w-1", "node-1", 5)
SPENT = {"charged_restarts": 10}
TWICE = {"charged_restarts": 1, "pod_faults": 1}
FAULTY = {"hardware_finding": "Xid 79"}
OWN_FAULT = {"rank_had_another_pod": True}
STAYS = {"keep_reason": "it is not known which pod failed first"}

TABLE: list[tuple[str, dict[str, Any], LadderStep, bool, str]] = [
    ("the first fault", {}, LadderStep.IN_PLACE, True, "restart 1 of 10 within 1 h"),
    ("the last of the budget", {"charged_restarts": 9}, LadderStep.IN_PLACE, True, "restart 10 of 10 within 1 h"),
    ("a pod that fails again", TWICE, LadderStep.EVICT, True, "pod w-1 failed twice within 1 h"),
    (
        "a rank that fails on its second pod as well",
        {**TWICE, **OWN_FAULT},
        LadderStep.IN_PLACE,
        True,
        "restart 2 of 10 within 1 h; pod w-1 failed twice within 1 h, but rank 5 failed on another pod as well",
    ),
    (
        "a pod that fails again, perhaps",
        {**TWICE, **STAYS},
        LadderStep.IN_PLACE,
        True,
        "restart 2 of 10 within 1 h; pod w-1 failed twice within 1 h, but it is not known which pod failed first",
    ),
    ("a fault on a faulty node", FAULTY, LadderStep.EVICT, False, "node node-1 is Faulty: Xid 79"),
    (
        "… costs no budget, and needs none",
        {**FAULTY, **SPENT},
        LadderStep.EVICT,
        False,
        "node node-1 is Faulty: Xid 79",
    ),
    ("… whatever the rank did", {**FAULTY, **OWN_FAULT}, LadderStep.EVICT, False, "node node-1 is Faulty: Xid 79"),
    ("a fault on a faulty node, perhaps", {**FAULTY, **STAYS}, LadderStep.IN_PLACE, True, "restart 1 of 10 within 1 h"),
    (
        "a fault during its own recovery",
        {**TWICE, "is_repeated": True},
        LadderStep.IN_PLACE,
        False,
        "w-1 failed again before the round had started everywhere",
    ),
    ("the budget is spent", SPENT, LadderStep.EVICT, False, "the budget of 10 restarts within 1 h is spent"),
    (
        "the budget is spent, by a rank with its second pod",
        {**SPENT, **OWN_FAULT},
        LadderStep.FAIL,
        False,
        "the budget of 10 restarts within 1 h is spent, and rank 5 failed on another pod as well",
    ),
    (
        "the budget is spent, and a pod has gone for it",
        {**SPENT, "budget_spent_on_pod": True},
        LadderStep.FAIL,
        False,
        "the budget of 10 restarts within 1 h is spent, and a pod has already been replaced because of that",
    ),
    (
        "the budget is spent by a rank with its second pod, which cannot be replaced",
        {**SPENT, **OWN_FAULT, **STAYS},
        LadderStep.FAIL,
        False,
        "the budget of 10 restarts within 1 h is spent, and rank 5 failed on another pod as well",
    ),
    (
        "the budget is spent, and the first pod is not known",
        {**SPENT, **STAYS},
        LadderStep.FAIL,
        False,
        "the budget of 10 restarts within 1 h is spent, and it is not known which pod failed first",
    ),
]


@pytest.mark.parametrize(
    ("facts", "expected", "charged", "reason"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_a_fault_leads_to_a_step_for_a_reason(
    facts: dict[str, Any], expected: LadderStep, charged: bool, reason: str
) -> None:
    step = choose_step(replace(FIRST, **facts), LIMITS)
    assert (step.step, step.is_charged, step.reason) == (expected, charged, reason)


@pytest.mark.parametrize(
    ("per_pod", "of_pod", "expected"),
    [(0, 0, LadderStep.EVICT), (2, 1, LadderStep.IN_PLACE), (2, 2, LadderStep.EVICT), (None, 9, LadderStep.IN_PLACE)],
)
def test_the_job_sets_how_many_restarts_a_pod_may_cost(per_pod: int | None, of_pod: int, expected: LadderStep) -> None:
    assert choose_step(replace(FIRST, pod_faults=of_pod), replace(LIMITS, per_pod=per_pod)).step is expected


@pytest.mark.parametrize("budget", range(4))
@pytest.mark.parametrize("per_pod", [None, 0, 1, 2])
def test_a_rank_that_always_fails_ends_the_job_and_costs_one_pod(budget: int, per_pod: int | None) -> None:
    limits = BudgetLimits(budget, 3600.0, per_pod)
    charged = of_pod = rounds = swaps = 0
    gone = False
    while (
        step := choose_step(
            replace(FIRST, charged_restarts=charged, pod_faults=of_pod, rank_had_another_pod=gone), limits
        )
    ).step is not LadderStep.FAIL:
        rounds, charged = rounds + 1, charged + step.is_charged
        if step.step is LadderStep.EVICT:
            swaps, of_pod, gone = swaps + 1, 0, True
        else:
            of_pod += 1
    assert (swaps, charged) == (1, budget)
    assert rounds <= budget + 1


@pytest.mark.parametrize(
    ("seconds", "words"), [(3600.0, "1 h"), (5400.0, "90 min"), (90.0, "90 s"), (0.5, "0.5 s"), (7200.0, "2 h")]
)
def test_windows_are_written_in_common_units(seconds: float, words: str) -> None:
    assert format_duration(seconds) == words

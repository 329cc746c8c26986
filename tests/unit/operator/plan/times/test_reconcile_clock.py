"""The time of the next reconcile: not before a decision is due, and not later."""

import re
from dataclasses import replace
from math import inf

import pytest

from tests.unit.operator.given import IMAGE, NOW, a_job, a_pod, observed
from tests.unit.operator.golden_plans import read
from tests.unit.operator.scenario_plans import FOLDER, SCHEMA, planned
from understudy_operator.plan.facts.cluster_objects import Pod
from understudy_operator.plan.jobset.stuck import stuck_starts
from understudy_operator.plan.reconcile import reconcile
from understudy_operator.plan.times.reconcile_clock import ReconcileClock, is_due

AT_ONCE_S = 0.2
MAX_INTERVAL_S = 30.0
SLOW_START_S = 60.0

SCENARIOS = read(FOLDER, SCHEMA)
#: Times in a plan: an epoch, the time of a verdict, the duration of a recovery.
_TIMES = re.compile(r"\b1[0-9]{9}(\.[0-9]+)?\b|\bin [0-9.]+ s\b|\b[0-9]{4}-[0-9-]+T[0-9:.]+Z")


def test_the_clock_records_the_earliest_time_ahead() -> None:
    now = ReconcileClock(100.0)
    assert [is_due(at, now) for at in (99.0, 100.0, 130.0, 107.0, 110.0)] == [True, True, False, False, False]
    assert (now.next_at, now.remaining_s) == (107.0, 7.0)
    assert ReconcileClock(100.0).remaining_s == inf
    assert is_due(3.0, 4.0)
    assert not is_due(4.0, 3.0)  # any two times can be compared


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_plan_changes_before_the_next_reconcile(name: str) -> None:
    """The scenarios have all decisions that depend on time; this test finds one that does not use `is_due`."""
    plan = planned(SCENARIOS[name])
    ahead = re.fullmatch(r"look again in (.*) s", plan[-1])
    again_in_s = 600.0 if ahead is None else float(ahead[1])
    for part in (0.3, 0.7, 0.98):
        later = planned(SCENARIOS[name], part * again_in_s)
        assert _without_times(later) == _without_times(plan), f"after {part * again_in_s:g} s of {again_in_s:g}"


def _without_times(result: list[str]) -> list[str]:
    return [_TIMES.sub("TIME", line) for line in result[:-1]]


def starting(waits_since: float) -> Pod:
    return replace(
        a_pod("a0", index=0), phase="Pending", sidecar_started=False, sidecar_ran=False, waiting_since=waits_since
    )


def test_the_next_reconcile_is_when_a_decision_is_due() -> None:
    # given a pod whose containers may take seven seconds more to start
    given = observed(a_job(), (starting(NOW - SLOW_START_S + 7.0),))
    given = replace(given, coordination=replace(given.coordination, coordinator_uid="uid-a0"))
    # then the job is reconciled in seven seconds, and reports the pod then
    assert reconcile(given, IMAGE, NOW).requeue_after_s == pytest.approx(7.0)
    assert not stuck_starts(given, NOW + 6.9)
    assert stuck_starts(given, NOW + 7.1)


def test_thousands_of_due_times_cause_a_few_reconciles_a_second() -> None:
    given = observed(a_job(), (starting(NOW - SLOW_START_S + 0.001), starting(NOW - SLOW_START_S + 0.002)))
    given = replace(given, coordination=replace(given.coordination, coordinator_uid="uid-a0"))
    assert reconcile(given, IMAGE, NOW).requeue_after_s == AT_ONCE_S < MAX_INTERVAL_S

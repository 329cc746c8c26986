"""What a pass over a large job costs, in calls for each of its pods: on any machine the same, so no clock is asked.

A job of thousands that only trains is looked at every two seconds, and the operator has one thread for all jobs.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.operator.given import IMAGE, NOW, a_job, a_pod, a_snapshot, in_round, member, observed
from understudy_operator.plan.faults.annotations import plan_annotations
from understudy_operator.plan.observed import Observed
from understudy_operator.plan.reconcile import reconcile
from understudy_protocol import pod as names

ACTIVES, SPARES = 490, 10


@pytest.fixture(scope="module")
def large() -> Observed:
    """A job that trains, each pod on a node of its own, and whose status tells all there is to tell."""
    actives = [a_pod(f"a{index:03}", index) for index in range(ACTIVES)]
    spares = [a_pod(f"s{number}") for number in range(SPARES)]
    coordinator = replace(spares[0], labels={**spares[0].labels, names.LABEL_COORDINATOR: "true"})
    pods = (*actives, coordinator, *spares[1:])
    job = a_job(parallelism=ACTIVES, spares=SPARES, status=in_round(3, coordinator.name))
    snapshot = a_snapshot([member(pod, pod.index) for pod in pods], number=3, coordinator=coordinator)
    given = observed(job, pods, snapshot, refusals=())
    status = reconcile(given, IMAGE, NOW).status
    assert status is not None
    return replace(given, job=replace(job, status=status))


def calls_per_pod(given: Observed, run: Callable[[Observed], object]) -> float:
    """With nothing remembered of an earlier run."""
    fresh, calls = replace(given), 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        run(fresh)
    finally:
        sys.setprofile(before)
    return calls / (ACTIVES + SPARES)


def test_pods_that_there_is_nothing_to_tell_of_their_nodes_are_not_read(large: Observed):
    assert plan_annotations(large, NOW) == ()
    assert calls_per_pod(large, lambda given: plan_annotations(given, NOW)) <= 8

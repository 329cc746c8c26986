"""The cost of a reconcile of a large job, in function calls for each pod: the same on every machine, unlike time.

The operator reconciles a job of thousands of pods every two seconds while it trains, and has one thread for all jobs.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.operator.given import IMAGE, NOW, a_job, a_pod, a_snapshot, in_round, member, observed
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.pods import NO_PODS, Pods
from understudy_operator.plan.faults.annotations import plan_annotations
from understudy_operator.plan.faults.avoidance import avoidance
from understudy_operator.plan.reconcile import reconcile
from understudy_operator.plan.verdicts.findings import Finding
from understudy_protocol import pod as names
from understudy_protocol.enums import FaultClass

ACTIVES, SPARES = 490, 10
NO_COORDINATION = observed(snapshot=None).coordination


@pytest.fixture(scope="module")
def large() -> Observed:
    """A job that trains, each pod on a node of its own, with an up-to-date status."""
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
    """Without results of an earlier run, except those that are kept with the pods."""
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


def with_a_changed_pod(given: Observed) -> Observed:
    """Nothing is known of its pods yet."""
    return replace(given, pods=Pods(given.pods))


def test_nodes_of_pods_without_a_change_are_not_read(large: Observed):
    assert plan_annotations(large, NOW) == ()
    assert calls_per_pod(large, lambda given: plan_annotations(given, NOW)) < 0.1


def test_a_reconcile_after_a_change_of_a_pod_costs_few_calls_for_each_pod(large: Observed):
    plan = reconcile(large, IMAGE, NOW)
    assert (plan.status, plan.pods, plan.events) == (None, (), ())
    assert calls_per_pod(with_a_changed_pod(large), lambda given: reconcile(given, IMAGE, NOW)) <= 61


def test_a_reconcile_does_not_search_pods_again_that_have_not_changed(large: Observed):
    # given a reconcile of the same pods, as the store reports them until one of them changes
    reconcile(large, IMAGE, NOW)
    # when the job is reconciled again, then only the members that the coordinator reports are read
    assert calls_per_pod(large, lambda given: reconcile(given, IMAGE, NOW)) <= 12


def test_the_plan_of_a_creation_makes_no_manifest_yet(large: Observed):
    """Those of 5,000 pods took a second, and a recovery of another job waited for it."""
    job = a_job(parallelism=ACTIVES, spares=SPARES, status={})
    given = replace(large, pods=NO_PODS, job=job, coordination=NO_COORDINATION)
    assert len(reconcile(given, IMAGE, NOW).pods) == ACTIVES + SPARES
    assert calls_per_pod(given, lambda given: reconcile(given, IMAGE, NOW)) <= 20


def test_avoided_nodes_are_computed_once_a_reconcile(large: Observed):
    """For any number of decisions that use them: here for a job on thousands of nodes with findings."""
    cordoned = Finding("cordon", FaultClass.MAINTENANCE, "the node is cordoned")
    bad = replace(large, nodes={name: replace(node, findings=(cordoned,)) for name, node in large.nodes.items()})
    once = calls_per_pod(bad, lambda given: avoidance(given, NOW))
    many = calls_per_pod(bad, lambda given: [avoidance(given, NOW) for _ in range(10)])
    assert once > 3
    assert many < once + 1


def test_cached_results_of_a_reconcile_are_not_used_for_other_facts_or_times(large: Observed):
    now = NOW + 60
    requests = replace(large, offenders={"node-a000": "failed twice"})
    spot = Finding("gke-termination", FaultClass.PREEMPTION, "taint", until=now)
    assert [entry.node for entry in avoidance(requests, NOW)] == ["node-a000"]
    assert avoidance(replace(requests, offenders={}), NOW) == ()
    nodes = {**large.nodes, "node-a001": replace(large.nodes["node-a001"], findings=(spot,))}
    going = replace(large, nodes=nodes)
    assert [entry.node for entry in avoidance(going, NOW)] == ["node-a001"]
    assert avoidance(going, now) == ()

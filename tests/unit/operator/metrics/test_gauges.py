"""Gauges from statuses; no label has the name of an object."""

from typing import Any

from understudy_operator.metrics import gauges
from understudy_operator.plan.facts.cluster_objects import Node
from understudy_operator.plan.facts.status import AvoidedNode, Condition, JobStatus, PoolStatus, RolloutsStatus, Spares
from understudy_operator.plan.times.rfc3339 import whole_seconds
from understudy_operator.plan.verdicts.findings import Finding
from understudy_protocol.enums import FaultClass

NOW = 1_800_000_000.0


def job(phase: str, since: float = NOW, **status: Any) -> JobStatus:
    return JobStatus(phase=phase, conditions=(Condition("Ready", "False", phase, "", whole_seconds(since)),), **status)


def test_jobs_are_counted_by_phase_and_a_phase_without_a_job_is_0():
    result = gauges.phases([job("Running"), job("Running"), job("Failed"), JobStatus()])
    assert {phase for (phase,), count in result.items() if not count} == {
        "Starting",
        "Recovering",
        "Restarting",
        "Suspended",
        "Succeeded",
    }
    assert (result[("Running",)], result[("Failed",)], result[("Pending",)]) == (2, 1, 1)


def test_the_longest_wait_of_each_phase_is_reported():
    result = gauges.longest_waits([job("Recovering", NOW - 20), job("Recovering", NOW - 90), job("Running", 0)], NOW)
    assert result == {("Pending",): 0.0, ("Starting",): 0.0, ("Recovering",): 90.0, ("Restarting",): 0.0}


def test_spares_and_rollouts_of_jobs_that_have_not_ended_are_counted():
    spares, rollouts = Spares(desired=2, ready=1, claimed=1), RolloutsStatus(fresh=3, uncertain=1)
    jobs = [job("Running", spares=spares, rollouts=rollouts)] * 2
    ended = job("Succeeded", terminal_state="Completed", spares=spares, rollouts=rollouts)
    assert gauges.spares([*jobs, ended]) == {("desired",): 4, ("ready",): 2, ("claimed",): 2}
    assert gauges.rollouts([*jobs, ended]) == {("fresh",): 6, ("updating",): 0, ("uncertain",): 2}


def test_a_pool_that_should_have_spares_and_has_none_to_claim_is_counted():
    full = PoolStatus(desired=2, ready=2, claimed=0, available=2)
    spent = PoolStatus(desired=2, ready=1, claimed=1, available=0)
    pools = [full, spent, PoolStatus(desired=0), PoolStatus()]
    assert gauges.pool_pods(pools) == {("desired",): 4, ("ready",): 3, ("claimed",): 1, ("available",): 2}
    assert gauges.empty_pools(pools) == 1


def test_nodes_are_counted_by_their_current_findings():
    def node(name: str, fault_class: FaultClass | None, until: float | None = None) -> Node:
        return Node(name, True, findings=(Finding("row", fault_class, "", until),))

    nodes = [
        node("a", FaultClass.HARDWARE),
        node("b", FaultClass.HARDWARE, until=NOW - 1),  # expired
        node("c", None),  # healthy by a source's verdict
        node("d", FaultClass.PREEMPTION),
    ]
    assert gauges.verdicts(nodes, NOW) == {("Hardware",): 1, ("Maintenance",): 0, ("Preemption",): 1}


def test_a_node_that_two_jobs_avoid_counts_once():
    one, two = (AvoidedNode(node=name, source="memory", reason="") for name in "ab")
    jobs = [job("Running", avoided_nodes=(one, two)), job("Running", avoided_nodes=(one,))]
    assert gauges.count_avoided_nodes(jobs) == 2

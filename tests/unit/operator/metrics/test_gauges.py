"""Gauges from statuses; no label has the name of an object."""

from typing import Any

from msgspec.structs import replace

from understudy_operator.metrics import gauges
from understudy_operator.plan.facts.cluster_objects import Node
from understudy_operator.plan.facts.status import (
    AvoidedNode,
    Condition,
    Goodput,
    JobStatus,
    LostTime,
    PartSeconds,
    PoolStatus,
    ProgressStatus,
    RolloutsStatus,
    Spares,
)
from understudy_operator.plan.times.rfc3339 import whole_seconds
from understudy_operator.plan.verdicts.findings import Finding
from understudy_protocol.enums import Fault, FaultClass
from understudy_protocol.goodput import Part

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


def test_a_job_that_was_suspended_waits_since_it_was_resumed():
    # given a job that is Recovering, was resumed 20 s ago, and was suspended a week before
    waits = job("Recovering", NOW - 604_800)
    resumed = Condition("Suspended", "False", "ResumeJobs", "", whole_seconds(NOW - 20))
    waits = replace(waits, conditions=(*waits.conditions, resumed))
    # then it has waited for 20 s
    assert gauges.longest_waits([waits], NOW)[("Recovering",)] == 20.0


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


def account(part: Part | None, since: float, **seconds: float) -> Goodput:
    start = whole_seconds(NOW - 10_000)
    return Goodput(start_time=start, since=whole_seconds(since), part=part, seconds=PartSeconds(**seconds))


def test_the_time_of_jobs_is_counted_by_part_until_now():
    stepped = ProgressStatus(7, None, whole_seconds(NOW - 5))
    trains = job("Running", goodput=account(Part.PRODUCTIVE, NOW - 100, starting=20.0), progress=stepped)
    waits = job("Recovering", goodput=account(Part.CAPACITY, NOW - 30, productive=50.0))
    ended = job("Succeeded", terminal_state="Completed", goodput=account(None, NOW, productive=999.0))
    result = gauges.job_seconds([trains, waits, ended, JobStatus()], NOW)
    assert {part: seconds for (part,), seconds in result.items() if seconds} == {
        "productive": 95.0 + 50.0,
        "starting": 20.0,
        "capacity": 30.0,
        "sinceLastStep": 5.0,
    }


def test_the_time_that_faults_have_cost_is_counted_by_fault_and_without_nodes():
    lost = (LostTime(Fault.NODE, "a", 5.0), LostTime(Fault.NODE, "b", 2.0), LostTime(Fault.HANG, "a", 1.0))
    result = gauges.job_lost_seconds([job("Running", goodput=replace(account(Part.PRODUCTIVE, NOW), lost=lost))])
    assert {fault: seconds for (fault,), seconds in result.items()} == {
        "Node": 7.0,
        "Hang": 1.0,
        "Process": 0.0,
        "Pod": 0.0,
        "WeightUpdate": 0.0,
    }


def test_the_lowest_goodput_is_that_of_a_job_that_is_old_enough_and_reports_steps():
    young = job("Running", goodput=account(Part.RESTART, NOW, productive=1.0, restart=3000.0))
    silent = job("Running", goodput=account(Part.WITHOUT_STEPS, NOW, without_steps=9000.0))
    assert gauges.lowest_goodput([young, silent, JobStatus()], NOW) == {}
    good = job("Running", goodput=account(Part.RESTART, NOW, productive=9000.0, restart=1000.0))
    # a suspension does not count
    worse = job("Running", goodput=account(Part.RESTART, NOW, productive=4000.0, restart=1000.0, suspended=5000.0))
    ended = job("Failed", terminal_state="Failed", goodput=account(None, NOW, productive=1.0, restart=9000.0))
    assert gauges.lowest_goodput([young, silent, good, worse, ended], NOW) == {(): 0.8}

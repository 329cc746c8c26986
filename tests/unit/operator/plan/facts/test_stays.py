"""The node of a fault in status: the one on which the operator observed the pod, whatever the coordinator reports."""

from collections.abc import Iterable
from typing import Any

import pytest

from tests.unit.operator.given import (
    A0,
    A1,
    NOW,
    S,
    a_job,
    a_pod,
    a_recovery,
    a_snapshot,
    a_status,
    after,
    in_round,
    observed,
    status_of,
)
from understudy_operator.plan.facts.cluster_objects import Node, Pod, Stay
from understudy_operator.plan.facts.status import written
from understudy_operator.plan.facts.stays import node_at
from understudy_operator.plan.faults.node_history import NO_MEMORY, JobRecoveries, Memory, find_offenders
from understudy_protocol.enums import Fault
from understudy_protocol.observer import Cause, Recovery, Snapshot

VICTIM = "node-of-another-tenant"


def a_fault(pod: str, node: str, at: float = NOW, fault: Fault = Fault.NODE) -> Recovery:
    return a_recovery(at, fault=fault, cause=Cause(0, pod, node, None, None, "buy my GPUs"))


def reported(*faults: Recovery) -> Snapshot:
    return a_snapshot(recoveries=faults)


def nodes_in(status: dict[str, Any]) -> list[str]:
    return [entry["cause"].get("node", "") for entry in status["recoveries"]]


def remembered(*statuses: dict[str, Any]) -> Memory:
    """The memory after jobs of one namespace with these statuses."""
    recoveries = (a_status(status).recoveries for status in statuses)
    return NO_MEMORY.after([JobRecoveries(f"uid-{i}", f"attackers/job-{i}", x) for i, x in enumerate(recoveries)], NOW)


def avoided_for(namespace: str, memory: Memory, *nodes: str) -> set[str]:
    present = {name: Node(name, True, created_at=NOW - 1e7) for name in nodes}
    return set(find_offenders(memory, present, NOW).of(namespace))


@pytest.mark.attack(
    "B1",
    "a coordinator reports two faults of a node on which its job has no pod",
    before="the node became a repeat offender, with the text of the attacker",
)
def test_a_coordinator_that_blames_the_node_of_another_tenant_blames_its_own():
    # given a job whose coordinator reports two faults of a node of another tenant
    status = after(in_round(1), reported(a_fault("a1", VICTIM), a_fault("a1", VICTIM, NOW - 60)))

    # then status has the node on which the operator observed the pod, and the other node is not remembered
    assert nodes_in(status) == ["node-a1", "node-a1"]
    memory = remembered(status, status, status)
    assert set(memory.by_node) == {"node-a1"}
    assert avoided_for("attackers", memory, VICTIM) == avoided_for("others", memory, VICTIM) == set()


@pytest.mark.attack(
    "B1",
    "one job reports ten faults of the node of one of its pods",
    before="one job alone made the node a repeat offender",
)
def test_one_job_counts_once_however_many_faults_it_reports():
    faults = [a_fault("a1", "node-a1", NOW - number) for number in range(10)]
    memory = remembered(after(in_round(1), reported(*faults)))
    assert avoided_for("attackers", memory, "node-a1") == set()
    assert avoided_for("others", memory, "node-a1") == set()


@pytest.mark.attack(
    "B1",
    "one job reports so many faults of a node that the faults of other jobs there are forgotten",
    before="only the newest six faults of a node were kept, whichever job they were of",
)
def test_one_job_does_not_displace_reports_of_other_jobs_about_a_node():
    status = after(in_round(1), reported(a_fault("a1", "node-a1", NOW - 3600)))
    flood = after(in_round(1), reported(*(a_fault("a1", "node-a1", NOW - number) for number in range(10))))
    memory = remembered(flood, status, status)
    assert {offence.job for offence in memory.by_node["node-a1"]} == {
        "attackers/job-0",
        "attackers/job-1",
        "attackers/job-2",
    }


@pytest.mark.parametrize("pod", ["", "pod-of-another-job"])
def test_a_pod_that_is_not_of_the_job_has_no_node(pod: str):
    assert nodes_in(after(in_round(1), reported(a_fault(pod, VICTIM)))) == [""]


def test_a_fault_without_a_node_is_read_as_it_was_written() -> None:
    """Otherwise each reconcile would write status again."""
    status = after(in_round(1), reported(a_fault("a9", VICTIM)))
    assert written(a_status(status)) == status


def test_a_weight_update_names_the_node_that_the_operator_observed_too():
    assert nodes_in(after(in_round(1), reported(a_fault("a1", VICTIM, fault=Fault.WEIGHT_UPDATE)))) == ["node-a1"]


def with_pods(pods: Iterable[Pod], *gone: Stay, before: dict[str, Any] | None = None) -> list[str]:
    status = in_round(1) if before is None else before
    snapshot = reported(a_fault("a1", VICTIM))
    return nodes_in(status_of(observed(a_job(status=status), pods, snapshot, past_stays=gone)))


def test_the_node_of_a_pod_that_has_just_gone_is_known():
    assert with_pods([A0, S], Stay("a1", "uid-a1", "node-x", NOW - 3600, NOW - 30)) == ["node-x"]


def test_a_node_that_status_has_recorded_stays_when_the_pod_is_gone():
    before = after(in_round(1), reported(a_fault("a1", VICTIM)))
    assert with_pods([A0, S], before=before) == ["node-a1"]


def test_a_pod_that_was_gone_long_before_the_fault_does_not_count():
    assert with_pods([A0, S], Stay("a1", "uid-a1", "node-x", NOW - 7200, NOW - 3600)) == [""]


def test_a_pod_that_was_created_long_after_the_fault_does_not_count():
    assert with_pods([A0, a_pod("a1", 1, created_at=NOW + 600), S]) == [""]


def test_of_pods_of_one_name_the_newest_one_that_existed_counts():
    stays = (
        Stay("w0", "uid-1", "n1", 1000.0, 2000.0),
        Stay("w0", "uid-2", "n2", 2000.0, 3000.0),
        Stay("w0", "uid-3", "n3", 9000.0),
    )
    given = observed(past_stays=stays)
    assert [node_at(given, "w0", at) for at in (100.0, 1500.0, 2500.0, 5000.0, 9500.0)] == ["", "n1", "n2", "", "n3"]


def test_a_revised_cause_names_the_node_of_the_other_pod():
    before = after(in_round(1), reported(a_fault("a1", VICTIM)))
    assert nodes_in(after(before, reported(a_fault("a0", VICTIM)))) == ["node-a0"]
    assert A1.node == "node-a1"

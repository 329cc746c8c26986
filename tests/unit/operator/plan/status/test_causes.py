"""The cause of a loss that the pod itself shows, in status and events: it may be late, is reported once, and stays."""

from collections.abc import Mapping
from typing import Any

from tests.unit.operator.given import (
    A0,
    LEADERSHIP,
    NOW,
    a_job,
    a_pod,
    a_recovery,
    a_snapshot,
    a_status,
    in_round,
    observed,
    status_of,
)
from understudy_operator.plan.facts.cluster_objects import Pod
from understudy_operator.plan.status.events import plan_events
from understudy_protocol.enums import Fault
from understudy_protocol.observer import Cause, Recovery

OOM = "container trainer ran out of memory (limit 64Gi)"
LOST = a_recovery(fault=Fault.POD, cause=Cause(0, "a0", "node-a0", None, None, "its connection ended"))
DEAD = a_pod("a0", 0, phase="Failed", out_of_memory=OOM)


def reconcile_after(
    before: Mapping[str, Any], *recoveries: Recovery, pods: list[Pod]
) -> tuple[dict[str, Any], list[str]]:
    """The status after a reconcile, and the events of the change."""
    given = observed(a_job(status=before), pods=pods, snapshot=a_snapshot(recoveries=list(recoveries)))
    status = status_of(given)
    return status, [f"{event.reason}: {event.message}" for event in plan_events(given, LEADERSHIP, a_status(status))]


def message(status: Mapping[str, Any]) -> str:
    return str(status["lastRecovery"]["cause"]["message"])


def test_a_cause_that_is_known_at_once_is_reported_with_the_fault():
    status, result = reconcile_after(in_round(0), LOST, pods=[DEAD])
    assert message(status) == f"{OOM}; its connection ended"
    assert result == [f"FaultDetected: Pod: rank 0 on a0 (node node-a0): {OOM}; its connection ended"]


def test_a_cause_that_the_kubelet_reports_later_is_reported_once():
    # given a loss whose container has no status yet
    status, result = reconcile_after(in_round(0), LOST, pods=[A0])
    assert message(status) == "its connection ended"
    # when the kubelet reports its end
    status, result = reconcile_after(status, LOST, pods=[DEAD])
    # then status and an event report it, and the next reconcile adds nothing
    assert message(status) == f"{OOM}; its connection ended"
    assert result == [f"OutOfMemory: Pod: rank 0 on a0 (node node-a0): {OOM}; its connection ended"]
    again, result = reconcile_after(status, LOST, pods=[DEAD])
    assert (message(again), result) == (message(status), [])


def test_a_cause_stays_when_the_pod_or_its_coordinator_is_gone():
    status, _ = reconcile_after(in_round(0), LOST, pods=[DEAD])
    for recoveries in ([LOST], []):
        after, result = reconcile_after(status, *recoveries, pods=[])
        assert message(after) == f"{OOM}; its connection ended"
        assert [text for text in result if "OutOfMemory" in text] == []


def test_a_workers_failure_before_the_pod_ran_out_of_memory_keeps_its_own_cause():
    failed = a_recovery(NOW - 60, NOW - 59, cause=Cause(0, "a0", "node-a0", 1, None, "ValueError"))
    status, _ = reconcile_after(in_round(0), failed, LOST, pods=[DEAD])
    assert [entry["cause"]["message"] for entry in status["recoveries"]] == [
        "ValueError",
        f"{OOM}; its connection ended",
    ]


def test_a_late_disruption_is_reported_as_one():
    # given a pod that was preempted; so far only the coordinator has reported its loss
    preempted = a_pod("a0", 0, phase="Failed", disruption="it was disrupted: PreemptionByScheduler: for prod-1")
    status, _ = reconcile_after(in_round(0), LOST, pods=[A0])
    # when the API server shows its condition
    status, result = reconcile_after(status, LOST, pods=[preempted])
    # then the cause names the pod that preempted it
    assert message(status) == "it was disrupted: PreemptionByScheduler: for prod-1; its connection ended"
    assert [line.split(":")[0] for line in result] == ["Disrupted"]

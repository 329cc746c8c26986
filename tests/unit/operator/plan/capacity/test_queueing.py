"""The reports of a job that waits in Kueue's queue. Plans with their conditions: scenarios/queue.yaml."""

from dataclasses import replace

from tests.unit.operator.given import (
    A0,
    A1,
    LEADERSHIP,
    S,
    a_job,
    a_snapshot,
    a_status,
    condition,
    in_round,
    member,
    observed,
    pending,
    status_of,
)
from tests.unit.operator.plan.capacity.test_gang import at_the_gate, enlisted, queued
from understudy_operator.plan.facts.cluster_objects import ChildJob
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.queue import MANAGED
from understudy_operator.plan.status.events import plan_events

WAITS = (enlisted(at_the_gate(A0)), enlisted(at_the_gate(A1)))
ADMITTED = (enlisted(A0), enlisted(A1))


def kinds(given: Observed) -> set[str]:
    return {entry["type"] for entry in status_of(given)["conditions"]}


def test_a_gang_that_waits_for_quota_reports_it_with_its_queue_and_its_group():
    status = status_of(observed(queued(a_job()), WAITS))
    result = condition(status, "QuotaReserved")
    assert (result["status"], result["reason"]) == ("False", "WaitingForQuota")
    assert result["message"] == "waits for quota in queue team (Kueue): 2 of 2 pods, as pod group llm-1"
    assert result["message"] in condition(status, "Ready")["message"]
    assert status["phase"] == "Pending"


def test_the_wait_for_quota_and_the_admission_are_reported_once():
    waiting = observed(queued(a_job()), WAITS)
    status = status_of(waiting)
    assert [x.reason for x in plan_events(waiting, LEADERSHIP, a_status(status))].count("WaitingForQuota") == 1
    again = observed(queued(a_job(status=status)), WAITS)
    assert "WaitingForQuota" not in [x.reason for x in plan_events(again, LEADERSHIP, a_status(status_of(again)))]
    later = observed(queued(a_job(status=status)), ADMITTED)
    result = status_of(later)
    assert condition(result, "QuotaReserved")["reason"] == "Admitted"
    assert [x.reason for x in plan_events(later, LEADERSHIP, a_status(result))].count("Admitted") == 1


def test_pods_that_kueue_does_not_manage_are_reported():
    pods = [
        replace(pod, labels={key: value for key, value in pod.labels.items() if key != MANAGED}) for pod in ADMITTED
    ]
    result = condition(status_of(observed(queued(a_job()), pods)), "QuotaReserved")
    assert (result["status"], result["reason"]) == ("False", "NotManaged")
    assert "pod integration" in result["message"]


def test_a_pod_without_kueues_finalizer_does_not_wait_for_quota():
    is_done = replace(WAITS[0], finalizers=())
    status = status_of(observed(queued(a_job(status=in_round(1))), (is_done,)))
    assert "waits for quota" not in condition(status, "Ready")["message"]


def test_a_job_without_a_queue_has_no_quota_condition():
    assert "QuotaReserved" not in kinds(observed(a_job()))
    assert "QuotaReserved" not in kinds(observed(a_job(spec={"world": None})))


def test_a_job_without_a_queue_whose_pods_kueue_gates_reports_the_missing_label():
    status = status_of(observed(a_job(), (at_the_gate(A0), at_the_gate(A1))))
    assert "kueue.x-k8s.io/queue-name" in condition(status, "QuotaReserved")["message"]


def test_a_pod_that_joins_a_running_group_does_not_stop_it():
    pods = (enlisted(A0), enlisted(at_the_gate(A1)), S)
    given = observed(queued(a_job(status=in_round(1))), pods, a_snapshot([member(A0, 0), member(S, 1)], number=1))
    status = status_of(given)
    assert condition(status, "QuotaReserved")["status"] == "True"
    assert "1 of 2 pods" in condition(status, "Ready")["message"]
    assert status["phase"] == "Running"


def test_a_spare_that_waits_for_quota_is_reported():
    spare = at_the_gate(S)
    result = condition(status_of(observed(queued(a_job()), (*ADMITTED, spare))), "QuotaReserved")
    assert (result["status"], result["message"]) == ("True", "1 of 1 spares wait for quota")


def test_an_evicted_gang_is_pending_again():
    status = in_round(3, phase="Running")
    given = observed(
        queued(a_job(status=status)), (*WAITS, S), a_snapshot([member(S, None)], waiting_for="2 of 2 pods")
    )
    assert status_of(given)["phase"] == "Pending"


def test_a_pod_at_another_scheduling_gate_is_reported_with_the_gate():
    pod = replace(pending(A1), gates=("example.com/hold",))
    message = condition(status_of(observed(a_job(), (A0, pod, S))), "Ready")["message"]
    assert message == "pod a1 waits until its scheduling gate example.com/hold is removed"


def test_a_queued_batch_job_is_reported_by_name():
    child = ChildJob("uid", "llm-leader-0", "leader", 0, 0, 0, 1, suspended=True, queue="team")
    given = observed(queued(a_job(spec={"world": None})), (), children=(child,))
    result = condition(status_of(given), "QuotaReserved")
    assert (result["status"], result["message"]) == ("False", "Job llm-leader-0 waits for quota in queue team (Kueue)")
    admitted = observed(given.job, (), children=(replace(child, suspended=False, active=1),))
    assert condition(status_of(admitted), "QuotaReserved")["status"] == "True"


def test_a_suspended_job_does_not_wait_for_quota():
    job = queued(a_job(spec={"suspend": True}))
    assert "QuotaReserved" not in kinds(observed(job, WAITS))


AT = "2026-11-20T10:00:00Z"
JOBS = (ChildJob("uid", "llm-driver-0", "driver", 0, attempt=0, job_attempt=0, desired_pods=1, queue="team"),)


def test_an_operator_that_does_not_know_yet_whether_kueue_exists_keeps_the_condition():
    values = {
        "type": "QuotaReserved",
        "status": "False",
        "reason": "NotManaged",
        "message": "",
        "lastTransitionTime": AT,
    }
    known, new = a_job(status={"conditions": [values]}), a_job()
    for job, reasons in ((known, ["NotManaged"]), (new, [])):
        status = status_of(observed(job, (), children=JOBS, has_kueue=None))
        assert [x["reason"] for x in status["conditions"] if x["type"] == "QuotaReserved"] == reasons


def test_a_job_that_waits_for_an_uninstalled_kueue_reports_it():
    gone = ", and the cluster has no Kueue (API group kueue.x-k8s.io): install it, or remove the label"
    waiting = tuple(replace(child, suspended=True) for child in JOBS)
    for given in (observed(queued(a_job()), WAITS, has_kueue=False), observed(children=waiting, has_kueue=False)):
        status = status_of(given)
        assert gone in condition(status, "QuotaReserved")["message"]
        assert gone in condition(status, "Ready")["message"]

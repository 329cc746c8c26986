"""Stuck pods on a real cluster: the job's conditions name the kubelet's, the scheduler's or the finalizer's reason.

Quotas, and finalizers on pods whose kubelet does not respond: tests/integration/operator.
"""

import json
from collections.abc import Callable

import pytest

from tests.e2e.compared import compared, fault_of
from tests.e2e.lanes import NAMESPACE
from tests.e2e.plain import MakeJob, PlainJob
from tests.e2e.training import Raw
from tests.e2e.waiting import wait_until

pytestmark = pytest.mark.timeout(120)

FINALIZER = "example.com/audit"
NO_IMAGE = "no-such-registry.invalid/trainer:1"
NOWHERE = {"example.com/nowhere": "true"}


def apply(job: PlainJob, change: Callable[[Raw], object]) -> None:
    """change: a change to the pods' spec."""
    manifest = job.manifest()
    change(manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"])
    job.cluster.kubectl("apply", "-f", "-", input=json.dumps(manifest))


def apply_as_jobset(job: PlainJob, change: Callable[[Raw], object]) -> None:
    """A Job without a launcher: its pods are the Job controller's."""
    manifest = job.manifest()
    manifest["spec"] |= {"launcher": {"mode": "Off"}, "spares": {"replicas": 0}}
    change(manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"])
    job.cluster.kubectl("apply", "-f", "-", input=json.dumps(manifest))


def has_message(status: Raw, *words: str, kind: str = "Ready") -> bool:
    """Whether the condition has one of these texts in its message."""
    message = next((c["message"] for c in status.get("conditions", ()) if c["type"] == kind), "")
    return any(word in message for word in words)


def with_image(pod: Raw) -> None:
    pod["containers"][0]["image"] = NO_IMAGE


def with_nowhere(pod: Raw) -> None:
    pod["nodeSelector"] = NOWHERE


def test_conditions_name_the_reason_why_pods_cannot_start(make_job: MakeJob) -> None:
    # given jobs with pods of the operator's own and of the Job controller, whose image or node does not exist
    waiting = [
        (make_job(f"{name}-{kind}"), how, change, reasons)
        for kind, how in (("own", apply), ("jobset", apply_as_jobset))
        for name, change, reasons in (
            ("imageless", with_image, ("ErrImagePull", "ImagePullBackOff")),
            ("nowhere", with_nowhere, ("Unschedulable",)),
        )
    ]
    for job, how, change, _ in waiting:
        how(job, change)
    # then each job's condition has the reason of the kubelet or the scheduler
    for job, _, _, reasons in waiting:
        job.wait_for("the condition names the reason", lambda s, reasons=reasons: has_message(s, *reasons))


def test_an_evicted_pod_that_a_finalizer_keeps_is_not_charged_and_delays_nothing(make_job: MakeJob) -> None:
    # given a job without restarts for its workers' faults, and a pod with a finalizer of another controller
    job = make_job("evicted")
    job.apply(recovery={"inPlace": {"maxRestarts": 0}})
    job.wait_until_whole()
    coordinator = job.status()["coordinator"]["podUID"]
    ranked = [pod for pod in job.pods() if pod["metadata"]["labels"]["understudy.dev/role"] == "active"]
    victim = next(pod for pod in ranked if pod["metadata"]["uid"] != coordinator)
    name = victim["metadata"]["name"]
    finalizers = json.dumps({"metadata": {"finalizers": [FINALIZER]}})
    job.cluster.kubectl("-n", NAMESPACE, "patch", "pod", name, "--type=merge", "-p", finalizers)
    try:
        # when the pod is evicted, as a drain does it (DisruptionTarget), then a spare takes its ranks
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": NAMESPACE}}
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/eviction"
        with compared(job, fault_of(victim, "Pod", "SpareSwap")):
            job.cluster.kubectl("create", "--raw", path, "-f", "-", input=json.dumps(eviction))
        # which is not charged, and the operator creates another spare
        after = job.wait_until_whole()
        assert after["recoveriesByStrategy"].get("inPlace", 0) == 0
        assert after["restarts"] == 0
        # and the condition names the finalizer
        job.wait_for("the condition names the finalizer", lambda s: has_message(s, FINALIZER), 30)
    finally:
        none = json.dumps({"metadata": {"finalizers": None}})
        job.cluster.kubectl("-n", NAMESPACE, "patch", "pod", name, "--type=merge", "-p", none)
    wait_until(
        "the pod is gone", lambda: name not in {pod["metadata"]["name"] for pod in job.pods()}, 30, seen=job.text
    )

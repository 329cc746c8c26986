"""What is stuck on a real cluster: images, room, quotas, finalizers, evictions. Each job says what it waits for."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.e2e.conftest import NAMESPACE
from tests.e2e.plain import PlainJob
from tests.e2e.training import Raw
from tests.e2e.waiting import wait_until

pytestmark = pytest.mark.timeout(120)

FINALIZER = "example.com/audit"
NO_IMAGE = "no-such-registry.invalid/trainer:1"
NOWHERE = {"example.com/nowhere": "true"}
MakeJob = Callable[..., PlainJob]


@pytest.fixture
def make_job(cluster: Cluster) -> Iterator[MakeJob]:
    """A job that is deleted after the test; keyword arguments are PlainJob's."""
    made: list[PlainJob] = []

    def make(name: str, namespace: str = NAMESPACE, **changes: Any) -> PlainJob:
        job = PlainJob(cluster, namespace, name, **changes)
        made.append(job)
        job.delete()
        return job

    yield make
    for job in made:
        job.delete()


@pytest.fixture
def small_namespace(cluster: Cluster) -> Iterator[str]:
    """One with room for two pods."""
    name = "understudy-e2e-quota"
    cluster.kubectl("create", "namespace", name, check=False)
    cluster.kubectl("-n", name, "delete", "quota", "pods", "--ignore-not-found")
    cluster.kubectl("-n", name, "create", "quota", "pods", "--hard=pods=2")
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


def apply(job: PlainJob, change: Callable[[Raw], object]) -> None:
    """change: of the pods' spec."""
    manifest = job.manifest()
    change(manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"])
    job.cluster.kubectl("apply", "-f", "-", input=json.dumps(manifest))


def apply_as_jobset(job: PlainJob, change: Callable[[Raw], object]) -> None:
    """Without a launcher: its pods are the Job controller's."""
    manifest = job.manifest()
    del manifest["spec"]["launcher"], manifest["spec"]["spares"]
    change(manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"])
    job.cluster.kubectl("apply", "-f", "-", input=json.dumps(manifest))


def says(status: Raw, *words: str, kind: str = "Running") -> bool:
    """Whether the condition has one of these words in its message."""
    message = next((c["message"] for c in status.get("conditions", ()) if c["type"] == kind), "")
    return any(word in message for word in words)


def with_image(pod: Raw) -> None:
    pod["containers"][0]["image"] = NO_IMAGE


def with_nowhere(pod: Raw) -> None:
    pod["nodeSelector"] = NOWHERE


@pytest.mark.parametrize("how", [apply, apply_as_jobset])
def test_an_image_that_does_not_pull_is_told(make_job: MakeJob, how: Callable[..., None]) -> None:
    job = make_job("imageless")
    how(job, with_image)
    job.wait_for("the condition says so", lambda s: says(s, "ErrImagePull", "ImagePullBackOff"))


@pytest.mark.parametrize("how", [apply, apply_as_jobset])
def test_a_pod_that_fits_nowhere_is_told(make_job: MakeJob, how: Callable[..., None]) -> None:
    job = make_job("nowhere")
    how(job, with_nowhere)
    job.wait_for("the condition says so", lambda s: says(s, "Unschedulable"), 20)


def test_a_quota_is_told_and_the_job_begins_when_there_is_room(make_job: MakeJob, small_namespace: str) -> None:
    # given room for two of three pods
    job = make_job("large", small_namespace)
    job.apply()
    job.wait_for("the condition says so", lambda s: says(s, "exceeded quota", kind="Blocked"), 20)
    # when there is room, then it runs
    room = json.dumps({"spec": {"hard": {"pods": "10"}}})
    job.cluster.kubectl("-n", small_namespace, "patch", "quota", "pods", "--type=merge", "-p", room)
    assert not says(job.wait_until_whole(), "exceeded quota", kind="Blocked")


def test_a_finalizer_of_somebody_elses_holds_up_nothing(make_job: MakeJob) -> None:
    # given a job that runs, and a pod that somebody holds on to
    job = make_job("held")
    job.apply()
    job.wait_until_whole()
    active = next(pod for pod in job.pods() if pod["metadata"]["labels"]["understudy.dev/role"] == "active")
    name = active["metadata"]["name"]
    kubectl = ("-n", NAMESPACE)
    hold = json.dumps({"metadata": {"finalizers": [FINALIZER]}})
    job.cluster.kubectl(*kubectl, "patch", "pod", name, "--type=merge", "-p", hold)
    try:
        # when it is deleted, then a spare has its ranks, another spare is made, and the job says who holds the object
        job.cluster.kubectl(*kubectl, "delete", "pod", name, "--wait=false")
        status = job.wait_for("the job has recovered", lambda s: s.get("lastRecovery", {}).get("resumedAt"))
        assert status["lastRecovery"]["strategy"] == "SpareSwap"
        job.wait_until_whole()
        job.wait_for("the condition says so", lambda s: says(s, FINALIZER), 30)
    finally:
        let_go = json.dumps({"metadata": {"finalizers": None}})
        job.cluster.kubectl(*kubectl, "patch", "pod", name, "--type=merge", "-p", let_go)
    wait_until("it is gone", lambda: name not in {pod["metadata"]["name"] for pod in job.pods()}, 30, seen=job.text)


def test_an_eviction_costs_no_restart(make_job: MakeJob) -> None:
    # given a job that may restart nothing for its workers' faults
    job = make_job("evicted")
    job.apply(recovery={"inPlace": {"maxRestarts": 0}})
    job.wait_until_whole()
    coordinator = job.status()["coordinator"]["podUID"]
    ranked = [pod for pod in job.pods() if pod["metadata"]["labels"]["understudy.dev/role"] == "active"]
    name = next(pod["metadata"]["name"] for pod in ranked if pod["metadata"]["uid"] != coordinator)
    # when a pod is evicted, as a drain does it (DisruptionTarget)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": NAMESPACE}}
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/eviction"
    job.cluster.kubectl("create", "--raw", path, "-f", "-", input=json.dumps(eviction))
    # then a spare has its ranks, at no cost
    status = job.wait_for("the job has recovered", lambda s: s.get("lastRecovery", {}).get("resumedAt"))
    assert status["lastRecovery"]["strategy"] == "SpareSwap"
    assert status["lastRecovery"]["cause"]["pod"] == name
    after = job.wait_until_whole()
    assert after["recoveriesByStrategy"].get("inPlace", 0) == 0
    assert after["restarts"] == 0

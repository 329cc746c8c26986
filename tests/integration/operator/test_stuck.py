"""Stuck jobs: pods that do not end, pods that do not start, exhausted quotas. Each is reported within seconds.

test_refusals.py has webhooks, policies and namespaces; test_deleted_objects.py Secrets and Services.
"""

import time
from typing import Any

import pytest

from tests.integration.operator.kube import Kube, Raw
from tests.integration.operator.process import OperatorProcess
from tests.integration.operator.test_jobs import AT, as_jobset
from tests.integration.operator.test_refusals import blocked, set_quota, until_free
from tests.integration.operator.training import NAME, Training, container, is_spare, node_of
from understudy_protocol import pod as names
from understudy_protocol.enums import Fault
from understudy_protocol.observer import Lost

pytestmark = pytest.mark.timeout(120)

REPORTED_WITHIN_S = 5.0
FINALIZER = "example.com/audit"


def lost(pod: Raw, fault: Fault = Fault.NODE) -> Lost:
    metadata = pod["metadata"]
    return Lost(metadata["uid"], metadata["name"], node_of(pod), fault, "silent", time.time())


def uids(pods: list[Raw]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


async def until_reported(training: Training, kube: Kube, words: str) -> None:
    """Condition Running has this text."""

    async def is_reported() -> bool:
        return words in (await training.condition("Ready"))[1]

    await kube.until(f"condition Ready has {words!r}", is_reported)


async def is_reported_in_time(training: Training, kube: Kube, words: str) -> None:
    since = time.monotonic()
    await until_reported(training, kube, words)
    assert time.monotonic() - since <= REPORTED_WITHIN_S


async def set_pod_status(kube: Kube, pod: Raw, **status: Any) -> None:
    await kube.call("PATCH", f"pods/{pod['metadata']['name']}/status", {"status": status})


async def until_another(training: Training, kube: Kube, previous: set[str]) -> Raw:
    """A pod that is none of these."""

    async def look() -> list[Raw]:
        return [pod for pod in await training.pods() if pod["metadata"]["uid"] not in previous]

    return (await kube.until("another pod", look))[0]


async def bind(training: Training, kube: Kube, pod: Raw) -> None:
    name = pod["metadata"]["name"]
    await training.set_node_ready(node_of(pod), ready=True)
    target = {"target": {"kind": "Node", "name": node_of(pod)}}
    await kube.call("POST", f"pods/{name}/binding", {"metadata": {"name": name}, **target})


# Pods that do not end ------------------------------------------------------------------------------------------------


async def test_a_third_partys_finalizer_delays_nothing_and_is_reported(training: Training, kube: Kube):
    # given a job that runs, one of whose pods has a third party's finalizer
    a0, a1, spare = await training.start()
    path = f"pods/{a1['metadata']['name']}"
    await kube.call("PATCH", path, {"metadata": {"finalizers": [FINALIZER]}})

    # when its node dies
    await training.set_node_ready(node_of(a1), ready=False)
    await training.report(1, [(a0, 0), (spare, 1)], lost=(lost(a1),))

    # then it is replaced, although its object stays, and the job reports the finalizer
    new = await until_another(training, kube, uids([a0, a1, spare]))
    await until_reported(
        training, kube, f"pod {a1['metadata']['name']} has ended, but its object stays until its finalizers"
    )
    assert FINALIZER in (await training.condition("Ready"))[1]
    assert (await training.status())["phase"] == "Running"
    kept = await kube.call("GET", path)
    assert kept["metadata"]["deletionGracePeriodSeconds"] == 0

    # and it is deleted only once
    version = kept["metadata"]["resourceVersion"]
    await training.report(2, [(a0, 0), (spare, 1), (new, None)])

    async def is_received() -> bool:
        return bool((await training.status())["round"] == 2)

    await kube.until("round 2", is_received)
    assert uids(await training.pods()) == uids([a0, spare, new])
    assert (await kube.call("GET", path))["metadata"]["resourceVersion"] == version

    # when the finalizer is removed, then the object is gone
    await kube.call("PATCH", path, {"metadata": {"finalizers": None}})

    async def gone() -> bool:
        return a1["metadata"]["uid"] not in uids(await kube.list("pods")) and await training.condition("Ready") == (
            "True",
            "",
        )

    await kube.until("the pod is gone and not reported any more", gone)


async def test_a_dead_node_that_is_still_ready_gets_no_pod_and_its_pods_are_force_deleted_when_it_is_not(
    training: Training, kube: Kube
):
    # given a job that runs, and a dead node whose loss only the coordinator has detected
    a0, a1, spare = await training.start()
    await training.report(1, [(a0, 0), (spare, 1)], lost=(lost(a1),))

    # then its pod is deleted, which no kubelet carries out, and the new one avoids that node
    new = await until_another(training, kube, uids([a0, a1, spare]))
    assert node_of(a1) in new["metadata"]["annotations"][names.ANNOTATION_AVOIDED_NODES]

    async def asked_to_end() -> bool:
        return a1["metadata"]["uid"] not in uids(await training.pods())

    await kube.until("the pod on the dead node is deleted", asked_to_end)
    assert a1["metadata"]["uid"] in uids(await kube.list("pods"))

    # when the node is not Ready any more, then its pod is force-deleted
    await training.set_node_ready(node_of(a1), ready=False)

    async def removed() -> bool:
        return uids(await kube.list("pods")) == uids([a0, spare, new])

    await kube.until("the pod on the dead node is removed", removed)


async def test_pods_of_a_node_that_is_back_are_spares_again(training: Training, kube: Kube, operator: OperatorProcess):
    # given a job that runs, and a node that is lost while no operator runs
    a0, a1, spare = await training.start()
    operator.kill()
    await training.set_node_ready(node_of(a1), ready=False)

    # when it is back with its pod, whose rank the spare has taken
    await training.set_node_ready(node_of(a1), ready=True)
    await training.report(1, [(a0, 0), (spare, 1), (a1, None)])
    operator.start()

    # then the pod is the spare, and no other one is created
    async def relabelled() -> bool:
        return is_spare(await kube.call("GET", f"pods/{a1['metadata']['name']}"))

    await kube.until("the pod is a spare", relabelled)
    assert uids(await kube.list("pods")) == uids([a0, a1, spare])
    assert await training.condition("SparesReady") == ("True", "1 of 1")


# Pods that do not start ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("ErrImagePull", 'failed to pull "example.com/trainer:1": not found'),
        ("ImagePullBackOff", 'Back-off pulling image "example.com/trainer:1"'),
        ("InvalidImageName", 'couldn\'t parse image reference "Example"'),
        ("CreateContainerConfigError", 'secret "wandb" not found'),
    ],
)
async def test_a_container_that_waits_gives_the_reason_in_time(
    training: Training, kube: Kube, reason: str, message: str
):
    await training.apply()
    pod = (await training.until_pods(3))[0]
    await bind(training, kube, pod)
    waits = [container("trainer", {"waiting": {"reason": reason, "message": message}})]
    await set_pod_status(kube, pod, phase="Pending", containerStatuses=waits)
    await is_reported_in_time(training, kube, f"pod {pod['metadata']['name']}: container trainer: {reason}: {message}")


async def test_a_pod_that_no_node_has_room_for_is_reported_in_time(training: Training, kube: Kube):
    await training.apply()
    pod = (await training.until_pods(3))[0]
    full = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}
    await set_pod_status(kube, pod, conditions=[full])
    await is_reported_in_time(training, kube, f"pod {pod['metadata']['name']}: Unschedulable: 0/3 nodes are available")


async def test_pods_that_a_kubelet_rejects_are_recreated_with_pauses_and_reported_with_the_reason(
    training: Training, kube: Kube
):
    # given a job, and a node whose devices are broken
    await training.apply()
    pods = await training.until_pods(3)
    (spare,) = [pod for pod in pods if is_spare(pod)]
    refusal = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no healthy devices present"}

    # when its kubelet rejects one pod after the other
    made: list[Raw] = []
    for number in (1, 2, 3):
        await set_pod_status(kube, spare, **refusal)
        await is_reported_in_time(training, kube, "UnexpectedAdmissionError: no healthy devices present")
        made.append(spare := await until_another(training, kube, uids([*pods, *made])))
        # then each new one has the number of failed starts before it
        assert spare["metadata"]["annotations"][names.ANNOTATION_FAILED_STARTS] == str(number)
    # and all others are not changed
    assert uids([pod for pod in pods if not is_spare(pod)]) <= uids(await training.pods())


async def test_a_pod_that_avoids_many_nodes_is_recreated_when_one_is_healthy_again(training: Training, kube: Kube):
    # given a hundred faulty nodes, and a pod that finds no other one
    nodes = [f"gpu-pool-a3-mega-{kube.namespace}-{number:03d}" for number in range(100)]
    faulty = {"annotations": {names.ANNOTATION_FAULTY: "Xid 79"}}
    ready = {"conditions": [{"type": "Ready", "status": "True", "reason": "Test", "message": ""}]}
    try:
        for node in nodes:
            await kube.call("POST", "/api/v1/nodes", {"metadata": {"name": node, **faulty}, "status": ready})
        await training.apply()
        pods = await training.until_pods(3)
        pod = next(pod for pod in pods if not is_spare(pod))
        assert pod["metadata"]["annotations"][names.ANNOTATION_AVOIDED_NODES].split(",") == nodes
        full = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node"}
        await set_pod_status(kube, pod, conditions=[full])
        await is_reported_in_time(training, kube, f"(it avoids {', '.join(nodes[:3])} and 97 more")

        # when one of them is healthy again
        await kube.call("PATCH", f"/api/v1/nodes/{nodes[41]}", {"metadata": {"annotations": None}})

        # then another pod is created, which may use that node
        new = await until_another(training, kube, uids(pods))
        assert new["metadata"]["annotations"][names.ANNOTATION_AVOIDED_NODES].split(",") == nodes[:41] + nodes[42:]
        assert pod["metadata"]["uid"] not in uids(await training.pods())
    finally:
        for node in nodes:
            await kube.call("DELETE", f"/api/v1/nodes/{node}")


# Quotas --------------------------------------------------------------------------------------------------------------


async def test_a_quota_that_is_exhausted_when_a_pod_is_lost_is_reported_in_time_and_training_continues(
    training: Training, kube: Kube
):
    # given a job that runs, and a quota of one pod fewer than the job has
    a0, a1, spare = await training.start()
    await set_quota(kube, 2)
    since = time.monotonic()

    # when a pod is lost
    await training.remove(a1)
    await training.report(1, [(a0, 0), (spare, 1)])

    # then it is not replaced, the job reports the reason, and runs
    assert "exceeded quota" in await blocked(training, kube, "QuotaExceeded")
    assert time.monotonic() - since <= REPORTED_WITHIN_S
    assert (await training.status())["phase"] == "Running"
    assert uids(await training.pods()) == uids([a0, spare])

    # when there is room, then it is replaced
    await set_quota(kube, 5)
    await training.until_pods(3)
    await until_free(training, kube)


# Pods of child Jobs --------------------------------------------------------------------------------------------------


async def test_a_pod_of_a_child_job_that_cannot_start_is_reported_in_time(training: Training, kube: Kube):
    # given a JobSet's manifest, one of whose Jobs has a pod that no node has room for
    await training.apply(as_jobset)
    job = await kube.until("the Job is there", lambda: a_job(kube, f"{NAME}-leader-0"))
    assert job is not None
    labels = job["spec"]["template"]["metadata"]["labels"]
    spec = job["spec"]["template"]["spec"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"], "uid": job["metadata"]["uid"]}
    metadata = {"name": f"{NAME}-leader-0-0-x", "labels": labels, "ownerReferences": [owner | {"controller": True}]}
    pod = await kube.call("POST", "pods", {"metadata": metadata, "spec": spec})
    await kube.call("PATCH", f"jobs/{NAME}-leader-0/status", {"status": {"startTime": AT, "active": 1, "ready": 0}})
    full = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}
    await set_pod_status(kube, pod, conditions=[full])

    # then the TrainingJob reports it
    await is_reported_in_time(training, kube, f"pod {NAME}-leader-0-0-x: Unschedulable: 0/3 nodes are available")


async def test_a_child_job_without_pods_is_reported_in_time(training: Training, kube: Kube):
    """The Job controller has started it, and creates no pod: as if a quota rejected each of them."""
    await training.apply(as_jobset)
    await kube.until("the Job is there", lambda: a_job(kube, f"{NAME}-leader-0"))
    await kube.call("PATCH", f"jobs/{NAME}-leader-0/status", {"status": {"startTime": AT}})
    await is_reported_in_time(training, kube, f"Job {NAME}-leader-0 has 0 of 1 pods: see the events of the Job")


async def a_job(kube: Kube, name: str) -> Raw | None:
    return next((job for job in await kube.list("jobs") if job["metadata"]["name"] == name), None)

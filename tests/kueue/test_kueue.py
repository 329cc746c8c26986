"""The behavior of Kueue that the operator relies on, with the real Kueue: groups, replacements, evictions, and the
release of quota.
"""

import pytest

from tests.integration.operator.kube import Kube, Raw
from tests.integration.operator.training import NAME, Training, is_spare
from understudy_operator.plan.facts import queue as kueue
from understudy_protocol.enums import CloseReason
from understudy_protocol.membership import Close
from understudy_protocol.wire import encode

pytestmark = pytest.mark.timeout(180)
VERSION = "kueue.x-k8s.io/v1beta2"
API = f"/apis/{VERSION}"


def n(pod: Raw) -> str:
    return str(pod["metadata"]["name"])


def group(pod: Raw) -> str:
    return str(pod["metadata"]["labels"].get(kueue.GROUP_NAME, ""))


def gated(pod: Raw) -> bool:
    return bool(pod["spec"].get("schedulingGates"))


class Queue:
    """The test's own ClusterQueue, and the queue `team` in its namespace. Quota is counted in pods."""

    def __init__(self, kube: Kube) -> None:
        self.kube, self.path = kube, f"{API}/clusterqueues/{kube.namespace}"

    async def open(self, pods: int) -> None:
        spec: Raw = {"namespaceSelector": {}, "resourceGroups": groups(pods)}
        whole = {"apiVersion": VERSION, "kind": "ClusterQueue", "metadata": {"name": self.kube.namespace}, "spec": spec}
        await self.kube.call("POST", f"{API}/clusterqueues", whole)
        path = f"{API}/namespaces/{self.kube.namespace}/localqueues"
        spec = {"clusterQueue": self.kube.namespace}
        await self.kube.call(
            "POST", path, {"apiVersion": VERSION, "kind": "LocalQueue", "metadata": {"name": "team"}, "spec": spec}
        )

    async def set(self, pods: int, stop: str = "None") -> None:
        await self.kube.call("PATCH", self.path, {"spec": {"resourceGroups": groups(pods), "stopPolicy": stop}})

    async def reserved(self) -> int:
        """The number of pods for which quota is reserved."""
        status = (await self.kube.call("GET", self.path)).get("status", {})
        resources = [x for flavor in status.get("flavorsReservation", ()) for x in flavor["resources"]]
        return sum(int(x["total"]) for x in resources if x["name"] == "pods")

    async def workloads(self) -> list[Raw]:
        items: list[Raw] = (await self.kube.call("GET", f"{API}/namespaces/{self.kube.namespace}/workloads"))["items"]
        return items


def groups(pods: int) -> list[Raw]:
    quotas = {"cpu": "1000", "memory": "1000Gi", "pods": str(pods)}
    resources = [{"name": name, "nominalQuota": quota} for name, quota in quotas.items()]
    return [{"coveredResources": list(quotas), "flavors": [{"name": "nodes", "resources": resources}]}]


@pytest.fixture
def queue(kube: Kube) -> Queue:
    return Queue(kube)


def in_queue(job: Raw) -> None:
    job["metadata"]["labels"] = {kueue.QUEUE: "team"}


async def until_admitted(training: Training, kube: Kube, count: int) -> list[Raw]:
    async def look() -> list[Raw]:
        pods = await training.pods()
        return pods if len(pods) == count and not any(map(gated, pods)) else []

    return await kube.until(f"{count} pods past their gates", look)


async def until_reserved(queue: Queue, pods: int) -> None:
    async def look() -> bool:
        return await queue.reserved() == pods

    await queue.kube.until(f"quota for {pods} pods is taken", look)


async def until_gone(kube: Kube, *gone: Raw) -> None:
    async def look() -> bool:
        return not {n(pod) for pod in gone} & {n(pod) for pod in await kube.list("pods")}

    await kube.until(f"{', '.join(map(n, gone))} gone", look)


async def started(training: Training, kube: Kube, queue: Queue, pods: int = 3) -> list[Raw]:
    """From the creation to round 0, with quota for this many pods; the spare is last."""
    await queue.open(pods)
    job = await training.apply(in_queue)
    gang = await until_admitted(training, kube, 2)
    await training.serve(job)
    await training.run(gang[0], training.standby.ip)
    await training.run(gang[1])
    (spare,) = [pod for pod in await until_admitted(training, kube, 3) if is_spare(pod)]
    await training.run(spare, training.coordinator.ip)
    await training.until_appointed()
    training.coordinator_uid(spare)
    await training.report(0, [(gang[0], 0), (gang[1], 1), (spare, None)])
    await training.until_phase("Running")
    return [*gang, spare]


async def ends(training: Training, pod: Raw) -> None:
    """A pod that is being deleted: its kubelet reports its end, and removes its object."""
    await training.end(pod, "", 143)
    await training.remove(pod)


async def none_live(training: Training) -> bool:
    return await training.pods() == []


async def test_a_gang_waits_as_one_group_and_the_spare_after_it(training: Training, kube: Kube, queue: Queue):
    # given quota for only one pod of two
    await queue.open(1)
    await training.apply(in_queue)
    gang = await training.until_pods(2)

    async def waiting() -> bool:
        return len(await queue.workloads()) == 1

    # then the group is one workload, and none of its pods is admitted
    await kube.until("the group's workload", waiting)
    (workload,) = await queue.workloads()
    assert workload["metadata"]["name"] == group(gang[0])
    assert [(x["name"], x["count"]) for x in workload["spec"]["podSets"]] == [("workers", 2)]
    assert (await training.status())["phase"] == "Pending"
    assert [gated(pod) for pod in await training.pods()] == [True, True]

    # when there is quota only for the group
    await queue.set(2)
    gang = await until_admitted(training, kube, 2)
    for pod in gang:
        await training.run(pod)

    # then the spare waits by itself, and the job does not
    (spare,) = [pod for pod in await training.until_pods(3) if is_spare(pod)]
    assert gated(spare)
    assert (await training.condition("QuotaReserved"))[0] == "True"


async def test_a_lost_pod_is_replaced_in_the_group_without_more_quota(training: Training, kube: Kube, queue: Queue):
    # given a job that trains with all available quota, one of whose nodes is marked as faulty
    a0, a1, spare = await started(training, kube, queue)
    faulty = {"metadata": {"annotations": {"understudy.dev/faulty": "Xid 79"}}}
    await kube.call("PATCH", f"/api/v1/nodes/node-{n(a1)}", faulty)

    # when its pod is deleted, the spare takes its ranks, and it has ended
    await kube.call("DELETE", f"pods/{n(a1)}")
    await training.report(1, [(a0, 0), (spare, 1)])
    await ends(training, a1)

    # then a pod joins the group at once, although it avoids a node, and Kueue releases the lost one
    pods = await until_admitted(training, kube, 3)
    (new,) = [pod for pod in pods if n(pod) not in {n(a0), n(spare)}]
    assert group(new) == group(a0)
    assert new["spec"]["affinity"]
    await until_gone(kube, a1)
    await until_reserved(queue, 3)


async def test_while_a_lost_pod_ends_no_pod_is_created_that_kueue_would_delete(
    training: Training, kube: Kube, queue: Queue
):
    a0, a1, spare = await started(training, kube, queue)
    await kube.call("DELETE", f"pods/{n(a1)}")
    await training.report(1, [(a0, 0), (spare, 1)])

    async def round_one() -> bool:
        return (await training.status()).get("round") == 1

    await kube.until("round 1", round_one)
    assert {n(pod) for pod in await training.pods()} == {n(a0), n(spare)}
    await ends(training, a1)
    await until_admitted(training, kube, 3)
    events = [x["reason"] for x in await kube.list("events")]
    assert "ExcessPodDeleted" not in events


async def test_a_pod_on_a_dead_node_does_not_occupy_its_place_in_the_group(
    training: Training, kube: Kube, queue: Queue
):
    a0, a1, spare = await started(training, kube, queue)
    await training.set_node_ready(f"node-{n(a1)}", ready=False)
    await training.report(1, [(a0, 0), (spare, 1)])
    await until_gone(kube, a1)
    pods = await until_admitted(training, kube, 3)
    assert sorted(group(pod) for pod in pods) == sorted(["", group(a0), group(a0)])


async def test_an_evicted_job_queues_again_and_is_admitted_again(training: Training, kube: Kube, queue: Queue):
    # given a job that trains, whose queue is stopped
    a0, a1, spare = await started(training, kube, queue)
    await queue.set(3, stop="HoldAndDrain")

    async def evicted() -> bool:
        return await training.pods() == []

    await kube.until("all pods are asked to end", evicted)
    await training.report(0, [], waiting_for="2 of 2 pods (group ranks 0, 1)")

    # when its pods have ended
    for pod in (a0, a1, spare):
        await ends(training, pod)

    # then it waits, without a pod of the previous group, and nothing has failed
    async def waits() -> bool:
        pods = await training.pods()
        return len(pods) == 2 and all(map(gated, pods))

    await kube.until("two pods at the gate", waits)
    await until_reserved(queue, 0)
    assert (await training.until_phase("Pending")).get("terminalState") is None

    # when the queue resumes
    await queue.set(3)

    # then the gang is admitted as a whole
    pods = await until_admitted(training, kube, 2)
    assert len({group(pod) for pod in pods}) == 1
    await until_gone(kube, a0, a1)


async def test_a_failed_job_releases_its_quota_although_its_pods_stay_for_their_logs(
    training: Training, kube: Kube, queue: Queue
):
    pods = await started(training, kube, queue)
    close = Close(CloseReason.FAILED, "10 restarts in place within 1 h are spent")
    for pod in pods:
        await training.end(pod, encode(close), 81)
    await training.until_phase("Failed")
    await until_reserved(queue, 0)
    assert len(await kube.list("pods")) == 3


async def test_a_deleted_jobs_pods_are_released_by_kueue(training: Training, kube: Kube, queue: Queue):
    """Kueue removes its finalizer when all pods have ended: no operator needs to run for this."""
    pods = await started(training, kube, queue)
    await kube.call("DELETE", f"trainingjobs/{NAME}")
    for pod in pods:  # as the garbage collector and the kubelets do
        await kube.call("DELETE", f"pods/{n(pod)}")
    for pod in pods[:2]:
        await ends(training, pod)
    await until_gone(kube, *pods[:2])


async def test_a_job_that_is_suspended_in_the_queue_leaves_it(training: Training, kube: Kube, queue: Queue):
    await queue.open(1)
    await training.apply(in_queue)
    previous = await training.until_pods(2)

    async def waiting() -> bool:
        return len(await queue.workloads()) == 1

    await kube.until("the group's workload", waiting)
    await kube.call("PATCH", f"trainingjobs/{NAME}", {"spec": {"suspend": True}})
    await kube.until("no pods are left that live", lambda: none_live(training))
    for pod in previous:  # as Kubernetes' pod garbage collector does with pods that were never scheduled
        await kube.call("PATCH", f"pods/{n(pod)}/status", {"status": {"phase": "Failed"}})
    await until_gone(kube, *previous)

    # and when it is resumed, now with quota
    await queue.set(2)
    await kube.call("PATCH", f"trainingjobs/{NAME}", {"spec": {"suspend": False}})
    pods = await until_admitted(training, kube, 2)
    assert not {group(pod) for pod in pods} & {group(pod) for pod in previous}


async def test_a_batch_job_runs_when_kueue_admits_it(training: Training, kube: Kube, queue: Queue):
    def as_jobset(job: Raw) -> None:
        in_queue(job)
        del job["spec"]["launcher"], job["spec"]["spares"]

    # given no quota
    await queue.open(1)
    await training.apply(as_jobset)

    async def suspended() -> list[Raw]:
        return [job for job in await kube.list("jobs") if job["spec"]["suspend"]]

    # then its Job is suspended, and the operator does not resume it
    (job,) = await kube.until("a Job that Kueue has suspended", suspended)

    async def is_reported() -> bool:
        return f"Job {n(job)} waits for quota" in (await training.condition("QuotaReserved"))[1]

    await kube.until("the wait is reported", is_reported)

    # when there is quota
    await queue.set(2)

    async def resumed() -> bool:
        return not (await kube.call("GET", f"jobs/{n(job)}"))["spec"]["suspend"]

    await kube.until("Kueue resumes it", resumed)

    async def reserved() -> bool:
        return (await training.condition("QuotaReserved"))[0] == "True"

    await kube.until("it is admitted", reserved)

"""A job in Kueue's queue, on a real API server: gates, groups, replacements, evictions. Kueue is a fake."""

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.integration.operator.kube import Kube, Raw
from tests.integration.operator.kueue import Controller, api_group, webhook
from tests.integration.operator.training import Training, is_spare
from tests.integration.versions import minor
from understudy_operator.plan.facts import queue as kueue
from understudy_protocol import pod as names

if TYPE_CHECKING:
    from tests.integration.conftest import ApiServer

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module", autouse=True)
def _kueue(api_server: "ApiServer") -> Iterator[None]:
    """Before the operator starts, which checks for it then."""
    yield from api_group(api_server)


@pytest.fixture
async def controller(kube: Kube) -> AsyncIterator[Controller]:
    if minor() < 36:
        pytest.skip("this Kubernetes has no MutatingAdmissionPolicy, with which the fake gates pods")
    async with webhook(kube):
        yield Controller(kube)


def in_queue(job: Raw) -> None:
    job["metadata"]["labels"] = {kueue.QUEUE: "team"}


def group(pod: Raw) -> str:
    return str(pod["metadata"]["labels"].get(kueue.GROUP_NAME, ""))


async def until_reason(training: Training, kube: Kube, reason: str) -> str:
    """The message of condition QuotaReserved, once it has that reason."""

    async def is_reported() -> str:
        conditions = (await training.status()).get("conditions", ())
        found = [x for x in conditions if x["type"] == "QuotaReserved" and x["reason"] == reason]
        return f"{found[0]['status']}: {found[0]['message']}" if found else ""

    return await kube.until(f"QuotaReserved, {reason}", is_reported)


async def started(training: Training, kube: Kube, controller: Controller) -> list[Raw]:
    """From the creation to round 0; the spare is last."""
    job = await training.apply(in_queue)
    gang = await training.until_pods(2)
    await until_reason(training, kube, "WaitingForQuota")
    await controller.admit(gang)
    await training.serve(job)
    await training.run(gang[0], training.standby.ip)
    await training.run(gang[1])
    pods = await training.until_pods(3)
    (spare,) = [pod for pod in pods if is_spare(pod)]
    await controller.admit([spare])
    await training.run(spare, training.coordinator.ip)
    await training.until_appointed()
    training.coordinator_uid(spare)
    await training.report(0, [(gang[0], 0), (gang[1], 1), (spare, None)])
    await training.until_phase("Running")
    return [*gang, spare]


async def test_actives_wait_for_quota_as_one_group_and_then_spares_are_created(
    training: Training, kube: Kube, controller: Controller
):
    # when a job in a queue is applied
    await training.apply(in_queue)

    # then its actives are one group at Kueue's gate, there is no spare, and the condition reports the wait
    gang = await training.until_pods(2)
    assert len({group(pod) for pod in gang}) == 1
    assert [pod["spec"]["schedulingGates"] for pod in gang] == [[{"name": kueue.GATE}]] * 2
    result = await until_reason(training, kube, "WaitingForQuota")
    assert result == f"False: waits for quota in queue team (Kueue): 2 of 2 pods, as pod group {group(gang[0])}"
    assert "waits for quota" in (await training.condition("Ready"))[1]

    # when Kueue admits the group, and it has its nodes
    await controller.admit(gang)
    await training.run(gang[0])
    await training.run(gang[1])

    # then the spare is created, as its own workload
    (spare,) = [pod for pod in await training.until_pods(3) if is_spare(pod)]
    assert (spare["metadata"]["labels"][kueue.QUEUE], group(spare)) == ("team", "")
    assert (await until_reason(training, kube, "Admitted")).startswith("True")


async def test_a_lost_pod_is_replaced_in_its_group_once_its_containers_have_ended(
    training: Training, kube: Kube, controller: Controller
):
    # given a job that trains, one pod of which is deleted
    a0, a1, spare = await started(training, kube, controller)
    await kube.call("DELETE", f"pods/{a1['metadata']['name']}")
    await training.report(1, [(a0, 0), (spare, 1)])

    # then no pod replaces it in the group while it ends
    async def round_one() -> bool:
        return (await training.status()).get("round") == 1

    await kube.until("round 1", round_one)
    assert len(await training.pods()) == 2

    # when it has ended (Kueue's finalizer keeps the object)
    await training.end(a1, "", 143)

    # then a new pod joins the group, and waits as the spare
    (new,) = [pod for pod in await training.until_pods(3) if pod["metadata"]["name"] not in {n(a0), n(spare)}]
    assert group(new) == group(a0)
    assert new["metadata"]["annotations"][kueue.ROLE] == a0["metadata"]["annotations"][kueue.ROLE]
    assert new["metadata"]["labels"][names.LABEL_ROLE] == names.ROLE_SPARE
    await controller.let_go([a1])


def n(pod: Raw) -> str:
    return str(pod["metadata"]["name"])


async def test_a_pod_on_a_dead_node_is_released_and_its_place_is_taken(
    training: Training, kube: Kube, controller: Controller
):
    # given a job that trains, and a node that dies
    a0, a1, spare = await started(training, kube, controller)
    await training.set_node_ready(f"node-{n(a1)}", ready=False)

    # when the coordinator has lost it
    await training.report(1, [(a0, 0), (spare, 1)])

    # then the pod is gone in spite of Kueue's finalizer, and a new one is in the group
    async def gone() -> bool:
        return n(a1) not in {n(pod) for pod in await kube.list("pods")}

    await kube.until("the pod on the dead node is gone", gone)
    (new,) = [pod for pod in await training.until_pods(3) if n(pod) not in {n(a0), n(spare)}]
    assert group(new) == group(a0)


async def test_an_evicted_gang_queues_again_and_its_spare_is_deleted(
    training: Training, kube: Kube, controller: Controller
):
    # given a job that trains, and that Kueue evicts
    a0, a1, spare = await started(training, kube, controller)
    await controller.evict([a0, a1])
    await training.report(0, [(spare, None)], waiting_for="2 of 2 pods (group ranks 0, 1)")

    # when its pods have ended
    await training.end(a0, "", 143)
    await training.end(a1, "", 143)

    # then new ones wait for quota, the job is pending, and the spare is deleted
    async def requeued() -> list[Raw]:
        pods = await training.pods()
        waiting = [pod for pod in pods if pod["spec"].get("schedulingGates")]
        return waiting if len(waiting) == len(pods) == 2 else []

    gang = await kube.until("a gang that waits", requeued)
    assert len({group(pod) for pod in gang}) == 1
    await until_reason(training, kube, "WaitingForQuota")
    assert (await training.status())["phase"] == "Pending"
    assert len(await training.until_events("WaitingForQuota", 2)) == 2


async def none_live(training: Training) -> bool:
    return await training.pods() == []


async def test_a_suspended_job_deletes_its_group_and_a_resumed_one_has_another_group(
    training: Training, kube: Kube, controller: Controller
):
    # given a job that waits for quota, is suspended, and resumed
    await training.apply(in_queue)
    previous = await training.until_pods(2)
    await kube.call("PATCH", "trainingjobs/llm", {"spec": {"suspend": True}})
    await kube.until("no pods are left that live", lambda: none_live(training))
    await kube.call("PATCH", "trainingjobs/llm", {"spec": {"suspend": False}})

    # then its new pods are another group, although Kueue's finalizer keeps the previous ones
    gang = await training.until_pods(2)
    assert not {group(pod) for pod in gang} & {group(pod) for pod in previous}
    assert len(await kube.list("pods")) == 4
    await until_reason(training, kube, "WaitingForQuota")
    assert (await training.status())["phase"] == "Pending"


async def test_queued_batch_jobs_are_resumed_by_kueue_only(training: Training, kube: Kube):
    # given a JobSet in a queue, whose Jobs Kueue suspends
    def as_jobset(job: Raw) -> None:
        in_queue(job)
        job["spec"] |= {"launcher": {"mode": "Off"}, "spares": {"replicas": 0}}

    await training.apply(as_jobset)

    async def jobs() -> list[Raw]:
        return await kube.list("jobs")

    (job,) = await kube.until("its Job", jobs)
    assert job["metadata"]["labels"][kueue.QUEUE] == "team"
    await kube.call("PATCH", f"jobs/{n(job)}", {"spec": {"suspend": True}})

    # then it waits for Kueue, and the operator does not resume it
    assert await until_reason(training, kube, "WaitingForQuota") == (
        f"False: Job {n(job)} waits for quota in queue team (Kueue)"
    )
    assert (await kube.call("GET", f"jobs/{n(job)}"))["spec"]["suspend"] is True

    # when Kueue resumes it
    await kube.call("PATCH", f"jobs/{n(job)}", {"spec": {"suspend": False}})

    # then it is admitted
    assert (await until_reason(training, kube, "Admitted")).startswith("True")

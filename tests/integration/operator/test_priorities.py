"""Preemption among spares, fillers and training pods (docs/how-to/spares.md), with the real kube-scheduler."""

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.integration.operator.conftest import kube_of
from tests.integration.operator.kube import Kube, Raw
from tests.integration.operator.pool import TEMPLATE, Pool, claimed, lost, of_pool
from tests.integration.operator.process import OperatorProcess
from tests.integration.operator.scheduler import Nodes, Scheduled, Scheduler, condition, scheduler_of
from tests.integration.operator.training import is_spare, node_of

if TYPE_CHECKING:
    from tests.integration.conftest import ApiServer

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def scheduler(
    api_server: "ApiServer", operator: OperatorProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scheduler]:
    with scheduler_of(api_server, tmp_path_factory.mktemp("scheduler"), operator).started() as scheduler:
        yield scheduler


@pytest.fixture
async def kube(api_server: "ApiServer", scheduler: Scheduler) -> AsyncIterator[Kube]:
    async with kube_of(api_server, scheduler) as kube:
        yield kube


@pytest.fixture
async def nodes(kube: Kube) -> AsyncIterator[Nodes]:
    nodes = Nodes(kube)
    await nodes.begin()
    yield nodes
    await nodes.end()


@pytest.fixture
async def training(kube: Kube, nodes: Nodes) -> AsyncIterator[Scheduled]:
    training = Scheduled(kube, nodes)
    yield training
    await training.stop()


@pytest.fixture
def pool(training: Scheduled) -> Pool:
    return Pool(training.kube, training)


def spares_of(nodes: Nodes, priority: str = "spare") -> Raw:
    """The pool's template."""
    return {"spec": nodes.requests(TEMPLATE["spec"], priority)}


async def spare_on(pool: Pool, nodes: Nodes, priority: str = "spare") -> Raw:
    """A pool of one spare, which is ready."""
    await pool.apply(template=spares_of(nodes, priority))
    (spare,) = await pool.until_spares(1)
    await pool.run(spare)
    await pool.until("it is ready", available=1)
    return spare


async def stays(kube: Kube, pod: Raw) -> bool:
    raw = await kube.call("GET", f"pods/{pod['metadata']['name']}")
    return raw["metadata"]["uid"] == pod["metadata"]["uid"] and "deletionTimestamp" not in raw["metadata"]


async def test_fillers_do_not_preempt_spares_and_spares_preempt_fillers(pool: Pool, nodes: Nodes):
    # given a spare on the only node
    await nodes.add("n1")
    spare = await spare_on(pool, nodes)

    # when fillers are created, then they wait, and the spare stays
    late = await nodes.pod("late", "filler")
    await nodes.until_no_room(late)
    assert await stays(pool.kube, spare)

    # given a filler on another node
    await nodes.add("n2")
    assert await nodes.of(late) == "n2"

    # when the pool is scaled up, then the filler is preempted, and the spare has its place
    await pool.change(replicas=2)
    (second,) = [pod for pod in await pool.until_spares(2) if pod["metadata"]["uid"] != spare["metadata"]["uid"]]
    await pool.end(await nodes.until_preempted(late))
    assert await nodes.of(second) == "n2"
    assert await stays(pool.kube, spare)


async def test_a_training_pod_preempts_a_pools_spare_which_is_reported_and_recreated_when_there_is_room(
    pool: Pool, nodes: Nodes, training: Scheduled
):
    # given a spare, and room for one pod of a job of two
    await nodes.add("n1")
    spare = await spare_on(pool, nodes)
    await nodes.add("n2")

    # when the job is created
    def without_spares(job: Raw) -> None:
        job["spec"]["spares"] = {"replicas": 0}
        trains(job, nodes)

    await training.apply(without_spares)
    pods = await training.until_pods(2)

    # then its second pod gets the spare's place, and the pool reports it
    gone = await nodes.until_preempted(spare)
    assert gone["metadata"]["deletionGracePeriodSeconds"] == 1, "what only holds a place has nothing to save"

    async def is_reported() -> str:
        status = await pool.status()
        return str(condition({"status": status}, "Ready").get("reason", ""))

    async def taken_away() -> bool:
        return await is_reported() == "Preempted"

    await pool.kube.until("the pool reports that its spare was preempted", taken_away)
    await pool.end(gone)
    assert {await nodes.of(pod) for pod in pods} == {"n1", "n2"}

    # and the next spare waits for room
    (refill,) = await pool.until_spares(1)

    async def no_room() -> bool:
        return await is_reported() == "Unschedulable"

    await pool.kube.until("the pool reports that there is no room", no_room)
    found = await pool.kube.list("events")  # the scheduler writes an event of this reason too, on the pod
    (event,) = [x for x in found if (x["reason"], x["regarding"]["kind"]) == ("Preempted", "HotSparePool")]
    assert spare["metadata"]["name"] in event["note"]

    # when there is room, then it is scheduled
    await nodes.add("n3")
    assert await nodes.of(refill) == "n3"
    await pool.run(refill)
    await pool.until("it is ready again", available=1)


async def test_an_urgent_pod_preempts_a_jobs_own_spare_and_no_training_pod(
    nodes: Nodes, training: Scheduled, kube: Kube
):
    # given a job of two pods, and a spare of a lower class, on all nodes
    await nodes.add("n1", "n2", "n3")

    def with_a_spare(job: Raw) -> None:
        job["spec"]["spares"] = {"replicas": 1, "priorityClassName": nodes.priority("spare")}
        trains(job, nodes)

    *actives, spare = await training.start(with_a_spare)

    # when a pod of a class above both needs a node
    urgent = await nodes.pod("urgent", "urgent")

    # then it gets the spare's node
    await nodes.until_preempted(spare)
    await training.end(spare, "", 143)
    await training.remove(spare)
    assert nodes.name(await nodes.of(urgent)) == node_of(spare)

    # and the training continues, without a spare until there is room
    await training.elect(actives[0], 0, [(actives[0], 0), (actives[1], 1)])
    again = await training.until_pods(3)
    (refill,) = [pod for pod in again if pod["metadata"]["uid"] not in {x["metadata"]["uid"] for x in actives}]
    assert is_spare(refill)
    await nodes.until_no_room(refill)
    assert all([await stays(kube, pod) for pod in actives])
    status = await training.until_phase("Running")
    assert (status["members"]["active"], status.get("recoveries", [])) == (2, [])


@pytest.mark.parametrize("priority", ["", "spare"], ids=["of one priority", "of the priorities of the docs"])
async def test_the_job_gets_the_place_of_a_claimed_spare_although_others_wait_for_it(
    nodes: Nodes, training: Scheduled, pool: Pool, kube: Kube, priority: str
):
    # given a pool's spare, and a job of two pods with a spare, on all nodes; and a filler that waits
    await nodes.add("n1")
    shared = await spare_on(pool, nodes, priority)
    await nodes.add("n2", "n3", "n4")

    def with_a_pool(job: Raw) -> None:
        job["spec"]["spares"] = {"replicas": 1, "pool": "shared"}
        trains(job, nodes, "training" if priority else "")

    a0, a1, spare = await training.start(with_a_pool)
    filler = await nodes.pod("waits", "filler")
    await nodes.until_no_room(filler)

    # when the job loses more pods than it has spares, and claims the pool's
    await nodes.power_off(node_of(a0))
    await nodes.power_off(node_of(a1))
    await training.report(1, [(spare, 0)], lost=(lost(a0), lost(a1)), waiting_for="1 of 2 pods (group ranks 1)")
    taken = await claimed(pool)
    assert taken["metadata"]["uid"] == shared["metadata"]["uid"]
    await pool.end(taken)

    # then the job's pod gets its place, even if another pod was faster
    async def placed() -> Raw | None:
        for pod in await kube.list("pods"):
            if "deletionTimestamp" in pod["metadata"] and pod["spec"].get("nodeName") == nodes.name("n1"):
                await ended(pool, pod)
        found = await of_pool(kube)
        return found[0] if found and found[0]["spec"].get("nodeName") else None

    mine = await kube.until("the job's pod has the spare's place", placed)
    assert mine is not None
    assert mine["spec"]["nodeName"] == nodes.name("n1")
    assert await training.events("Unschedulable") == []

    # and the pool's next spare waits for room
    (refill,) = await pool.until_spares(1)
    await nodes.until_no_room(refill)


async def ended(pool: Pool, pod: Raw) -> None:
    """Its kubelet ends the pod that was deleted, unless it has ended before."""
    if pod["status"].get("phase") != "Failed":
        await pool.end(pod)


def trains(job: Raw, nodes: Nodes, priority: str = "training") -> None:
    template = job["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    template["spec"] = nodes.requests(template["spec"], priority)

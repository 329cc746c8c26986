"""Pools and claims with a running operator: a real API server, the chart's rights; kills between steps."""

import json
from collections.abc import AsyncIterator

import pytest

from tests.integration.operator.kube import Kube, Raw
from tests.integration.operator.pool import TEMPLATE, Pool, claimed, lost, names_pool, of_pool
from tests.integration.operator.process import OperatorProcess
from tests.integration.operator.training import JOB, NAME, Training, node_of
from understudy_protocol import pod as names

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
async def pool(kube: Kube, training: Training) -> AsyncIterator[Pool]:
    yield Pool(kube, training)
    for raw in await kube.list("hotsparepools"):
        await kube.call("DELETE", f"hotsparepools/{raw['metadata']['name']}")


async def lose_two(training: Training, pods: list[Raw]) -> None:
    """An active and the spare that could take its rank: the coordinator is the spare, so its pod stays."""
    a0, a1, spare = pods
    await training.set_node_ready(node_of(a0), ready=False)
    await training.set_node_ready(node_of(a1), ready=False)
    await training.report(1, [(spare, 0)], lost=(lost(a0), lost(a1)), waiting_for="1 of 2 pods (group ranks 1)")


async def test_a_pool_creates_its_spares_refills_and_is_scaled(pool: Pool):
    # when a pool is applied
    await pool.apply(replicas=2)
    spares = await pool.until_spares(2)

    # then its spares exist, and are reported once they are ready
    for spare in spares:
        await pool.run(spare)
    status = await pool.until("they are ready", ready=2, available=2, desired=2, claimed=0)
    assert "oldestPodTime" in status

    # when one is deleted, then another one is created
    await pool.end(spares[0])
    again = await pool.until_spares(2)
    assert spares[0]["metadata"]["uid"] not in {pod["metadata"]["uid"] for pod in again}

    # when it is scaled, then the number of spares follows
    await pool.kube.call("PATCH", "hotsparepools/shared/scale", {"spec": {"replicas": 1}})
    (left,) = await pool.until_spares(1)
    assert left["metadata"]["uid"] == spares[1]["metadata"]["uid"], "the one that is ready stays"


async def test_a_new_template_is_rolled_out_with_one_additional_spare(pool: Pool):
    # given a spare of an old template
    await pool.apply()
    (old,) = await pool.until_spares(1)
    await pool.run(old)
    await pool.until("it is ready", ready=1)

    # when the template changes
    container = {**TEMPLATE["spec"]["containers"][0], "image": "example.com/pause:2"}
    await pool.change(template={"spec": {"containers": [container]}})

    # then one more is created, and the old one is deleted once that is ready
    both = await pool.until_spares(2)
    (new,) = [pod for pod in both if pod["metadata"]["uid"] != old["metadata"]["uid"]]
    assert new["spec"]["containers"][0]["image"] == "example.com/pause:2"
    await pool.run(new)
    (left,) = await pool.until_spares(1)
    assert left["metadata"]["uid"] == new["metadata"]["uid"]


@pytest.mark.parametrize("killed", [False, True], ids=["", "killed at each step"])
async def test_a_job_takes_the_place_of_a_spare(
    training: Training, pool: Pool, kube: Kube, operator: OperatorProcess, killed: bool
):
    def perhaps_kill() -> None:
        if killed:
            operator.kill()
            operator.start()

    # given a pool of one, and a job that runs
    await pool.apply()
    (spare,) = await pool.until_spares(1)
    await pool.run(spare)
    await pool.until("it is ready", available=1)
    pods = await training.start(names_pool)

    # when it loses more pods than its spares can replace
    await lose_two(training, pods)

    # then it claims the spare, whose containers are asked to end
    taken = await claimed(pool)
    perhaps_kill()
    assert taken["metadata"]["finalizers"] == [names.FINALIZER_CLAIM]
    job = await kube.call("GET", f"trainingjobs/{NAME}")
    assert taken["metadata"]["labels"][names.LABEL_CLAIMED_BY_UID] == job["metadata"]["uid"]
    assert taken["metadata"]["deletionGracePeriodSeconds"] == 1
    await pool.until("the claim is counted", claimed=1)
    assert await of_pool(kube) == []

    # when its kubelet has confirmed the end
    await pool.end(taken)
    perhaps_kill()

    # then one pod of the job is created for its node, and the spare's object is gone
    async def replaced() -> Raw | None:
        spares = {pod["metadata"]["uid"] for pod in await pool.spares()}
        found = await of_pool(kube)
        return found[0] if found and taken["metadata"]["uid"] not in spares else None

    mine = await kube.until("the job's pod stands in the spare's place", replaced)
    assert mine is not None
    perhaps_kill()
    (refill,) = await pool.until_spares(1)
    terms = mine["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert node_of(taken) in json.dumps(terms)
    await training.run(mine)
    await training.report(2, [(pods[2], 0), (mine, 1)])
    await training.until_phase("Running")
    assert len(await of_pool(kube)) == 1
    assert [pod["metadata"]["uid"] for pod in await pool.until_spares(1)] == [refill["metadata"]["uid"]]

    # and status reports it
    async def is_reported() -> bool:
        return bool(await training.events("SpareClaimed"))

    if not killed:  # an event may be lost with the killed operator
        await kube.until("event SpareClaimed", is_reported)


async def test_a_warm_spare_becomes_the_jobs_by_one_write_and_is_deleted_if_it_cannot_be_adopted(
    training: Training, pool: Pool, kube: Kube
):
    # given a pool whose spares have the template of the job's pods
    (group,) = JOB["spec"]["replicatedJobs"]
    await pool.apply(template=group["template"]["spec"]["template"], launcher=JOB["spec"]["launcher"])
    (spare,) = await pool.until_spares(1)
    assert spare["spec"]["initContainers"][0]["name"] == names.SIDECAR_CONTAINER
    await pool.run(spare)
    await pool.until("it is ready", available=1)
    pods = await training.start(names_pool)

    # when the job loses more pods than its spares can replace
    await lose_two(training, pods)

    # then the spare is one of its pods, unchanged
    async def joined() -> Raw | None:
        found = [pod for pod in await of_pool(kube) if pod["metadata"]["uid"] == spare["metadata"]["uid"]]
        return found[0] if found else None

    mine = await kube.until("the spare is the job's", joined)
    assert mine is not None
    job = await kube.call("GET", f"trainingjobs/{NAME}")
    (owner,) = mine["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("TrainingJob", job["metadata"]["uid"])
    assert names.LABEL_POOL not in mine["metadata"]["labels"]
    assert mine["spec"] == (await kube.call("GET", f"pods/{mine['metadata']['name']}"))["spec"]

    # and since it has no sidecar that accepts the order, it is deleted, and the next claim is Replace
    refill = await pool.until_spares(1)
    await pool.run(refill[0])
    taken = await claimed(pool)
    assert taken["metadata"]["uid"] == refill[0]["metadata"]["uid"]


async def test_the_claim_of_a_job_that_is_deleted_is_released(training: Training, pool: Pool, kube: Kube):
    # given a claim that is being carried out
    await pool.apply()
    (spare,) = await pool.until_spares(1)
    await pool.run(spare)
    await pool.until("it is ready", available=1)
    await lose_two(training, await training.start(names_pool))
    taken = await claimed(pool)

    # when the job is deleted, and the spare has ended
    await kube.call("DELETE", f"trainingjobs/{NAME}")
    await pool.end(taken)

    # then the spare's object has no finalizer any more
    async def gone() -> bool:
        return taken["metadata"]["uid"] not in {pod["metadata"]["uid"] for pod in await pool.spares()}

    await kube.until("the spare is gone", gone)

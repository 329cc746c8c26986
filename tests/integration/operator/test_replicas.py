"""Two replicas of the operator and one Lease: one of them acts, and the other one does soon after it is gone."""

import time

import pytest

from tests.integration.operator.kube import Kube, Raw
from tests.integration.operator.replicas import Replicas, all_ready, health, leader
from tests.integration.operator.training import NAME, Training

pytestmark = pytest.mark.timeout(120)

FAILOVER_S = 15.5
SLOW_S = 1.0  # the additional time on a busy machine


@pytest.fixture
def operator(replicas: Replicas) -> Replicas:
    return replicas


@pytest.fixture
async def kube(kube: Kube, replicas: Replicas) -> Kube:
    await kube.until("all replicas are ready", lambda: all_ready(replicas))
    return kube


async def test_one_replica_leads_and_calls_the_coordinator_and_the_other_one_is_ready(
    training: Training, kube: Kube, replicas: Replicas
):
    first = await leader(kube)
    lines = {process.name: await health(process, "/readyz") for process in replicas.processes}
    assert lines.pop(first) == (200, "leader")
    assert list(lines.values()) == [(200, "standby")]
    await training.start()
    assert len(training.coordinator.observers) == 1


async def test_after_a_kill_the_other_replica_leads_once_the_lease_has_expired_and_repeats_nothing(
    training: Training, kube: Kube, replicas: Replicas
):
    # given a job whose leader has just begun to create the pods
    first = await leader(kube)
    await training.apply()

    async def begun() -> list[Raw]:
        return await kube.list("pods")

    await kube.until("pods are made", begun)

    # when it is killed
    replicas.named(first).kill()
    killed_at = time.monotonic()

    # then the other one continues
    assert await leader(kube, other_than=first) != first
    assert time.monotonic() - killed_at <= FAILOVER_S + SLOW_S
    await training.until_pods(3)
    assert {(await health(x, "/healthz"))[1] for x in replicas.processes if x.runs} == {"leader"}


async def test_a_clean_stop_releases_the_lease_at_once_and_status_is_continued(
    training: Training, kube: Kube, replicas: Replicas
):
    a0, a1, spare = await training.start()
    first = await leader(kube)
    replicas.named(first).stop()
    stopped_at = time.monotonic()
    await leader(kube, other_than=first)
    assert time.monotonic() - stopped_at <= 1.0 + SLOW_S

    # the next one finds the coordinator, and reports its state; no new appointment is made
    await training.report(1, [(a0, 0), (a1, 1), (spare, None)])

    async def is_reported() -> bool:
        return (await training.status()).get("round") == 1

    await kube.until("round 1 is reported", is_reported)
    assert len(training.coordinator.appointments) == 1


@pytest.mark.attack("A2", "freezes the leader, and lets it go on after another one leads", before="refused, too")
async def test_a_leader_that_was_frozen_does_nothing_when_it_thaws(training: Training, kube: Kube, replicas: Replicas):
    first = await leader(kube)
    replicas.named(first).freeze()
    second = await leader(kube, other_than=first)
    await training.apply()
    pods = await training.until_pods(3)

    # when it thaws, and at once receives a job that it has never observed
    replicas.named(first).thaw()

    async def stands_by() -> bool:
        return (await health(replicas.named(first), "/readyz")) == (200, "standby")

    await kube.until("it stands by", stands_by)
    assert await leader(kube) == second

    # then there are the same pods, and each event was written once
    assert {pod["metadata"]["uid"] for pod in await training.pods()} == {pod["metadata"]["uid"] for pod in pods}
    events = [x["note"] for x in await kube.list("events") if x["regarding"]["name"] == NAME]
    assert len(events) == len(set(events))

"""Two replicas of the operator and one Lease: one of them acts, and another one soon does when it is gone."""

import time

import pytest

from tests.integration.operator.kube import Kube, Raw
from tests.integration.operator.replicas import Replicas, all_ready, health, leader
from tests.integration.operator.training import NAME, Training

pytestmark = pytest.mark.timeout(120)

FAILOVER_S = 15.5
SLOW_S = 1.0  # what a busy machine may add


@pytest.fixture
def operator(replicas: Replicas) -> Replicas:
    return replicas


@pytest.fixture
async def kube(kube: Kube, replicas: Replicas) -> Kube:
    await kube.until("all replicas are ready", lambda: all_ready(replicas))
    return kube


async def test_one_leads_the_other_is_ready_and_only_the_leader_calls_the_coordinator(
    training: Training, kube: Kube, replicas: Replicas
):
    first = await leader(kube)
    lines = {process.name: await health(process, "/readyz") for process in replicas.processes}
    assert lines.pop(first) == (200, "leader")
    assert list(lines.values()) == [(200, "standby")]
    await training.start()
    assert len(training.coordinator.observers) == 1


async def test_after_a_kill_the_other_one_leads_once_the_lease_has_expired_and_nothing_is_done_twice(
    training: Training, kube: Kube, replicas: Replicas
):
    # given a job of which the leader has just begun to make the pods
    first = await leader(kube)
    await training.apply()

    async def begun() -> list[Raw]:
        return await kube.list("pods")

    await kube.until("pods are made", begun)

    # when it is killed
    replicas.named(first).kill()
    killed_at = time.monotonic()

    # then the other one goes on
    assert await leader(kube, other_than=first) != first
    assert time.monotonic() - killed_at <= FAILOVER_S + SLOW_S
    await training.until_pods(3)
    assert {(await health(x, "/healthz"))[1] for x in replicas.processes if x.runs} == {"leader"}


async def test_a_clean_stop_hands_over_at_once_and_status_goes_on(training: Training, kube: Kube, replicas: Replicas):
    a0, a1, spare = await training.start()
    first = await leader(kube)
    replicas.named(first).stop()
    stopped_at = time.monotonic()
    await leader(kube, other_than=first)
    assert time.monotonic() - stopped_at <= 1.0 + SLOW_S

    # the next one finds the coordinator, and tells what it says; nobody is appointed anew
    await training.report(1, [(a0, 0), (a1, 1), (spare, None)])

    async def is_reported() -> bool:
        return (await training.status()).get("round") == 1

    await kube.until("round 1 is told", is_reported)
    assert len(training.coordinator.appointments) == 1


@pytest.mark.attack("A2", "freezes the leader, and lets it go on after another one leads", before="refused, too")
async def test_a_leader_that_was_frozen_does_nothing_when_it_thaws(training: Training, kube: Kube, replicas: Replicas):
    first = await leader(kube)
    replicas.named(first).freeze()
    second = await leader(kube, other_than=first)
    await training.apply()
    pods = await training.until_pods(3)

    # when it thaws, and hears at once of a job that it has never seen
    replicas.named(first).thaw()

    async def stands_by() -> bool:
        return (await health(replicas.named(first), "/readyz")) == (200, "standby")

    await kube.until("it stands by", stands_by)
    assert await leader(kube) == second

    # then there are the same pods, and each event was told once
    assert {pod["metadata"]["uid"] for pod in await training.pods()} == {pod["metadata"]["uid"] for pod in pods}
    events = [x["note"] for x in await kube.list("events") if x["regarding"]["name"] == NAME]
    assert len(events) == len(set(events))

"""The operator checks regularly whether the cluster has Kueue, and nothing waits for the answer."""

import asyncio

from tests.unit.operator.controllers.test_job_worker import World, at_work, without_launcher, world
from tests.unit.operator.fake_api import FakeApi
from tests.unit.virtual_time import in_virtual_time
from understudy_operator.observe.kueue_discovery import KueueDiscovery
from understudy_operator.observe.store import Kind
from understudy_operator.plan.facts.queue import QUEUE
from understudy_operator.runtime.api import ApiError

EVERY_S = 30.0

__all__ = ["world"]  # a fixture

GROUP = "/apis/kueue.x-k8s.io"


class Given:
    def __init__(self) -> None:
        self.api, self.changes = FakeApi(), 0
        self.discovery = KueueDiscovery(self.api, self.changed)

    def changed(self) -> None:
        self.changes += 1

    def state(self) -> tuple[bool | None, int]:
        return self.discovery.present, self.changes

    def install(self) -> None:
        self.api.put(GROUP, {"kind": "APIGroup", "metadata": {}})


async def test_kueue_exists_if_its_api_group_exists() -> None:
    given = Given()
    assert given.state() == (None, 0)
    await given.discovery.run_once()
    assert given.state() == (False, 1)
    given.install()
    await given.discovery.run_once()
    await given.discovery.run_once()
    assert given.state() == (True, 2)
    del given.api.objects[GROUP]
    await given.discovery.run_once()
    assert given.state() == (False, 3)


async def test_a_failed_check_keeps_the_last_answer() -> None:
    given = Given()
    given.install()
    await given.discovery.run_once()
    for trouble in (ApiError(403, "Forbidden", "no"), ApiError(503, "ServiceUnavailable", "later")):
        given.api.deny = lambda *_, trouble=trouble: trouble
        await given.discovery.run_once()
    assert given.state() == (True, 1)


@in_virtual_time
async def test_the_check_is_repeated_regularly() -> None:
    given = Given()
    task = asyncio.create_task(given.discovery.run())
    await asyncio.sleep(10 * EVERY_S)
    task.cancel()
    assert 7 <= len(given.api.calls) <= 14


async def test_a_job_whose_queue_is_not_managed_reports_it(world: World) -> None:
    # given a job in a queue, on a cluster without Kueue
    world.has_kueue = False
    without_launcher(world)
    path = "/apis/understudy.dev/v1alpha1/namespaces/research/trainingjobs/llm"
    raw = world.api.objects[path]
    raw["metadata"]["labels"] = {QUEUE: "team"}
    world.store.put(Kind.JOB, world.api.put(path, raw))
    async with at_work(world):
        await world.until(lambda: bool(world.api.of_kind("Job")))
        world.enqueue()
        await world.until(lambda: bool(world.condition("QuotaReserved")[0]))

        # then status does not report that Kueue has admitted it
        assert world.condition("QuotaReserved") == (
            "False",
            "queue team has no effect: the cluster has no Kueue (API group kueue.x-k8s.io), so the job runs without "
            "quota; install Kueue, or remove the label kueue.x-k8s.io/queue-name",
        )
        await world.until(lambda: bool(world.api.of_kind("Event")))
        assert [raw["reason"] for raw in world.api.of_kind("Event")] == ["NotManaged"]

        # when Kueue is installed, then status reports that
        world.has_kueue = True
        world.enqueue()
        await world.until(lambda: world.condition("QuotaReserved") == ("True", ""))

"""The reconciles of one pool: its creations, the state that survives, and the cleanup after the pool is deleted."""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest

from tests.unit.operator.fake_api import CREATED, FakeApi, Raw
from tests.unit.operator.given import KEYRING
from tests.unit.operator.given_pool import SPARE_TEMPLATE
from tests.unit.virtual_time import in_virtual_time
from understudy_operator.apply.executor import Executor
from understudy_operator.controllers import pool_worker, reconcile_loop
from understudy_operator.controllers.pool_worker import PoolWorker
from understudy_operator.observe.store import Kind, Store
from understudy_operator.plan.pool.reconcile_pool import reconcile_pool
from understudy_operator.runtime.api import ApiError
from understudy_operator.runtime.clock import Clock
from understudy_operator.runtime.decoding import unreadable
from understudy_protocol import pod as names

LONGEST_PAUSE_S = 0.5
MIN_PAUSE_S = 1.0

KEY = ("research", "shared")
PATH = "/apis/understudy.dev/v1alpha1/namespaces/research/hotsparepools/shared"
PODS = "/api/v1/namespaces/research/pods"
LIMIT_S = 10.0


class World:
    """A pool, its worker, and the API server's objects."""

    def __init__(self) -> None:
        self.api, self.store = FakeApi(), Store()
        self.gone: list[Any] = []

    def apply(self, replicas: int = 2, uid: str = "pool-uid", **spec: Any) -> None:
        metadata = {"namespace": "research", "name": "shared", "uid": uid, "creationTimestamp": CREATED}
        body = {"metadata": metadata, "spec": {"replicas": replicas, "template": SPARE_TEMPLATE, **spec}}
        self.store.put(Kind.POOL, self.api.put(PATH, {"kind": "HotSparePool", **body}))

    def delete(self) -> None:
        self.store.remove(Kind.POOL, self.api.objects.pop(PATH))

    def claim(self, name: str, job_uid: str) -> None:
        raw = self.api.objects[f"{PODS}/{name}"]
        raw["metadata"]["labels"][names.LABEL_CLAIMED_BY_UID] = job_uid
        raw["metadata"]["finalizers"] = [names.FINALIZER_CLAIM]
        self.store.put(Kind.POD, self.api.put(f"{PODS}/{name}", raw))

    def pods(self) -> list[Raw]:
        return self.api.of_kind("Pod")

    def status(self) -> dict[str, Any]:
        return dict(self.api.objects[PATH].get("status", {}))

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not holds():  # noqa: ASYNC110 (what it waits for is in the fake API server, which tells nobody)
                await asyncio.sleep(0.001)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(reconcile_loop, "FIRST_BACKOFF_S", 0.01)
    monkeypatch.setattr(pool_worker, "CONFLICT_S", 0.01)
    return World()


@asynccontextmanager
async def at_work(world: World, clock: Clock | None = None) -> AsyncIterator[PoolWorker]:
    clock = clock or Clock()
    executor = Executor(world.api, world.store, clock)
    worker = PoolWorker(KEY, world.store, executor, KEYRING, world.gone.append, clock)
    try:
        yield worker
    finally:
        await worker.stop()


async def test_a_new_pool_gets_its_spares_and_a_status(world: World):
    world.apply()
    async with at_work(world):
        await world.until(lambda: len(world.pods()) == 2 and world.status().get("desired") == 2)
    owners = [pod["metadata"]["ownerReferences"][0] for pod in world.pods()]
    assert {(owner["kind"], owner["uid"]) for owner in owners} == {("HotSparePool", "pool-uid")}


async def test_a_refused_creation_is_reported_and_retried(world: World):
    world.api.refuse = lambda body: "exceeded quota: q" if body["kind"] == "Pod" else ""
    world.apply()
    async with at_work(world):
        await world.until(
            lambda: any(x["type"] == "Blocked" and x["status"] == "True" for x in world.status().get("conditions", ()))
        )
    assert world.pods() == []


async def test_a_pool_that_has_changed_since_it_was_read_is_read_again(world: World):
    # given a store with an older state of the pool
    world.apply(replicas=1)
    newer = world.api.objects[PATH]
    newer["spec"]["replicas"] = 3
    world.api.put(PATH, newer)

    # then the status write detects that, and the spares are those of the newer state
    async with at_work(world):
        await world.until(lambda: len(world.pods()) == 3)
    assert world.status()["desired"] == 3


@in_virtual_time
async def test_an_enqueue_of_a_pool_whose_reconciles_have_failed_for_long_retries_at_once(world: World):
    # given an API server that has been down for some minutes, and has just rejected the creation of a spare
    requests = asyncio.Event()

    def away(_: Any) -> str:
        requests.set()
        raise OSError("no route")

    world.api.refuse = away
    world.apply(replicas=1)
    async with at_work(world) as worker:
        await asyncio.sleep(300)
        requests.clear()
        await requests.wait()

        # when it is back, and a watch reports a change
        world.api.refuse = lambda _: ""
        worker.enqueue()

        # then the pool does not wait for the rest of its pause
        await asyncio.sleep(MIN_PAUSE_S + 0.01)
        assert len(world.pods()) == 1


@in_virtual_time
async def test_a_pool_with_long_reconciles_is_not_reconciled_at_each_of_its_changes(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    # given a pool of many claimants, whose reconciles take long, and that changes all the time
    loop, thought_s, decided = asyncio.get_running_loop(), 0.0, list[float]()

    def reconcile(*given: Any) -> Any:
        nonlocal thought_s
        thought_s += 10.0
        decided.append(loop.time())
        return reconcile_pool(*given)

    monkeypatch.setattr(pool_worker, "reconcile_pool", reconcile)
    world.apply()
    async with at_work(world, Clock(steady=lambda: loop.time() + thought_s)) as worker:
        while len(decided) < 10:
            worker.enqueue()
            await asyncio.sleep(0.001)
    # then there is a pause after each reconcile
    assert min(later - previous for previous, later in pairwise(decided)) >= LONGEST_PAUSE_S - 0.001


async def spare_of_a_job_that_is_gone(world: World) -> str:
    """The name of the pool's one spare, which a deleted job has claimed."""
    await world.until(lambda: len(world.pods()) == 1)
    (name,) = (pod["metadata"]["name"] for pod in world.pods())
    world.claim(name, "gone-uid")
    return str(name)


async def test_a_pool_that_is_gone_stays_until_its_last_claim_is_released(world: World):
    # given a pool whose spare was claimed by a job that is gone
    world.apply(replicas=1)
    async with at_work(world) as worker:
        await spare_of_a_job_that_is_gone(world)

        # when the pool is deleted, too
        world.delete()
        worker.enqueue()

        # then the spare has no finalizer any more, and the worker ends
        await world.until(lambda: not world.pods()[0]["metadata"].get("finalizers"))
        worker.enqueue()
        await world.until(lambda: world.gone == [KEY])


async def test_a_claim_on_a_previous_pool_of_the_same_name_is_released_too(world: World):
    # given a pool whose spare was claimed by a job that is gone
    world.apply(replicas=1)
    async with at_work(world) as worker:
        name = await spare_of_a_job_that_is_gone(world)

        # when the pool is deleted, and another one of its name is applied
        world.delete()
        world.apply(replicas=1, uid="other-uid")
        worker.enqueue()

        # then the spare of the previous pool has no finalizer any more
        path = f"{PODS}/{name}"
        await world.until(lambda: not world.api.objects[path]["metadata"].get("finalizers"))
        # and the new pool has its own spares
        await world.until(lambda: len(world.pods()) == 2)


def deny_release_of(world: World, name: str) -> None:
    words = "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no"
    world.api.deny = lambda method, path: (
        ApiError(422, "Invalid", words) if (method, path) == ("PATCH", f"{PODS}/{name}") else None
    )


@pytest.mark.parametrize("pool_is_gone", [False, True])
async def test_a_spare_that_may_not_be_released_delays_no_other_one(world: World, pool_is_gone: bool):
    # given two spares that were claimed by jobs that are gone, and a policy that protects the first one
    world.apply(replicas=2)
    async with at_work(world) as worker:
        await world.until(lambda: len(world.pods()) == 2)
        first, second = sorted(pod["metadata"]["name"] for pod in world.pods())
        deny_release_of(world, first)
        world.claim(first, "gone-uid")
        world.claim(second, "gone-uid")
        if pool_is_gone:
            world.delete()
        worker.enqueue()
        # then the other one is released
        await world.until(lambda: not world.api.objects[f"{PODS}/{second}"]["metadata"].get("finalizers"))
        # and the refusal is reported, if the pool still exists
        if not pool_is_gone:
            result = ("Blocked", "True", "AdmissionDenied")
            await world.until(
                lambda: result in {(x["type"], x["status"], x["reason"]) for x in world.status().get("conditions", ())}
            )
        # when the policy is gone, then the first one is released, too
        world.api.deny = lambda *_: None
        worker.enqueue()
        await world.until(lambda: not world.api.objects[f"{PODS}/{first}"]["metadata"].get("finalizers"))


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({}, True),
        ({"status": {"terminalState": "Completed"}}, False),
        ({"status": {"terminalState": "Failed"}}, False),
        ({"spec": {"suspend": True}}, False),
        ({"metadata": {"deletionTimestamp": CREATED}}, False),
    ],
    ids=["runs", "has succeeded", "has failed", "is suspended", "is being deleted"],
)
async def test_the_claim_of_a_job_is_released_once_it_has_ended_or_is_suspended(
    world: World, change: dict[str, dict[str, Any]], kept: bool
):
    # given a job that has claimed a spare
    metadata = {"namespace": "research", "name": "llm", "uid": "job-uid", "resourceVersion": "1"}
    metadata |= {"creationTimestamp": CREATED, **change.get("metadata", {})}
    job = {"metadata": metadata, "spec": {"replicatedJobs": [], **change.get("spec", {})}}
    world.store.put(Kind.JOB, {**job, "status": change.get("status", {})})
    world.apply(replicas=1)
    async with at_work(world) as worker:
        await world.until(lambda: len(world.pods()) == 1)
        (name,) = (pod["metadata"]["name"] for pod in world.pods())

        # when the pool is reconciled, then the claim stays only while the job trains
        world.claim(name, "job-uid")
        worker.enqueue()
        await world.until(lambda: world.status().get("claimed") == 1)

        def claimant() -> str:
            labels = world.api.objects[f"{PODS}/{name}"]["metadata"]["labels"]
            return str(labels.get(names.LABEL_CLAIMED_BY_UID, ""))

        await world.until(lambda: claimant() == ("job-uid" if kept else ""))


async def test_the_claim_of_a_job_that_became_too_large_for_the_operator_stays_until_the_job_is_deleted(world: World):
    # given a job that has claimed a spare
    metadata = {"namespace": "research", "name": "llm", "uid": "job-uid", "resourceVersion": "1"}
    job = {"metadata": {**metadata, "creationTimestamp": CREATED}, "spec": {"replicatedJobs": []}}
    world.store.put(Kind.JOB, job)
    world.apply(replicas=1)
    async with at_work(world) as worker:
        await world.until(lambda: len(world.pods()) == 1)
        (name,) = (pod["metadata"]["name"] for pod in world.pods())
        world.claim(name, "job-uid")

        # when the namespace has too many objects, so the store does not keep the newest state of the job
        world.store.put(Kind.JOB, unreadable({**metadata, "resourceVersion": "2"}, "it takes too much memory"))
        assert world.store.get(Kind.JOB, ("research", "llm")) is None
        worker.enqueue()
        await world.until(lambda: world.status().get("claimed") == 1)

        # then the claim stays
        def is_claimed() -> bool:
            labels = world.api.objects[f"{PODS}/{name}"]["metadata"]["labels"]
            return str(labels.get(names.LABEL_CLAIMED_BY_UID, "")) == "job-uid"

        assert is_claimed()

        # and is released when the job is deleted
        world.store.remove(Kind.JOB, job)
        worker.enqueue()
        await world.until(lambda: not is_claimed())


async def test_a_warm_pool_gets_its_key_before_its_spares(world: World):
    template = {"spec": {"containers": [{"name": "trainer", "image": "i", "command": ["python", "train.py"]}]}}
    world.apply(replicas=1, template=template, launcher={"nprocPerNode": 2})
    async with at_work(world):
        await world.until(lambda: len(world.pods()) == 1)
    (secret,) = world.api.of_kind("Secret")
    (pod,) = world.pods()
    assert secret["metadata"]["name"].startswith("shared-")
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert volumes[names.POD_VOLUME]["projected"]["sources"][0]["secret"]["name"] == secret["metadata"]["name"]
    key = base64.b64decode(secret["data"][names.KEY_FILE]).decode()
    assert key == KEYRING.of_pool("research", secret["metadata"]["labels"][names.LABEL_JOB_UID])
    # and the operator neither reads the Secret nor creates it again
    assert [method for method, path in world.api.calls if "/secrets" in path] == ["POST"]

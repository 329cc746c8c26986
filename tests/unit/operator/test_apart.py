"""Jobs side by side under one operator: each has its own key and its own reconciles."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.unit.operator.controllers.test_job_worker import World, world
from tests.unit.operator.given import IMAGE, KEYRING
from understudy_operator.apply.executor import Executor
from understudy_operator.controllers import job_worker as worker
from understudy_operator.controllers.job_worker import JobWorker
from understudy_operator.observe.store import Kind
from understudy_operator.plan import reconcile as planner
from understudy_operator.runtime.clock import Clock
from understudy_operator.runtime.kept_fields import secrets_of
from understudy_protocol import pod as names

__all__ = ["world"]  # a fixture

JOBS = "/apis/understudy.dev/v1alpha1/namespaces/research/trainingjobs"
SECRETS = "/api/v1/namespaces/research/secrets"


def apply_other(world: World, **spec: Any) -> None:
    """A job `other` beside the job `llm`, otherwise identical."""
    raw = world.api.objects[f"{JOBS}/llm"]
    metadata = {**raw["metadata"], "name": "other", "uid": "other-uid"}
    other = world.api.put(f"{JOBS}/other", {**raw, "metadata": metadata, "spec": raw["spec"] | spec})
    world.store.put(Kind.JOB, other)


@asynccontextmanager
async def both_at_work(world: World) -> AsyncIterator[None]:
    clock = Clock()
    executor = Executor(world.api, world.store, clock)
    result = (world.store, executor, KEYRING, IMAGE, world.gone.append, clock)
    workers = [JobWorker(("research", name), *result) for name in ("other", "llm")]
    try:
        yield
    finally:
        await asyncio.gather(*(each.stop() for each in workers))


def pods_of(world: World, uid: str) -> int:
    return sum(pod["metadata"]["labels"][names.LABEL_JOB_UID] == uid for pod in world.api.of_kind("Pod"))


@pytest.mark.attack("C3", "a node that looks for the key of a job in the pods of another one", before="refused, too")
async def test_each_job_has_its_own_key_and_its_pods_mount_no_other(world: World) -> None:
    world.apply_job()
    apply_other(world)
    async with both_at_work(world):
        await world.until(lambda: (pods_of(world, "job-uid"), pods_of(world, "other-uid")) == (2, 2))
    keys = {
        name: base64.b64decode(world.api.objects[f"{SECRETS}/{name}-{uid}-membership"]["data"][names.KEY_FILE])
        for name, uid in (("llm", "job-uid"), ("other", "other-uid"))
    }
    assert keys["llm"] != keys["other"]
    assert {len(key) for key in keys.values()} == {64}  # 32 bytes in hex
    mounted = {
        (pod["metadata"]["labels"][names.LABEL_JOB], secret.partition("-facts-")[0])
        for pod in world.api.of_kind("Pod")
        for volume in pod["spec"]["volumes"]
        for secret in secrets_of(volume)
    }
    assert mounted == {
        *(("llm", name) for name in ("llm-job-uid-membership", "llm-job-uid")),
        *(("other", name) for name in ("other-other-uid-membership", "other-other-uid")),
    }


@pytest.mark.attack("A1", "a job over which the operator has a bug", before="refused, too")
async def test_a_job_whose_reconciles_fail_delays_no_other_job(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, failed = planner.reconcile, []

    def reconcile(observed: Any, *given: Any) -> Any:
        if observed.job.uid == "other-uid":
            failed.append(observed)
            raise AssertionError("a bug")
        return plan(observed, *given)

    monkeypatch.setattr(worker, "reconcile", reconcile)
    world.apply_job()
    apply_other(world)
    async with both_at_work(world):
        await world.until(lambda: pods_of(world, "job-uid") == 2 and len(failed) > 1)
    assert pods_of(world, "other-uid") == 0


@pytest.mark.attack("A1", "a TrainingJob that cannot be read", before="refused, too")
async def test_a_job_that_cannot_be_read_delays_no_other_job(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.apply_job()
    apply_other(world, replicatedJobs="none of what the CRD lets through")
    async with both_at_work(world):
        await world.until(lambda: pods_of(world, "job-uid") == 2)
    assert "other" in caplog.text

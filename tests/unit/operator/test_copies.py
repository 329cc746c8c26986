"""Copies of a job's objects in its own namespace, as by `kubectl get -o yaml` for debugging: they have the job's labels
and no owner. The operator does not count, change or delete them.
"""

import asyncio
import copy
from typing import Any

import pytest

from tests.unit.operator.controllers.test_job_worker import (
    SERVICE,
    FakeLink,
    World,
    at_work,
    links,
    virtual,
    without_launcher,
    world,
)
from tests.unit.operator.fake_api import Raw
from tests.unit.operator.given import TEMPLATE
from tests.unit.virtual_time import in_virtual_time
from understudy_operator.observe.store import Kind
from understudy_protocol import pod as names
from understudy_protocol import wire
from understudy_protocol.enums import CloseReason
from understudy_protocol.membership import Close

__all__ = ["links", "world"]  # fixtures

JOBS = "/apis/batch/v1/namespaces/research/jobs"
PODS = "/api/v1/namespaces/research/pods"
FAILED_JOB = {"conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]}
TWO_JOBS = [{"name": "workers", "replicas": 2, "template": {"spec": {"template": TEMPLATE}}}]


def a_copy(world: World, kind: Kind, path: str, original: Raw, **changes: Any) -> Raw:
    raw = copy.deepcopy(original)
    for field in ("name", "uid", "resourceVersion", "ownerReferences"):
        raw["metadata"].pop(field)
    put = world.api.put(path, raw | changes)
    world.store.put(kind, put)
    return put


def writes(world: World, path: str) -> list[tuple[str, str]]:
    return [call for call in world.api.calls if call[1] == path and call[0] != "GET"]


async def wait_until_idle(world: World) -> None:
    """One minute of virtual time: enough for all consequences of a change."""
    world.enqueue()
    await asyncio.sleep(60.0)


@pytest.mark.attack("B4", "copies a Job of a TrainingJob, and has the copy fail", before="refused, too")
@in_virtual_time
async def test_a_job_is_not_failed_by_a_failed_copy_of_one_of_its_jobs(world: World):
    # given a job whose Jobs run
    without_launcher(world, replicatedJobs=TWO_JOBS)
    async with at_work(world, virtual()):
        await world.until(lambda: len(world.api.of_kind("Job")) == 2)

        # when a copy of one of them fails
        a_copy(world, Kind.CHILD, f"{JOBS}/my-debug2", world.api.of_kind("Job")[0], status=FAILED_JOB)
        await wait_until_idle(world)

    # then the job continues, and the operator does not change the copy
    assert "terminalState" not in world.status()
    assert {raw["metadata"]["name"] for raw in world.api.of_kind("Job")} == {
        "llm-workers-0",
        "llm-workers-1",
        "my-debug2",
    }
    assert writes(world, f"{JOBS}/my-debug2") == []


@in_virtual_time
async def test_a_copy_of_a_job_is_not_deleted_when_the_job_has_ended(world: World):
    # given a job that has ended
    without_launcher(world, replicatedJobs=TWO_JOBS)
    async with at_work(world, virtual()):
        await world.until(lambda: len(world.api.of_kind("Job")) == 2)
        for path, raw in [(path, raw) for path, raw in world.api.objects.items() if raw.get("kind") == "Job"]:
            world.store.put(Kind.CHILD, world.api.put(path, raw | {"status": FAILED_JOB}))
        world.enqueue()
        await world.until(lambda: world.status().get("terminalState") == "Failed")

        # when a user copies one of its Jobs
        a_copy(world, Kind.CHILD, f"{JOBS}/my-debug2", world.api.of_kind("Job")[0], status={})
        await wait_until_idle(world)

    # then the operator does not change the copy
    assert writes(world, f"{JOBS}/my-debug2") == []


@pytest.mark.attack("B4", "copies a pod of a job, with all of its labels", before="refused, too")
@in_virtual_time
async def test_a_copy_of_a_pod_neither_counts_as_a_spare_nor_ends_the_job(world: World):
    # given a job with two pods
    world.apply_job()
    async with at_work(world, virtual()):
        await world.until(lambda: len(world.api.of_kind("Pod")) == 2)

        # when a copy of one pod reports that the training has failed
        message = wire.encode(Close(CloseReason.FAILED, "the copy's own end"))
        ended = {"name": names.SIDECAR_CONTAINER, "state": {"terminated": {"exitCode": 1, "message": message}}}
        status = {"phase": "Failed", "initContainerStatuses": [ended]}
        a_copy(world, Kind.POD, f"{PODS}/debug", world.api.of_kind("Pod")[0], status=status)
        await wait_until_idle(world)

    # then the report is ignored
    assert "terminalState" not in world.status()
    assert writes(world, f"{PODS}/debug") == []


@pytest.mark.attack("B4", "copies the Service of a job's coordinator", before="refused, too")
async def test_a_copy_of_the_coordinators_service_under_its_name_is_not_used(world: World, links: list[FakeLink]):
    # given a Service that was replaced by a copy of itself without an owner
    world.apply_job()
    async with at_work(world):
        await world.until(lambda: len(world.api.of_kind("Pod")) == 2)
        original = world.api.objects.pop(SERVICE)
        world.store.remove(Kind.SERVICE, original)
        a_copy(world, Kind.SERVICE, SERVICE, original)
        world.enqueue()

        # then status reports that the name is taken
        await world.until(lambda: world.condition("Blocked")[0] == "True")
    assert world.condition("Blocked")[1].startswith("Service llm-coordinator exists and does not belong to this job")


async def test_a_job_whose_name_a_copy_has_taken_reports_it(world: World):
    # given a Job with the name of the job's own Job and with the job's labels, but without an owner
    labels = {"understudy.dev/job-name": "llm", "understudy.dev/job-uid": "job-uid"}
    taken = world.api.put(
        f"{JOBS}/llm-workers-0",
        {"kind": "Job", "metadata": {"namespace": "research", "labels": labels}, "spec": {"template": TEMPLATE}},
    )
    world.store.put(Kind.CHILD, taken)
    without_launcher(world, replicatedJobs=TWO_JOBS)
    async with at_work(world):
        await world.until(lambda: world.condition("Blocked")[0] == "True")
    assert world.condition("Blocked")[1].startswith("Job llm-workers-0 exists and does not belong to this job")

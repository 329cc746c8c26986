"""The changes of child Jobs in a plan, executed against an API server of dictionaries."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.unit.operator.counted_manifests import CountedManifests
from tests.unit.operator.fake_api import FakeApi, Raw
from tests.unit.operator.given import a_group, a_job
from understudy_operator.apply.child_jobs import JobExecutor
from understudy_operator.apply.pace import Pace
from understudy_operator.observe.store import Kind, Store
from understudy_operator.plan.intents import CreateJob, DeleteJob, PatchJob
from understudy_operator.plan.manifests.child_jobs import job_manifest

FIRST_AT_ONCE = 4

GROUP = a_group("workers", 20, 1)
JOB = a_job(spec={"replicated_jobs": (GROUP,), "world": None})
PATH = "/apis/batch/v1/namespaces/research/jobs"


class Cluster:
    def __init__(self) -> None:
        self.api, self.store = FakeApi(), Store()
        self.executor = JobExecutor(self.api, self.store, Pace(time.monotonic))

    async def execute(self, *intents: Any) -> list[str]:
        """The messages of the refusals."""
        return [refusal.message for refusal in await self.executor.execute(JOB, intents)]

    def stored(self) -> list[str]:
        return [raw["metadata"]["name"] for raw in self.store.of_job(Kind.CHILD, ("research", "job-uid"))]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def creation(index: int) -> CreateJob:
    return CreateJob(job_manifest(JOB, GROUP, index), "it is missing")


async def test_a_job_that_is_created_is_known_at_once(cluster: Cluster):
    assert await cluster.execute(creation(0), creation(1)) == []
    assert cluster.stored() == ["llm-workers-0", "llm-workers-1"]
    assert await cluster.execute(creation(0)) == []  # a Job that exists already is no error


@pytest.mark.attack(
    "A1",
    "creates a TrainingJob of 1,000 Jobs whose template has 75,000 values",
    before="the operator kept all manifests, of 5 GB, until the last one was sent",
)
async def test_a_manifest_is_in_memory_only_while_it_is_sent(cluster: Cluster):
    manifests = CountedManifests()
    build = [partial(manifests.made, job_manifest(JOB, GROUP, index)) for index in range(20)]
    assert await cluster.execute(*(CreateJob(each, "it is missing") for each in build)) == []
    assert len(cluster.stored()) == 20
    assert manifests.most <= 4


async def test_a_job_of_another_owner_under_its_name_is_reported(cluster: Cluster):
    cluster.api.put(f"{PATH}/llm-workers-0", {"kind": "Job", "metadata": {"name": "llm-workers-0", "labels": {}}})
    (result,) = await cluster.execute(creation(0))
    assert result.startswith("Job llm-workers-0 exists and does not belong to this job")
    assert cluster.stored() == []


async def test_a_mistake_in_a_template_costs_a_few_requests_only(cluster: Cluster):
    cluster.api.refuse = lambda _: "unknown field spec.template.spec.contaners"
    assert await cluster.execute(*map(creation, range(20))) == ["unknown field spec.template.spec.contaners"]
    assert 1 <= len(cluster.api.calls) <= FIRST_AT_ONCE


async def test_a_check_creates_nothing_and_reports_each_refusal(cluster: Cluster):
    assert await cluster.executor.dry_run(JOB, [creation(0).manifest]) == []
    cluster.api.refuse = lambda manifest: f"no {manifest['metadata']['name']}"
    pod = {"kind": "Pod", "metadata": {"name": "llm-workers-0-0-abcde", "namespace": "research"}}
    refusals = await cluster.executor.dry_run(JOB, [creation(0).manifest, pod])
    assert [refusal.message for refusal in refusals] == ["no llm-workers-0", "no <pod>"]
    assert cluster.api.objects == {}


async def test_a_check_reports_no_error_for_a_name_that_exists(cluster: Cluster):
    """Otherwise the job would wait without a message. The creation reports the owner of the existing object."""
    cluster.api.put(f"{PATH}/llm-workers-0", {"kind": "Job", "metadata": {"name": "llm-workers-0", "labels": {}}})
    assert await cluster.executor.dry_run(JOB, [creation(0).manifest]) == []


async def test_a_check_reports_no_error_for_a_webhook_that_does_not_support_dry_runs(cluster: Cluster):
    cluster.api.refuse = lambda _: 'admission webhook "old.example.com" does not support dry run'
    assert await cluster.executor.dry_run(JOB, [creation(0).manifest]) == []


async def test_a_job_is_resumed_with_another_template_only_once_its_clock_is_reset(cluster: Cluster):
    await cluster.execute(creation(0))
    cluster.api.calls.clear()
    patch = {"spec": {"suspend": False, "template": {"spec": {"nodeSelector": {"pool": "a"}}}}}
    await cluster.execute(PatchJob("llm-workers-0", patch, "the job is resumed", restarts_clock=True))
    assert [method for method, _ in cluster.api.calls] == ["PATCH", "PATCH"]
    raw = cluster.api.objects[f"{PATH}/llm-workers-0"]
    assert raw["spec"]["template"]["spec"]["nodeSelector"] == {"pool": "a"}
    assert raw["spec"]["template"]["spec"]["containers"] == GROUP.pod_template["spec"]["containers"]


async def test_lists_of_pods_of_a_namespace_are_on_their_way_one_by_one_if_it_has_one_place():
    """Thousands of Jobs that wait for pods would otherwise ask the API server for as many lists at once."""
    # given an API server whose lists take a while
    api = FakeApi()
    at_once = most = 0

    async def list_slowly(path: str, selector: str, fields: str, limit: int) -> list[Raw]:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        for _ in range(10):
            await asyncio.sleep(0)
        at_once -= 1
        return []

    api.list_first = list_slowly  # type: ignore[method-assign]
    executor = JobExecutor(api, Store(), Pace(time.monotonic, places=1))
    # when pods of several jobs of a namespace are listed
    jobs = [replace(JOB, uid=f"uid-{number}") for number in range(5)]
    await asyncio.gather(*(executor.list_pods(job, "", "status.phase=Pending", 20) for job in jobs))
    # then each list waits for the one before
    assert most == 1


async def test_a_job_that_is_gone_already_is_no_error(cluster: Cluster):
    assert await cluster.execute(DeleteJob("llm-workers-0", "uid", "it is not wanted")) == []
    assert await cluster.execute(PatchJob("llm-workers-0", {"spec": {"suspend": True}}, "it rests")) == []


async def test_a_patch_of_a_job_that_was_replaced_since_is_dropped_without_a_refusal(cluster: Cluster):
    """The API server rejects a patch with another uid as an attempt to change the uid."""
    # given a Job that has replaced the observed one
    cluster.api.put(f"{PATH}/train", {"kind": "Job", "metadata": {"name": "train", "uid": "second"}, "spec": {}})
    # when the operator lifts the limit of the first one
    patch = {"metadata": {"uid": "first"}, "spec": {"backoffLimit": 0}}
    result = await cluster.execute(PatchJob("train", patch, "the training has failed for good"))
    # then the second Job is not changed, and no refusal is reported
    assert result == []
    assert cluster.api.objects[f"{PATH}/train"]["spec"] == {}


async def test_a_failed_change_is_raised_once_no_other_change_is_on_its_way(cluster: Cluster):
    """A later plan may change the same Job. A change of this plan must not arrive after that."""
    # given two suspended Jobs; the change of the first one gets no answer, that of the second one is slow
    await cluster.execute(creation(0), creation(1))
    merge = cluster.api.merge

    async def fail_or_wait(path: str, body: Mapping[str, Any]) -> Raw:
        if path.endswith("-0"):
            raise TimeoutError
        for _ in range(100):
            await asyncio.sleep(0)
        return await merge(path, body)

    cluster.api.merge = fail_or_wait  # type: ignore[method-assign]
    # when both are resumed
    resume = {"spec": {"suspend": False}}
    with pytest.raises(TimeoutError):
        await cluster.execute(*(PatchJob(f"llm-workers-{index}", resume, "it is resumed") for index in range(2)))
    # then the slow change is complete when the plan ends
    assert [call for call in cluster.api.calls if call[0] == "PATCH"] == [("PATCH", f"{PATH}/llm-workers-1")]

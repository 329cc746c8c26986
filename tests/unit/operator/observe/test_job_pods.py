"""When the operator lists pods of child Jobs, and which results it remembers."""

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.operator.fake_api import owned_by
from tests.unit.operator.given import NOW, a_job
from tests.unit.operator.observe.test_read import POD
from understudy_operator.observe.job_pods import JobPods
from understudy_operator.plan.facts.cluster_objects import ChildJob, Pod
from understudy_operator.plan.facts.job import Job

EVERY_S = 2.5

WAITS = ChildJob(
    "uid-w", "llm-workers-0", "workers", 0, attempt=0, job_attempt=0, desired_pods=1, active=1, created_at=NOW - 60
)
CONDITION = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}
OWNED = {**POD, "metadata": {**POD["metadata"], "ownerReferences": owned_by("uid-w")}}
WAITING: dict[str, Any] = {**OWNED, "status": {"phase": "Pending", "conditions": [CONDITION]}}


class Lister:
    """An API server, a clock, and one job's JobPods."""

    def __init__(self) -> None:
        self.at, self.requests = 0.0, list[tuple[str, str, str, str, int]]()
        self.answer: list[dict[str, Any]] = [WAITING]
        self.pods = JobPods(self.list_some, lambda: self.at)

    async def list_some(self, job: Job, labels: str, fields: str, limit: int) -> list[dict[str, Any]]:
        self.requests.append((job.namespace, job.uid, labels, fields, limit))
        return self.answer

    async def refresh(self, child: ChildJob = WAITS) -> tuple[Pod, ...]:
        await self.pods.refresh(a_job(), (child,), {}, NOW)
        return self.pods.pods


@pytest.fixture
def server() -> Lister:
    return Lister()


async def test_a_few_pods_are_listed_by_the_jobs_uid_and_none_of_the_world(server: Lister):
    (pod,) = await server.refresh()
    assert pod.trouble == "Unschedulable: no room"
    assert server.requests == [
        (
            "research",
            "job-uid",
            "jobset.sigs.k8s.io/jobset-uid=job-uid,!understudy.dev/job-uid",
            "status.phase=Pending",
            20,
        )
    ]


async def test_pods_are_remembered_and_listed_again_at_growing_intervals(server: Lister):
    async def asked_at(at: float) -> int:
        server.at = at
        assert len(await server.refresh()) == 1
        return len(server.requests)

    assert [await asked_at(at) for at in (0.0, EVERY_S - 0.1, EVERY_S)] == [1, 1, 2]
    assert [await asked_at(EVERY_S + at) for at in (EVERY_S, 2 * EVERY_S)] == [2, 3]


async def test_no_pod_is_listed_or_remembered_once_all_are_ready_and_the_intervals_start_over(server: Lister):
    await server.refresh()
    assert await server.refresh(replace(WAITS, ready=1)) == ()
    assert len(server.requests) == 1
    server.answer = []
    assert await server.refresh() == ()
    assert len(server.requests) == 2

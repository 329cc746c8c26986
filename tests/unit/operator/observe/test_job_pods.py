"""When pods of child Jobs are asked for, and what is remembered of the answer."""

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.operator.fake_api import owned_by
from tests.unit.operator.given import NOW, a_job
from tests.unit.operator.observe.test_read import POD
from understudy_operator.observe.job_pods import JobPods
from understudy_operator.plan.observed import ChildJob, Pod

EVERY_S = 2.5

WAITS = ChildJob("uid-w", "llm-workers-0", "workers", 0, attempt=0, own_attempt=0, wanted=1, created_at=NOW - 60)
CONDITION = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}
OWNED = {**POD, "metadata": {**POD["metadata"], "ownerReferences": owned_by("uid-w")}}
WAITING: dict[str, Any] = {**OWNED, "status": {"phase": "Pending", "conditions": [CONDITION]}}


class Asked:
    """An API server, a clock, and one job's JobPods."""

    def __init__(self) -> None:
        self.at, self.asked = 0.0, list[tuple[str, str, str, int]]()
        self.answer: list[dict[str, Any]] = [WAITING]
        self.pods = JobPods(self.some, lambda: self.at)

    async def some(self, *asked: Any) -> list[dict[str, Any]]:
        self.asked.append(asked)
        return self.answer

    async def look(self, child: ChildJob = WAITS) -> tuple[Pod, ...]:
        await self.pods.look(a_job(), (child,), {}, NOW)
        return self.pods.known


@pytest.fixture
def server() -> Asked:
    return Asked()


async def test_a_few_pods_are_asked_for_by_the_jobs_uid_and_none_of_the_world(server: Asked):
    (pod,) = await server.look()
    assert pod.trouble == "Unschedulable: no room"
    assert server.asked == [
        ("research", "jobset.sigs.k8s.io/jobset-uid=job-uid,!understudy.dev/job-uid", "status.phase=Pending", 20)
    ]


async def test_the_answer_is_remembered_and_asked_for_anew_later_and_later(server: Asked):
    async def asked_at(at: float) -> int:
        server.at = at
        assert len(await server.look()) == 1
        return len(server.asked)

    assert [await asked_at(at) for at in (0.0, EVERY_S - 0.1, EVERY_S)] == [1, 1, 2]
    assert [await asked_at(EVERY_S + at) for at in (EVERY_S, 2 * EVERY_S)] == [2, 3]


async def test_nothing_is_asked_for_or_remembered_once_all_are_ready_and_another_trouble_begins_anew(server: Asked):
    await server.look()
    assert await server.look(replace(WAITS, ready=1)) == ()
    assert len(server.asked) == 1
    server.answer = []
    assert await server.look() == ()
    assert len(server.asked) == 2

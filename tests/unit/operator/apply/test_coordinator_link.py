"""The task that follows a job's coordinator: whatever ends it, the job is enqueued."""

import asyncio

import pytest

from tests.integration.operator.coordinator import KEYS
from understudy_operator.apply.coordinator_link import CoordinatorLink
from understudy_operator.plan.facts.observed import Coordination


@pytest.mark.attack(
    "A2", "ends the task that follows a coordinator", before="the job was not enqueued until another event"
)
@pytest.mark.parametrize(("closes", "result"), [(False, 1), (True, 0)], ids=["killed", "closed"])
async def test_a_link_that_is_killed_enqueues_its_job_and_one_that_is_closed_does_not(
    closes: bool, result: int
) -> None:
    # given a link
    enqueued = list[None]()
    link = CoordinatorLink("job-uid", KEYS, Coordination(), lambda: enqueued.append(None))
    await asyncio.sleep(0)
    # when its task ends
    if closes:
        await link.close()
    else:
        link._task.cancel()
    await asyncio.wait([link._task])
    await asyncio.sleep(0)
    # then its job is enqueued, and creates another link
    assert link.has_ended
    assert len(enqueued) == result

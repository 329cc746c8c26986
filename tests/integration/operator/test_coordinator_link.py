"""The operator's link to a coordinator, over real sockets: it appoints, learns, and comes back after every end."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from tests.integration.operator.coordinator import FakeCoordinator
from tests.integration.operator.training import a_snapshot
from understudy_operator.observe import coordinator_link
from understudy_operator.observe.coordinator_link import CoordinatorLink
from understudy_operator.plan.intents import Follow
from understudy_operator.plan.observed import Coordination
from understudy_protocol.observer import Appoint, Refused

KEY, JOB_UID = b"the job's key", "job-uid"
LIMIT_S = 10.0
FORMER = Coordination(a_snapshot(3, ()), "uid-former", unreachable_since=1.0, refused="not in office")


class Learner:
    """A link, and how often it said that it has learnt something."""

    def __init__(self, ip: str, key: bytes = KEY) -> None:
        self.changes = 0
        self.link = CoordinatorLink(Follow("uid-s", ip, 7, 3, {"InPlace": 2}), JOB_UID, key, FORMER, self._changed)

    def _changed(self) -> None:
        self.changes += 1

    @property
    def knows(self) -> Coordination:
        return self.link.coordination

    async def until(self, holds: Callable[[Coordination], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not holds(self.knows):  # noqa: ASYNC110 (the link tells by a plain call)
                await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_link, "RETRY_S", 0.02)


@pytest.fixture
async def coordinator() -> AsyncIterator[FakeCoordinator]:
    coordinator = FakeCoordinator()
    await coordinator.start(KEY, JOB_UID)
    yield coordinator
    await coordinator.stop()


@pytest.fixture
async def learner(coordinator: FakeCoordinator) -> AsyncIterator[Learner]:
    learner = Learner(coordinator.ip)
    yield learner
    await learner.link.close()


async def test_it_appoints_and_learns_what_the_coordinator_tells(coordinator: FakeCoordinator, learner: Learner):
    # given what was known before, of another coordinator: its snapshot alone counts on
    assert learner.knows == Coordination(FORMER.snapshot, "uid-s", None, "")

    # when the coordinator tells
    first, second = a_snapshot(4, ()), a_snapshot(5, ())
    await coordinator.tell(first)
    await learner.until(lambda known: known.snapshot == first)
    await coordinator.tell(second)

    # then it is known, and the appointment said what status told
    await learner.until(lambda known: known.snapshot == second)
    assert coordinator.appointments == [Appoint(7, 3, {"InPlace": 2})]
    assert learner.changes == 2


async def test_a_refusal_is_known_until_a_snapshot_comes(coordinator: FakeCoordinator, learner: Learner):
    await coordinator.tell(Refused("this sidecar is not in office"))
    await learner.until(lambda known: known.refused == "this sidecar is not in office")
    await coordinator.tell(a_snapshot(4, ()))
    await learner.until(lambda known: known.refused == "")


async def test_the_time_since_which_it_is_out_of_reach_is_known_until_it_is_back(
    coordinator: FakeCoordinator, learner: Learner
):
    # given a link that works
    snapshot = a_snapshot(4, ())
    await coordinator.tell(snapshot)
    await learner.until(lambda known: known.snapshot == snapshot)

    # when the coordinator goes
    before = time.time()
    await coordinator.stop()
    await learner.until(lambda known: known.unreachable_since is not None)
    since = learner.knows.unreachable_since
    assert since is not None
    assert before <= since <= time.time()
    changes = learner.changes
    await asyncio.sleep(0.1)
    assert learner.knows == replace(learner.knows, unreachable_since=since, snapshot=snapshot)
    assert learner.changes == changes  # told once, however often it dials

    # and comes back
    await coordinator.start(KEY, JOB_UID)

    # then it is appointed again, in the same epoch
    await learner.until(lambda known: known.unreachable_since is None)
    assert [appoint.epoch for appoint in coordinator.appointments] == [7, 7]


async def test_who_does_not_know_the_key_is_told_nothing_and_not_believed(coordinator: FakeCoordinator):
    await coordinator.tell(a_snapshot(9, ()))
    stranger = Learner(coordinator.ip, b"another key")
    try:
        await stranger.until(lambda known: known.unreachable_since is not None)
        assert stranger.knows.snapshot == FORMER.snapshot
        assert coordinator.appointments == []
    finally:
        await stranger.link.close()

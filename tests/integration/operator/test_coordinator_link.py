"""The operator's lines to sidecars, over real sockets: it appoints, finds the coordinator, and follows elections."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from tests.integration.operator.coordinator import COORDINATOR_PORT, KEYS, OPERATOR_PUBLIC, FakeSidecar
from tests.integration.operator.training import a_snapshot
from tests.unit.virtual_time import in_virtual_time
from understudy_operator.apply.coordinator_link import CoordinatorLink
from understudy_operator.plan.facts.observed import Coordination
from understudy_operator.plan.facts.pod_answers import PodAnswer
from understudy_operator.plan.intents import Callee, Follow
from understudy_operator.plan.leadership.search import Search
from understudy_operator.runtime.line import Keys
from understudy_protocol.enums import CloseReason, Term
from understudy_protocol.observer import (
    Appoint,
    End,
    NodeFact,
    Nodes,
    Observe,
    Refused,
    Snapshot,
    Stepping,
    StepProgress,
    Superseded,
)

JOB_UID = "job-uid"
POD_UIDS = ("uid-s", "uid-a", "uid-b")
LIMIT_S = 10.0
PREVIOUS = Coordination(a_snapshot(3, ()), "uid-previous", 1.0)
APPOINT = Appoint(7, 3, {"InPlace": 2})
NOT_COORDINATOR = Refused("this sidecar is not the coordinator")
SEVENTH = Term(7, 1)


def in_seventh(number: int, uid: str = "uid-s", term: int = 1) -> Snapshot:
    return a_snapshot(number, (), leadership_term=Term(7, term), pod_uid=uid)


class Learner:
    """A link, and the number of its changes."""

    def __init__(self, keys: Keys = KEYS) -> None:
        self.changes = 0
        self.others: dict[str, str] = {}  # addresses of pods that are not called first
        self.link = CoordinatorLink(JOB_UID, keys, PREVIOUS, self._changed)

    def _changed(self) -> None:
        self.changes += 1

    def appoint(self, sidecar: FakeSidecar) -> None:
        self.link.follow(Follow(Term(7, 0), (Callee("uid-s", sidecar.ip, APPOINT),)))

    def ask(self, *sidecars: FakeSidecar, nodes: tuple[NodeFact, ...] = ()) -> None:
        """The first one is s, then a, b, …"""
        callees = tuple(Callee(sidecar.pod_uid, sidecar.ip) for sidecar in sidecars)
        running = {
            **dict.fromkeys(POD_UIDS, ""),
            **{callee.pod_uid: callee.address for callee in callees},
            **self.others,
        }
        self.link.follow(Follow(SEVENTH, callees, nodes=nodes, running=running))

    @property
    def coordination(self) -> Coordination:
        return self.link.coordination

    async def until(self, holds: Callable[[Coordination], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not holds(self.coordination):  # noqa: ASYNC110 (the link tells by a plain call)
                await asyncio.sleep(0.01)

    async def until_received(self, sidecar: FakeSidecar, *messages: object) -> None:
        await self.until(lambda _: all(message in wait_for_message(sidecar) for message in messages))


def wait_for_message(sidecar: FakeSidecar) -> list[object]:
    """The received messages, without their times."""
    return [replace(message, at=0.0) if isinstance(message, Nodes) else message for message in sidecar.received]


@pytest.fixture
async def sidecars() -> AsyncIterator[list[FakeSidecar]]:
    """Three sidecars, none of which coordinates."""
    sidecars = [FakeSidecar(uid) for uid in POD_UIDS]
    for sidecar in sidecars:
        await start(sidecar)
        await sidecar.report(NOT_COORDINATOR)
    yield sidecars
    for sidecar in sidecars:
        await sidecar.stop()


async def start(sidecar: FakeSidecar) -> None:
    await sidecar.start(KEYS.membership, OPERATOR_PUBLIC, JOB_UID)


@pytest.fixture
async def learner() -> AsyncIterator[Learner]:
    learner = Learner()
    yield learner
    await learner.link.close()


async def test_a_link_appoints_a_pod_and_receives_its_reports(sidecars: list[FakeSidecar], learner: Learner):
    # given the earlier state of another coordinator: only its snapshot is kept
    assert learner.coordination == Coordination(PREVIOUS.snapshot, since=learner.coordination.since)

    # when a pod is appointed, and reports
    first, second = in_seventh(4), in_seventh(5)
    await sidecars[0].report(first)
    learner.appoint(sidecars[0])
    await learner.until(lambda known: known.snapshot == first)
    changes = learner.changes
    await sidecars[0].report(second)

    # then its report is known, and the appointment had the state of status
    await learner.until(lambda known: known.snapshot == second)
    assert wait_for_message(sidecars[0]) == [APPOINT, Nodes(())]
    assert learner.coordination.coordinator_uid == "uid-s"
    assert learner.changes == changes + 1


async def test_only_the_first_step_enqueues_the_job(sidecars: list[FakeSidecar], learner: Learner):
    await sidecars[0].report(in_seventh(4))
    learner.ask(sidecars[0])
    await learner.until(lambda known: known.coordinator_uid == "uid-s")
    changes, progress = learner.changes, StepProgress(13, 100, 2.0)
    await sidecars[0].report(Stepping(StepProgress(12, 100, 1.0)))
    await learner.until(lambda _: learner.changes == changes + 1)
    await sidecars[0].report(Stepping(progress))
    await learner.until(lambda known: known.snapshot == replace(in_seventh(4), progress=progress))
    assert learner.changes == changes + 1


async def test_an_appointed_pods_refusal_is_known_until_its_first_snapshot(
    sidecars: list[FakeSidecar], learner: Learner
):
    sidecars[0].becomes_coordinator = False
    learner.appoint(sidecars[0])
    answers = {"uid-s": PodAnswer("this sidecar is not the coordinator")}
    await learner.until(lambda known: known.answers.by_pod == answers)
    await sidecars[0].report(in_seventh(4))
    await learner.until(lambda known: known.coordinator_uid == "uid-s")
    assert learner.coordination.answers.by_pod == {}


async def test_an_election_is_followed_when_the_coordinator_is_lost(sidecars: list[FakeSidecar], learner: Learner):
    # given a coordinator, and the pods that may be elected
    await sidecars[0].report(in_seventh(4))
    learner.ask(*sidecars)
    await learner.until(lambda known: known.coordinator_uid == "uid-s")
    await learner.until(lambda _: not sidecars[1].observers and len(sidecars[0].observers) == 1)  # found

    # when it is lost
    before = time.time()
    await sidecars[0].stop()
    await learner.until(lambda known: not known.coordinator_uid)
    assert before <= learner.coordination.since <= time.time()
    await learner.until(lambda known: known.answers.pods == {"uid-a", "uid-b"})

    # and one of them is elected
    await sidecars[2].report(in_seventh(4, "uid-b", term=2))

    # then the elected pod is the coordinator
    await learner.until(lambda known: known.coordinator_uid == "uid-b")
    assert learner.coordination.snapshot == in_seventh(4, "uid-b", term=2)
    await learner.until(lambda _: {type(message) for message in sidecars[2].received} == {Observe, Nodes})


async def test_an_election_that_was_over_before_the_search_is_followed_by_a_redirect(
    sidecars: list[FakeSidecar], learner: Learner
):
    # given a coordinator that transfers its leadership to a pod that the operator would not have called
    learner.others = {"uid-a": sidecars[1].ip}
    await sidecars[0].report(in_seventh(4))
    learner.ask(sidecars[0])
    await learner.until(lambda known: known.coordinator_uid == "uid-s")
    await sidecars[1].report(in_seventh(4, "uid-a", term=2))

    # when it names that pod
    await sidecars[0].report(Refused("handed over", "uid-a", sidecars[1].ip))

    # then that pod is found
    await learner.until(lambda known: known.coordinator_uid == "uid-a")


async def test_a_replaced_coordinator_that_does_not_know_it_is_ignored(sidecars: list[FakeSidecar], learner: Learner):
    await sidecars[0].report(in_seventh(9))
    await sidecars[1].report(in_seventh(4, "uid-a", term=2))
    learner.ask(*sidecars)
    await learner.until(lambda known: known.coordinator_uid == "uid-a")

    # it is sent its successor, and the line ends as soon as it steps down
    await learner.until_received(sidecars[0], Superseded(Term(7, 2), "uid-a", sidecars[1].ip))
    await sidecars[0].report(in_seventh(10))
    await sidecars[0].report(Refused("replaced", "uid-a", sidecars[1].ip))
    await learner.until(lambda _: not sidecars[0].observers)
    assert learner.coordination.snapshot == in_seventh(4, "uid-a", term=2)


async def test_the_time_of_the_search_is_known_until_a_coordinator_is_found(
    sidecars: list[FakeSidecar], learner: Learner
):
    # given a coordinator that is lost
    await sidecars[0].report(in_seventh(4))
    learner.ask(sidecars[0])
    await learner.until(lambda known: known.coordinator_uid == "uid-s")
    await sidecars[0].stop()
    await learner.until(lambda known: not known.coordinator_uid)
    since, changes = learner.coordination.since, learner.changes
    # when it cannot be called
    dials = 0

    def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal dials
        dials += 1
        writer.close()

    async with await asyncio.start_server(hang_up, sidecars[0].ip, COORDINATOR_PORT):
        await learner.until(lambda _: dials >= 3)
    # then its loss is reported once, however often it is called
    assert learner.coordination == Coordination(in_seventh(4), since=since, lost_at=since)
    assert learner.changes == changes

    # when it comes back
    await start(sidecars[0])

    # then it is found again, and was asked, not appointed
    await learner.until(lambda known: known.coordinator_uid == "uid-s")
    assert sidecars[0].appointments == []


async def test_the_coordinator_gets_the_node_facts(sidecars: list[FakeSidecar], learner: Learner):
    some, others = (NodeFact("n1", "rack-1"),), (NodeFact("n2", "rack-2"),)
    await sidecars[0].report(in_seventh(4))
    learner.ask(*sidecars, nodes=some)
    await learner.until_received(sidecars[0], Nodes(some))
    learner.ask(*sidecars, nodes=others)
    await learner.until_received(sidecars[0], Nodes(others))
    assert wait_for_message(sidecars[0]) == [Observe(), Nodes(some), Nodes(others)]
    assert Nodes(some) not in wait_for_message(sidecars[1])


async def test_the_final_message_arrives_before_the_lines_are_closed(sidecars: list[FakeSidecar], learner: Learner):
    await sidecars[0].report(in_seventh(4))
    learner.ask(*sidecars)
    await learner.until(lambda known: known.coordinator_uid == "uid-s")
    end = End(CloseReason.DELETED, "the TrainingJob was deleted")
    await learner.link.end(end)
    await learner.link.close()
    await learner.until_received(sidecars[0], end)
    assert sidecars[1].received == [Observe()] * len(sidecars[1].received)


async def test_without_a_coordinator_all_pods_on_a_line_get_the_final_message(
    sidecars: list[FakeSidecar], learner: Learner
):
    learner.ask(*sidecars)
    await learner.until(lambda known: len(known.answers.pods) == 3)
    end = End(CloseReason.DELETED, "the TrainingJob was deleted")
    await learner.link.end(end)
    await learner.link.close()
    for sidecar in sidecars:
        await learner.until_received(sidecar, end)


@in_virtual_time
async def test_the_final_message_does_not_wait_if_no_pod_is_on_a_line():
    learner, loop = Learner(), asyncio.get_running_loop()
    before = loop.time()
    await learner.link.end(End(CloseReason.DELETED, "the TrainingJob was deleted"))
    assert loop.time() == before
    await learner.link.close()


@pytest.mark.parametrize(
    "keys",
    [Keys(bytes(32), KEYS.operator), Keys(KEYS.membership, bytes(32))],
    ids=["another membership key", "another operator key"],
)
async def test_a_sidecar_with_other_keys_receives_nothing_and_is_ignored(sidecars: list[FakeSidecar], keys: Keys):
    # given a sidecar that claims to be the leader
    await sidecars[0].report(in_seventh(9))
    # when an operator with other keys appoints it
    stranger = Learner(keys)
    stranger.appoint(sidecars[0])
    try:
        await stranger.until(lambda _: sidecars[0].callers >= 2)
        # then neither side accepts the other one
        assert (stranger.coordination.snapshot, stranger.coordination.coordinator_uid) == (PREVIOUS.snapshot, "")
        assert sidecars[0].received == []
    finally:
        await stranger.link.close()


async def test_a_pod_at_the_address_of_another_pod_receives_nothing_and_is_ignored(
    sidecars: list[FakeSidecar], learner: Learner
):
    # given a pod of the job at the address that the operator has for pod uid-s
    sidecars[0].pod_uid = "uid-of-a-later-pod"
    await sidecars[0].report(in_seventh(9))
    # when the operator appoints uid-s
    learner.appoint(sidecars[0])
    await learner.until(lambda _: sidecars[0].callers >= 2)
    # then the operator sends the appointment to no other pod
    assert (learner.coordination.snapshot, learner.coordination.coordinator_uid) == (PREVIOUS.snapshot, "")
    assert sidecars[0].received == []


async def test_a_bug_in_the_search_is_logged_and_closes_all_lines(
    sidecars: list[FakeSidecar], learner: Learner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    learner.ask(*sidecars)
    await learner.until(lambda _: bool(sidecars[0].observers))
    monkeypatch.setattr(Search, "calls", lambda *_: 1 / 0)
    await learner.until(lambda _: learner.link.has_ended)
    await learner.until(lambda _: not sidecars[0].observers)
    assert "division by zero" in caplog.text

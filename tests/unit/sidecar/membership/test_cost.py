"""The cost of a message does not grow with the job: a coordinator gets one of each kind from thousands of members.

Each test counts the instructions of Python: the calls of functions alone would miss a loop over all members.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import pytest

from tests.unit.sidecar.membership.driven import DrivenCoordinator
from understudy_protocol import membership as m
from understudy_protocol.enums import RoundToken, WorkersState
from understudy_sidecar.membership.round_state import RoundPhase

SMALL, LARGE = 100, 400
Message = Callable[[DrivenCoordinator, str], None]


def acknowledge(driven: DrivenCoordinator, name: str) -> None:
    driven.receive(name, m.Ack(driven.token))


def start(driven: DrivenCoordinator, name: str) -> None:
    driven.receive(name, m.Started(driven.token))


def answer(driven: DrivenCoordinator, name: str) -> None:
    driven.receive(name, m.HeartbeatAck(1))


def make_step(driven: DrivenCoordinator, name: str) -> None:
    driven.report_step(name)


def leave(driven: DrivenCoordinator, name: str) -> None:
    driven.receive(name, m.Leaving("its node pool is upgraded", 30.0))


def fail(driven: DrivenCoordinator, name: str) -> None:
    driven.fail_worker(name)


def disconnect(driven: DrivenCoordinator, name: str) -> None:
    driven.at_once(driven.dropped(name, silent=False))


def fall_silent(driven: DrivenCoordinator, name: str) -> None:
    driven.at_once(driven.dropped(name, silent=True))


@pytest.mark.parametrize("message", [acknowledge, start, answer, make_step])
def test_a_message_takes_as_much_work_in_a_job_of_four_times_the_size(message: Message) -> None:
    # given two jobs whose members have their assignments
    counts = {}
    for members in (SMALL, LARGE):
        driven, names = crowd(members)
        # when each member sends a message
        counts[members] = work(driven, names, message)
    # then it takes as much work in both
    assert counts[LARGE] < 1.5 * counts[SMALL], counts


def test_the_confirmation_of_an_answer_takes_little_more_work_than_an_acknowledgement() -> None:
    # given two equal jobs that train
    (first, names), (second, _) = training(SMALL), training(SMALL)
    # when the members of one answer a heartbeat, and those of the other acknowledge their assignments again
    answers, acknowledgements = work(first, names, answer), work(second, names, acknowledge)
    # then the coordinator checks no timers for either
    assert answers < 2 * acknowledgements, (answers, acknowledgements)


@pytest.mark.parametrize("message", [disconnect, fall_silent, leave])
def test_the_end_of_a_third_of_the_members_takes_as_much_work_for_each(message: Message) -> None:
    # given two jobs that train
    counts = {}
    for members in (SMALL, LARGE):
        driven, names = training(members)
        # when a zone with a third of the members loses its power or its network, or is upgraded
        counts[members] = work(driven, names[: members // 3], message)
    # then each takes as much work in both
    assert counts[LARGE] < 1.5 * counts[SMALL], counts


def test_an_answer_takes_as_much_work_while_a_third_of_the_members_is_silent() -> None:
    counts = {}
    for members in (SMALL, LARGE):
        # given two jobs that train on, although the connections of a third of the members are silent
        driven, names = training(members)
        for name in names[: members // 3]:
            fall_silent(driven, name)
        # when each of the others answers a heartbeat
        counts[members] = work(driven, names[members // 3 :], answer)
    # then it takes as much work in both
    assert counts[LARGE] < 1.5 * counts[SMALL], counts


def test_a_failure_takes_as_much_work_while_a_member_leaves_and_the_others_have_saved() -> None:
    counts = {}
    for members in (SMALL, LARGE):
        # given two jobs in which one member leaves, and all others have been drained
        driven, names = training(members)
        leave(driven, names[0])
        for name in names[1:]:
            driven.receive(name, m.Drained(driven.token))
        # when another worker of each of them fails
        counts[members] = work(driven, names[1:], fail)
    # then it takes as much work in both
    assert counts[LARGE] < 1.5 * counts[SMALL], counts


def test_a_first_step_that_measures_no_pause_takes_as_much_work() -> None:
    counts = {}
    for members in (SMALL, LARGE):
        # given two jobs in their second round, whose launchers have not measured the pause
        driven, names = training(members)
        for name in names:
            make_step(driven, name)
        driven.fail_worker(names[0])
        assert driven.token == RoundToken(1, 1, 1)
        driven.report_started(*names)
        # when each member reports its first step
        counts[members] = work(driven, names, make_step)
    # then it takes as much work in both
    assert counts[LARGE] < 1.5 * counts[SMALL], counts


def test_a_join_to_an_elected_coordinator_takes_as_much_work() -> None:
    counts = {}
    for members in (SMALL, LARGE):
        # given two jobs that have trained, and an elected coordinator for each
        before, names = training(members)
        driven = DrivenCoordinator(members, elected=before.coordinator.leader_snapshot())

        def join(driven: DrivenCoordinator, name: str, before: DrivenCoordinator = before) -> None:
            driven.now += 0.001  # the time that it takes to connect
            rank = int(name.removeprefix("active-"))
            at_work = WorkersState.RUNNING
            driven.join(name, before.token, rank, at_work, group_world_size=len(before.sent), disconnected_s=1.0)

        # when all members but one join
        counts[members] = work(driven, names[1:], join)
        assert driven.coordinator.phase is RoundPhase.REBUILDING
    # then each takes as much work in both
    assert counts[LARGE] < 1.5 * counts[SMALL], counts


def test_the_end_of_a_connection_takes_as_much_work_if_a_majority_is_missing_already() -> None:
    # given two jobs that train without a majority of their members: their connections are silent
    counts = {}
    for members in (SMALL, LARGE):
        driven, names = training(members)
        half = members // 2 + 1
        for name in names[:half]:
            fall_silent(driven, name)
        driven.fail_worker(names[-1])
        assert not driven.coordinator.state.has_majority()
        # when all other connections time out at the same time
        counts[members] = work(driven, names[half:], fall_silent)
    # then each takes as much work in both
    assert counts[LARGE] < 1.5 * counts[SMALL], counts


def crowd(members: int) -> tuple[DrivenCoordinator, list[str]]:
    """A job whose members have their assignments."""
    driven = DrivenCoordinator(members)
    names = [f"active-{number}" for number in range(members)]
    for name in names:
        driven.join(name)
    driven.later(1.0, *names)  # the coordinator of a large job looks for a round at intervals
    assert driven.token.round == 0
    return driven, names


def training(members: int) -> tuple[DrivenCoordinator, list[str]]:
    """A job whose workers run, and whose members are voters."""
    driven, names = crowd(members)
    driven.report_started(*names)
    driven.later(5.0, *names)
    assert driven.coordinator.has_voters
    return driven, names


def work(driven: DrivenCoordinator, names: Sequence[str], message: Message) -> float:
    """The instructions of the coordinator for each message, and for its timer."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for name in names:
            message(driven, name)
            driven.coordinator.deadline()
    finally:
        sys.settrace(before)
    return count / len(names)

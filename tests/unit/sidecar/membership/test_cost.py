"""The cost of a message does not grow with the job: a coordinator gets one of each kind from thousands of members."""

import cProfile
from collections.abc import Callable, Sequence

import pytest

from tests.unit.sidecar.membership.driven import DrivenCoordinator
from understudy_protocol import membership as m

SMALL, LARGE = 100, 400


def acknowledge(driven: DrivenCoordinator, name: str) -> None:
    driven.receive(name, m.Ack(driven.token))


def start(driven: DrivenCoordinator, name: str) -> None:
    driven.receive(name, m.Started(driven.token))


def answer(driven: DrivenCoordinator, name: str) -> None:
    driven.receive(name, m.HeartbeatAck(1))


def make_step(driven: DrivenCoordinator, name: str) -> None:
    driven.report_step(name)


def fall_silent(driven: DrivenCoordinator, name: str) -> None:
    driven.at_once(driven.dropped(name, silent=True))


@pytest.mark.parametrize("message", [acknowledge, start, answer, make_step])
def test_a_message_takes_as_many_calls_in_a_job_of_four_times_the_size(
    message: Callable[[DrivenCoordinator, str], None],
) -> None:
    # given two jobs whose members have their assignments
    counts = {}
    for members in (SMALL, LARGE):
        driven, names = crowd(members)
        # when each member sends a message
        counts[members] = calls(driven, names, message)
    # then it takes as many calls of functions in both
    assert counts[LARGE] < 1.5 * counts[SMALL], counts


def test_the_end_of_a_connection_takes_as_many_calls_if_a_majority_is_missing_already() -> None:
    # given two jobs that train without a majority of their members: their connections are silent
    counts = {}
    for members in (SMALL, LARGE):
        driven, names = crowd(members)
        for message in (acknowledge, start, make_step):
            calls(driven, names, message)
        driven.later(5.0, *names)  # they become voters
        half = members // 2 + 1
        calls(driven, names[:half], fall_silent)
        driven.fail_worker(names[-1])
        assert not driven.coordinator.state.has_majority()
        # when all other connections time out at the same time
        counts[members] = calls(driven, names[half:], fall_silent)
    # then each takes as many calls of functions in both
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


def calls(driven: DrivenCoordinator, names: Sequence[str], message: Callable[[DrivenCoordinator, str], None]) -> float:
    """Calls of functions for each message."""
    with cProfile.Profile() as profile:
        for name in names:
            message(driven, name)
    return sum(entry.callcount for entry in profile.getstats()) / len(names)

"""The times of the messages to observers while the voters of a term begin to count."""

from __future__ import annotations

from tests.unit.sidecar.membership.driven import DrivenCoordinator, running
from tests.unit.sidecar.membership.test_config_change import CONFIG_CHANGE_S
from tests.unit.sidecar.membership.test_cost import acknowledge, crowd
from understudy_protocol import membership as m
from understudy_protocol.hard_state import HardState
from understudy_protocol.observer import Snapshot, Stepping
from understudy_sidecar.membership.candidate import MemberInfo
from understudy_sidecar.membership.observation import Observation

OPERATOR = 1
INFO = MemberInfo(None, None, True, HardState())


def commit_voters(driven: DrivenCoordinator) -> None:
    driven.later(CONFIG_CHANGE_S + 0.1)
    for name in list(driven.sent):
        for change in driven.take(name, m.ConfigChange):
            driven.receive(name, m.ConfigChangeAck(change.config_version))


def voters_sent(observation: Observation, now: float) -> list[int]:
    """The number of voters of each snapshot that is sent now."""
    messages = [message.message for message in observation.due_messages(now)]
    return [len(message.voters) for message in messages if isinstance(message, Snapshot)]


def test_the_first_snapshot_with_voters_is_sent_at_once_and_the_next_ones_five_times_a_second() -> None:
    # given an observer that has just received a snapshot without voters
    driven = running()
    observation = Observation(lambda: driven.coordinator, lambda: INFO, lambda: 0.0)
    observation.add(OPERATOR)
    assert voters_sent(observation, 10.0) == [0]
    # when the voter configuration takes effect
    commit_voters(driven)
    # then a snapshot names the three voters at once
    assert voters_sent(observation, 10.01) == [3]
    # and further changes wait as before
    for _ in range(100):
        driven.coordinator.state.notify_observers()
        assert voters_sent(observation, 10.2) == []
    assert voters_sent(observation, 10.22) == [3]


def test_the_assignments_of_a_large_job_come_before_the_next_snapshot() -> None:
    # given 150 members that have their assignments, and an observer that has not received them yet
    driven, names = crowd(150)
    formed_at = driven.coordinator.state.round.formed_at
    observation = Observation(lambda: driven.coordinator, lambda: INFO, lambda: 0.0)
    observation.add(OPERATOR)
    # when 49 of them have acknowledged
    for name in names[:49]:
        acknowledge(driven, name)
    # then no snapshot is sent for a second
    assert voters_sent(observation, formed_at + 1.0 - 0.1) == []
    assert observation.deadline() == formed_at + 1.0
    # and once only 100 have not acknowledged, it is sent at once
    acknowledge(driven, names[49])
    assert voters_sent(observation, formed_at + 0.5) == [0]


def test_members_that_do_not_acknowledge_delay_a_snapshot_by_a_second_only() -> None:
    driven, _ = crowd(150)
    observation = Observation(lambda: driven.coordinator, lambda: INFO, lambda: 0.0)
    observation.add(OPERATOR)
    assert voters_sent(observation, driven.coordinator.state.round.formed_at + 1.0) == [0]


def test_progress_alone_is_sent_twice_a_second() -> None:
    # given an observer that has received the voters
    driven = running()
    observation = Observation(lambda: driven.coordinator, lambda: INFO, lambda: 0.0)
    observation.add(OPERATOR)
    commit_voters(driven)
    assert voters_sent(observation, 10.0) == [3]
    # when a step is reported four times a second
    driven.report_step("active-0", 2)
    assert observation.due_messages(10.25) == []
    driven.report_step("active-0", 3)
    # then the newest one is sent half a second after the last message
    assert observation.deadline() == 10.5
    (message,) = observation.due_messages(10.5)
    assert isinstance(message.message, Stepping)
    assert message.message.progress.step == 3
    # but a change of the job's state waits only a fifth of a second
    driven.coordinator.state.notify_observers()
    assert observation.deadline() == 10.7

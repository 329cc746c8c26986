"""The times of the messages to observers while the voters of a term begin to count."""

from __future__ import annotations

from tests.unit.sidecar.membership.driven import DrivenCoordinator, running
from tests.unit.sidecar.membership.test_config_change import CONFIG_CHANGE_S
from understudy_protocol import membership as m
from understudy_protocol.hard_state import HardState
from understudy_protocol.observer import Snapshot
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

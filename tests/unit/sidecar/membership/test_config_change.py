"""How a coordinator prepares for its successor, and when it steps down."""

from __future__ import annotations

import pytest

from tests.unit.sidecar.membership.driven import DrivenCoordinator, running
from understudy_protocol import membership as m
from understudy_protocol.enums import ConfigVersion, RoundToken, Term, WorkersState
from understudy_protocol.observer import Appoint, NodeFact, Nodes, Superseded
from understudy_protocol.recovery import CountedFault, History
from understudy_sidecar.membership.events import FromOperator, Tick
from understudy_sidecar.membership.round_state import RoundPhase

LATE_S = 1.0
CONFIG_CHANGE_S = 0.5

ALL_MEMBERS = ("active-0", "active-1", "spare-0")
V1 = ConfigVersion(1, 1, 1)


def committed(**given: object) -> DrivenCoordinator:
    """A job with a voter configuration that counts."""
    driven = running(**given)  # type: ignore[arg-type]
    driven.later(CONFIG_CHANGE_S + 0.1)
    for name in list(driven.sent):
        for change in driven.take(name, m.ConfigChange):
            driven.receive(name, m.ConfigChangeAck(change.config_version))
    assert driven.coordinator.snapshot().voters
    return driven


def test_all_members_are_asked_once_the_first_round_runs() -> None:
    driven = DrivenCoordinator()
    for name in ALL_MEMBERS:
        driven.join(name)
    driven.later(CONFIG_CHANGE_S + 0.1)
    assert [x.config_version for x in driven.take("active-1", m.ConfigChange)] == [V1]
    (leader_snapshot,) = driven.take("spare-0", m.LeaderSnapshot)
    assert leader_snapshot.voters == ("uid-active-0", "uid-active-1", "uid-spare-0")


def test_standby_coordinators_are_spares_first_on_different_nodes() -> None:
    driven = DrivenCoordinator()
    driven.join("spare-0", node="n1")
    driven.join("spare-1", node="n1")
    driven.join("active-0", node="n2")
    driven.join("active-1", node="n3")
    driven.later(CONFIG_CHANGE_S + 0.1)
    (change,) = driven.take("active-0", m.ConfigChange)
    names = [standby.pod_uid for standby in change.standby_coordinators]
    assert names == ["uid-spare-0", "uid-active-0", "uid-active-1", "uid-spare-1"]


def test_only_standby_coordinators_get_the_list_of_voters() -> None:
    driven = DrivenCoordinator(actives=7)
    for rank in range(7):
        driven.join(f"active-{rank}")
    driven.later(CONFIG_CHANGE_S + 0.1)
    assert [bool(driven.take(f"active-{rank}", m.LeaderSnapshot)) for rank in range(7)] == [True] * 5 + [False] * 2


def test_a_lost_voter_leaves_the_voter_configuration_with_the_consent_of_the_old_one() -> None:
    driven = committed()
    driven.drop("spare-0")
    driven.later(CONFIG_CHANGE_S + 0.1)
    assert len(driven.coordinator.snapshot().voters) == 3
    for name in ("active-0", "active-1"):
        for change in driven.take(name, m.ConfigChange):
            driven.receive(name, m.ConfigChangeAck(change.config_version))
    assert driven.coordinator.snapshot().voters == ("uid-active-0", "uid-active-1")


def test_the_budget_goes_to_the_standby_coordinators() -> None:
    driven = committed()
    driven.fail_worker("active-0")
    driven.later(CONFIG_CHANGE_S + 0.1, *ALL_MEMBERS)
    history = driven.take("spare-0", m.LeaderSnapshot)[-1].history
    assert [fault.is_charged for fault in history.counted_faults] == [True]


def test_standby_coordinators_know_the_pods_of_a_new_round_at_once() -> None:
    """Found by the simulation (seed 130697): the coordinator hung 0.4 s after it had formed the round."""
    # given a job that has standby coordinators
    coordinator = committed()
    coordinator.take("spare-0", m.LeaderSnapshot)
    # when the next round is formed
    coordinator.fail_worker("active-0")
    coordinator.answer_heartbeats("active-1")
    # then it sends them the pods of the round at the same moment
    assert coordinator.token.round == 1
    snapshot = coordinator.take("spare-0", m.LeaderSnapshot)[-1]
    assert snapshot.token == coordinator.token
    assert [seat.pod_name for seat in snapshot.rank_holders] == ["active-0", "active-1"]


def test_an_elected_coordinator_continues_the_voter_configuration() -> None:
    history = History(Term(1, 1), 1, (CountedFault(1_000_000.0, "", None),), {}, (), 0)
    voters = ("uid-a", "uid-active-0", "uid-active-1")
    leader_snapshot = m.LeaderSnapshot(V1, voters, (), "uid-a", {"InPlace": 1}, history)
    driven = DrivenCoordinator(2, elected=leader_snapshot, max_in_place=1)
    driven.join("active-0", RoundToken(1, 1, 3), 0, WorkersState.RUNNING)
    driven.join("active-1", RoundToken(1, 1, 3), 1, WorkersState.RUNNING)
    assert driven.coordinator.phase is RoundPhase.RUNNING
    driven.fail_worker("active-0")
    # The reason is reported once it is decided: the next coordinator may decide otherwise
    assert driven.recovery().reason == ""
    driven.answer_heartbeats("active-1")
    assert driven.recovery().reason == "the budget of 1 restarts within 1 h is spent"


@pytest.mark.parametrize(("of_newest_round", "missed"), [("uid-a", False), ("uid-b", True)])
def test_an_elected_coordinator_knows_the_round_of_the_one_that_it_succeeds(of_newest_round: str, missed: bool) -> None:
    # given a coordinator that was elected in the place of uid-a, and continues its round
    leader_snapshot = m.LeaderSnapshot(V1, ("uid-active-0", "uid-active-1"), (), "uid-a", {}, token=RoundToken(1, 1, 3))
    driven = DrivenCoordinator(2, elected=leader_snapshot)
    # when the operator, which does not know of the election, appoints it for another epoch
    appoint = Appoint(2, 3, {}, coordinator_uid=of_newest_round)
    # then it has missed a round only if a third coordinator has formed it
    assert driven.coordinator.has_missed(appoint) == missed


def test_no_round_is_formed_without_a_majority() -> None:
    driven = committed(actives=1, spares=3)
    for name in ("spare-0", "spare-1"):
        driven.drop(name, silent=True)
    driven.fail_worker("active-0")
    assert driven.assigned() == {}
    assert "majority" in driven.coordinator.snapshot().waiting_for


def test_without_a_majority_no_member_is_lost_for_silence_and_the_coordinator_steps_down() -> None:
    driven = committed(actives=3, spares=0)
    for name in ("active-1", "active-2"):
        driven.drop(name, silent=True)
    driven.later(14.0, "active-0")
    assert driven.lost_pods() == {}
    assert not driven.step_down_reason
    driven.later(2.0, "active-0")
    assert driven.step_down_reason


@pytest.mark.parametrize("silent", [False, True])
def test_a_coordinator_that_needs_a_majority_and_has_none_reports_it(silent: bool) -> None:
    # given two voters, of which the spare coordinates
    coordinator = committed(actives=1, spares=1)
    coordinator.coordinator.state.pod_uid = "uid-spare-0"
    version = coordinator.coordinator.state.version
    # when the connection of the active member ends, or is silent and the member would be lost
    coordinator.drop("active-0", silent=silent)
    if silent:
        assert not coordinator.coordinator.snapshot().lacks_quorum
        coordinator.later(10.1, "spare-0")
    # then observers receive it
    assert coordinator.coordinator.snapshot().lacks_quorum
    assert coordinator.coordinator.state.version > version
    # until the member is connected again, or the operator begins another epoch
    coordinator.coordinator.appoint(Appoint(2, 0, {}), coordinator.now)
    assert not coordinator.coordinator.snapshot().lacks_quorum


def test_a_newer_term_ends_this_one() -> None:
    driven = committed()
    driven.join("spare-9", term=Term(1, 2))
    assert driven.step_down_reason


def test_the_operator_ends_a_term_if_it_has_appointed_another_coordinator() -> None:
    driven = committed()
    driven.do(FromOperator(Superseded(Term(2, 1), "uid-x", "10.0.0.7")))
    assert driven.take("active-0", m.Redirect) == [m.Redirect("uid-x", "10.0.0.7")]
    assert driven.step_down_reason


def test_a_coordinator_whose_pod_leaves_transfers_its_leadership() -> None:
    driven = committed()
    driven.coordinator.state.pod_uid = "uid-active-0"
    driven.receive("active-0", m.Leaving("deleted", 30.0))
    assert [driven.take(name, m.Redirect)[0].pod_uid for name in ALL_MEMBERS] == ["uid-spare-0"] * 3
    assert driven.step_down_reason
    assert driven.take("active-1", m.Drain) == []  # the next coordinator decides that


def test_a_coordinator_transfers_its_leadership_to_a_pod_that_stays_if_there_is_one() -> None:
    # given a coordinator whose first standby coordinator leaves, and whose second one is on broken hardware
    driven = running(actives=3)
    driven.coordinator.state.pod_uid = "uid-active-0"
    driven.later(CONFIG_CHANGE_S + 0.1, "active-0", "active-1", "active-2", "spare-0")
    driven.receive("spare-0", m.Leaving("its node is drained", 30.0))
    driven.do(FromOperator(Nodes((NodeFact("node-of-active-1", hardware_finding="Xid 79"),))))
    # when its own pod leaves, too
    driven.receive("active-0", m.Leaving("its node is drained", 30.0))
    # then it names the third one
    assert driven.take("active-2", m.Redirect)[0].pod_uid == "uid-active-2"


def test_before_a_transfer_of_its_leadership_the_coordinator_sends_what_the_next_one_does_not_know() -> None:
    driven = committed()
    driven.coordinator.state.pod_uid = "uid-active-0"
    driven.take("spare-0", m.LeaderSnapshot)
    driven.coordinator.state.config_changes.send_snapshot_later(driven.now)
    driven.receive("active-0", m.Leaving("deleted", 30.0))
    kinds = [type(message) for message in driven.sent["spare-0"]]
    assert kinds.index(m.LeaderSnapshot) < kinds.index(m.Redirect)


def test_after_a_freeze_the_coordinator_decides_nothing_before_a_majority_has_answered() -> None:
    driven = committed()
    due = driven.coordinator.deadline()
    assert due is not None
    driven.now = due + LATE_S + 20.0
    driven.fail_worker("active-0")
    assert driven.assigned() == {}
    heartbeat = driven.take("active-1", m.Heartbeat)[0]
    driven.receive("active-0", m.HeartbeatAck(heartbeat.number - 1))  # an answer from before the freeze
    driven.receive("active-1", m.HeartbeatAck(heartbeat.number - 1))
    assert driven.assigned() == {}
    driven.receive("active-0", m.HeartbeatAck(heartbeat.number))
    driven.receive("active-1", m.HeartbeatAck(heartbeat.number))
    driven.do(Tick())
    assert driven.assigned() == {"active-0": 0, "active-1": 1}


def test_an_appointment_ends_check_quorum() -> None:
    """Found by the simulation (seed 88): a majority of an outdated voter configuration could not answer."""
    driven = committed(actives=1, spares=1)
    driven.now += 20.0  # it freezes, and all its members leave
    for name in ("spare-0", "active-0"):
        driven.drop(name)
    assert driven.coordinator.state.quorum.check is not None
    driven.coordinator.appoint(Appoint(2, 0, {}), driven.now)
    for name in ("active-0", "spare-1"):
        driven.join(name)
    assert driven.assigned() == {"active-0": 0}


def test_acknowledgements_that_waited_while_the_coordinator_was_frozen_count() -> None:
    """A member that has stored a version keeps it. Only a majority that follows has to answer again."""
    driven = running()
    driven.later(CONFIG_CHANGE_S + 0.1)
    (asked,) = driven.take("active-0", m.ConfigChange)
    driven.now += 20.0  # it freezes; messages that were sent before wait
    for name in ALL_MEMBERS:
        driven.receive(name, m.ConfigChangeAck(asked.config_version))
    assert len(driven.coordinator.snapshot().voters) == 3
    assert not driven.coordinator.state.has_majority()
    for name in ALL_MEMBERS:
        for heartbeat in driven.take(name, m.Heartbeat):
            driven.receive(name, m.HeartbeatAck(heartbeat.number))
    assert driven.coordinator.state.has_majority()


def test_a_pending_voter_configuration_is_sent_again_to_members_that_join_and_under_the_same_version() -> None:
    # given a proposal that no member has acknowledged
    driven = running()
    driven.later(CONFIG_CHANGE_S + 0.1)
    (asked,) = driven.take("active-0", m.ConfigChange)
    # when another spare joins
    driven.join("spare-9")
    driven.later(CONFIG_CHANGE_S + 0.1)
    # then it receives the same version, although it is no voter of it. The others receive it too, because their standby
    # coordinators have changed
    for name in ("spare-9", "active-0"):
        (again,) = driven.take(name, m.ConfigChange)
        assert again.config_version == asked.config_version
        assert "uid-spare-9" in {standby.pod_uid for standby in again.standby_coordinators}
    # and a vote about the new member begins only when the first configuration counts
    for name in ALL_MEMBERS:
        driven.receive(name, m.ConfigChangeAck(asked.config_version))
    driven.later(CONFIG_CHANGE_S + 0.1)
    (next_one,) = driven.take("spare-9", m.ConfigChange)
    assert next_one.config_version > asked.config_version


def test_a_member_that_missed_a_change_of_the_voters_gets_it_when_it_connects_again() -> None:
    # given a member whose connection is broken while another spare joins
    driven = committed(actives=3)
    others = ("active-0", "active-1", "spare-0", "spare-1")
    driven.drop("active-2", silent=True)
    driven.join("spare-1")
    for _ in range(8):
        driven.report_step("active-0")
        driven.later(0.25, *others)
    assert "uid-spare-1" in driven.coordinator.snapshot().voters
    assert driven.take("active-2", m.ConfigChange) == []
    # when it connects again, with the version that it knows
    driven.join("active-2", driven.token, 2, WorkersState.RUNNING, config_version=V1)
    driven.later(CONFIG_CHANGE_S + 0.1, *others)
    # then it gets the newest version and its standby coordinators, and once it has stored them, nothing more
    (change,) = driven.take("active-2", m.ConfigChange)
    assert change.config_version > V1
    assert "uid-spare-1" in [standby.pod_uid for standby in change.standby_coordinators]
    driven.receive("active-2", m.ConfigChangeAck(change.config_version))
    driven.join("active-2", driven.token, 2, WorkersState.RUNNING, config_version=change.config_version)
    driven.later(CONFIG_CHANGE_S + 0.1, *others)
    assert [driven.take(name, m.ConfigChange) for name in ("active-0", "active-2")] == [[], []]

"""What a coordinator arranges for the time after it, and when it leaves office."""

from __future__ import annotations

import pytest

from tests.unit.sidecar.membership.driven import Driven, running
from understudy_protocol import membership as m
from understudy_protocol.observer import Appoint, Superseded
from understudy_protocol.words import ElectorateVersion, Office, RoundToken, WorkersState
from understudy_sidecar.membership.desk import State
from understudy_sidecar.membership.events import Tick, Told

LATE_S = 1.0
SUCCESSION_S = 0.5

EVERYBODY = ("active-0", "active-1", "spare-0")
V1 = ElectorateVersion(1, 1, 1)


def settled(**given: object) -> Driven:
    """A job with an electorate that counts."""
    office = running(**given)  # type: ignore[arg-type]
    office.later(SUCCESSION_S + 0.1)
    for name in list(office.sent):
        for succession in office.take(name, m.Succession):
            office.hear(name, m.SuccessionAck(succession.electorate))
    assert office.coordinator.snapshot().electorate
    return office


def test_everybody_that_can_vote_is_asked_once_the_first_round_runs() -> None:
    office = Driven()
    for name in EVERYBODY:
        office.join(name)
    office.join("spare-1", votes=False)
    office.later(SUCCESSION_S + 0.1)
    assert [x.electorate for x in office.take("active-1", m.Succession)] == [V1]
    (estate,) = office.take("spare-0", m.Estate)
    assert estate.voters == ("uid-active-0", "uid-active-1", "uid-spare-0")


def test_heirs_are_spares_first_on_nodes_of_their_own() -> None:
    office = Driven()
    office.join("spare-0", node="n1")
    office.join("spare-1", node="n1")
    office.join("active-0", node="n2")
    office.join("active-1", node="n3")
    office.later(SUCCESSION_S + 0.1)
    (succession,) = office.take("active-0", m.Succession)
    names = [heir.pod_uid for heir in succession.heirs]
    assert names == ["uid-spare-0", "uid-active-0", "uid-active-1", "uid-spare-1"]


def test_only_heirs_get_the_list_of_voters() -> None:
    office = Driven(actives=7)
    for rank in range(7):
        office.join(f"active-{rank}")
    office.later(SUCCESSION_S + 0.1)
    assert [bool(office.take(f"active-{rank}", m.Estate)) for rank in range(7)] == [True] * 5 + [False] * 2


def test_a_lost_voter_leaves_the_electorate_with_the_old_ones_consent() -> None:
    office = settled()
    office.drop("spare-0")
    office.later(SUCCESSION_S + 0.1)
    assert len(office.coordinator.snapshot().electorate) == 3
    for name in ("active-0", "active-1"):
        for succession in office.take(name, m.Succession):
            office.hear(name, m.SuccessionAck(succession.electorate))
    assert office.coordinator.snapshot().electorate == ("uid-active-0", "uid-active-1")


def test_the_budget_goes_to_the_heirs() -> None:
    office = settled()
    office.worker_fails("active-0")
    office.later(SUCCESSION_S + 0.1, *EVERYBODY)
    assert len(office.take("spare-0", m.Estate)[-1].charges) == 1


def test_standby_coordinators_know_the_pods_of_a_new_round_at_once() -> None:
    """Found by the simulation (seed 130697): the coordinator hung 0.4 s after it had formed the round."""
    # given a job that has standby coordinators
    coordinator = settled()
    coordinator.take("spare-0", m.Estate)
    # when the next round is formed
    coordinator.worker_fails("active-0")
    coordinator.answers("active-1")
    # then they get its pods in the same moment
    assert coordinator.token.round == 1
    snapshot = coordinator.take("spare-0", m.Estate)[-1]
    assert snapshot.token == coordinator.token
    assert [seat.pod_name for seat in snapshot.seats] == ["active-0", "active-1"]


def test_an_elected_one_goes_on_with_it() -> None:
    estate = m.Estate(V1, ("uid-a", "uid-active-0", "uid-active-1"), (), "uid-a", (1_000_000.0,), {"InPlace": 1})
    office = Driven(2, elected=estate, max_in_place=1)
    office.join("active-0", RoundToken(1, 1, 3), 0, WorkersState.RUNNING)
    office.join("active-1", RoundToken(1, 1, 3), 1, WorkersState.RUNNING)
    assert office.coordinator.state is State.RUNNING
    office.worker_fails("active-0")
    # why is told once it is decided: who comes next in office may decide otherwise
    assert office.recovery().reason == ""
    office.answers("active-1")
    assert office.recovery().reason == "the budget of 1 restarts within 1 h is spent"


def test_no_round_is_formed_without_a_majority() -> None:
    office = settled(actives=1, spares=3)
    for name in ("spare-0", "spare-1"):
        office.drop(name, silent=True)
    office.worker_fails("active-0")
    assert office.assigned() == {}
    assert "majority" in office.coordinator.snapshot().waiting_for


def test_without_a_majority_nobody_is_lost_for_silence_and_it_resigns() -> None:
    office = settled(actives=3, spares=0)
    for name in ("active-1", "active-2"):
        office.drop(name, silent=True)
    office.later(14.0, "active-0")
    assert office.lost() == {}
    assert not office.resigned
    office.later(2.0, "active-0")
    assert office.resigned


@pytest.mark.parametrize("silent", [False, True])
def test_a_coordinator_that_needs_a_majority_and_has_none_reports_it(silent: bool) -> None:
    # given two voters, of which the spare coordinates
    coordinator = settled(actives=1, spares=1)
    coordinator.coordinator.desk.pod_uid = "uid-spare-0"
    version = coordinator.coordinator.desk.version
    # when the connection of the active one ends, or is silent and the member would be lost
    coordinator.drop("active-0", silent=silent)
    if silent:
        assert not coordinator.coordinator.snapshot().lacks_quorum
        coordinator.later(10.1, "spare-0")
    # then observers learn it
    assert coordinator.coordinator.snapshot().lacks_quorum
    assert coordinator.coordinator.desk.version > version
    # until it is connected again, or the operator begins another epoch
    coordinator.coordinator.appoint(Appoint(2, 0, {}), coordinator.now)
    assert not coordinator.coordinator.snapshot().lacks_quorum


def test_a_newer_office_ends_this_one() -> None:
    office = settled()
    office.join("spare-9", office=Office(1, 2))
    assert office.resigned


def test_so_does_the_operator_that_has_appointed_another() -> None:
    office = settled()
    office.do(Told(Superseded(Office(2, 1), "uid-x", "10.0.0.7")))
    assert office.take("active-0", m.Elsewhere) == [m.Elsewhere("uid-x", "10.0.0.7")]
    assert office.resigned


def test_a_coordinator_whose_pod_leaves_passes_its_office_on() -> None:
    office = settled()
    office.coordinator.desk.pod_uid = "uid-active-0"
    office.hear("active-0", m.Leaving("deleted", 30.0))
    assert [office.take(name, m.Elsewhere)[0].pod_uid for name in EVERYBODY] == ["uid-spare-0"] * 3
    assert office.resigned
    assert office.take("active-1", m.Drain) == []  # that is the next one's to say


def test_after_standing_still_it_decides_nothing_before_a_majority_has_answered() -> None:
    office = settled()
    due = office.coordinator.deadline()
    assert due is not None
    office.now = due + LATE_S + 20.0
    office.worker_fails("active-0")
    assert office.assigned() == {}
    heartbeat = office.take("active-1", m.Heartbeat)[0]
    office.hear("active-0", m.HeartbeatAck(heartbeat.number - 1))  # an answer from before
    office.hear("active-1", m.HeartbeatAck(heartbeat.number - 1))
    assert office.assigned() == {}
    office.hear("active-0", m.HeartbeatAck(heartbeat.number))
    office.hear("active-1", m.HeartbeatAck(heartbeat.number))
    office.do(Tick())
    assert office.assigned() == {"active-0": 0, "active-1": 1}


def test_an_appointment_ends_a_doubt() -> None:
    """Found by the simulation (seed 88): a majority of an electorate that was no more could not answer."""
    office = settled(actives=1, spares=1)
    office.now += 20.0  # it stands still, and all its members go
    for name in ("spare-0", "active-0"):
        office.drop(name)
    assert office.coordinator.desk.doubt is not None
    office.coordinator.appoint(Appoint(2, 0, {}), office.now)
    for name in ("active-0", "spare-1"):
        office.join(name)
    assert office.assigned() == {"active-0": 0}


def test_acknowledgements_count_that_waited_while_the_coordinator_stood_still() -> None:
    """A member that has stored a version never takes that back. Only a majority that follows must answer again."""
    office = running()
    office.later(SUCCESSION_S + 0.1)
    (asked,) = office.take("active-0", m.Succession)
    office.now += 20.0  # it stands still; what was sent before waits
    for name in EVERYBODY:
        office.hear(name, m.SuccessionAck(asked.electorate))
    assert len(office.coordinator.snapshot().electorate) == 3
    assert not office.coordinator.desk.has_majority()
    for name in EVERYBODY:
        for heartbeat in office.take(name, m.Heartbeat):
            office.hear(name, m.HeartbeatAck(heartbeat.number))
    assert office.coordinator.desk.has_majority()


def test_a_pending_electorate_is_sent_again_to_members_that_join_and_under_the_same_version() -> None:
    # given a proposal that nobody has acknowledged
    office = running()
    office.later(SUCCESSION_S + 0.1)
    (asked,) = office.take("active-0", m.Succession)
    # when another spare joins
    office.join("spare-9")
    office.later(SUCCESSION_S + 0.1)
    # then it receives the same version, although it is no voter of it, and so do the others: their heirs have changed
    for name in ("spare-9", "active-0"):
        (again,) = office.take(name, m.Succession)
        assert again.electorate == asked.electorate
        assert "uid-spare-9" in {heir.pod_uid for heir in again.heirs}
    # and a vote about the new member begins only when the first one counts
    for name in EVERYBODY:
        office.hear(name, m.SuccessionAck(asked.electorate))
    office.later(SUCCESSION_S + 0.1)
    (next_one,) = office.take("spare-9", m.Succession)
    assert next_one.electorate > asked.electorate

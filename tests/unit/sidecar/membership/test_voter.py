"""The votes that a member may give, and the state that it stores about them."""

from dataclasses import replace

import pytest

from understudy_protocol.enums import ConfigVersion, Term
from understudy_protocol.hard_state import HardState
from understudy_protocol.membership import ConfigChange, LeaderSnapshot, RequestVote, StandbyCoordinator
from understudy_protocol.recovery import History
from understudy_sidecar.membership.voter import Voter

E1, E2 = ConfigVersion(1, 1, 1), ConfigVersion(1, 1, 2)
O1, O2, O3 = Term(1, 1), Term(1, 2), Term(1, 3)
HARD_STATE = HardState(O1, "", E1)


@pytest.mark.parametrize(
    ("hard_state", "vote_request", "granted"),
    [
        (HARD_STATE, RequestVote(O2, E1, "candidate"), True),
        (HARD_STATE, RequestVote(O2, E2, "candidate"), True),
        (HARD_STATE, RequestVote(O1, E1, "candidate"), False),  # the voter follows it already
        # the candidate has an older configuration
        (replace(HARD_STATE, config_version=E2), RequestVote(O2, E1, "candidate"), False),
        (HardState(O2, "candidate", E1), RequestVote(O2, E1, "candidate"), True),  # requested again
        (HardState(O2, "other", E1), RequestVote(O2, E1, "candidate"), False),  # one vote per term
        (HardState(O2, "other", E1), RequestVote(O3, E1, "candidate"), True),
        (HardState(Term(2, 1), "", E1), RequestVote(O3, E1, "candidate"), False),  # a newer epoch is known
    ],
)
def test_a_term_gets_one_vote_of_a_voter_for_a_candidate_that_is_not_behind(
    hard_state: HardState, vote_request: RequestVote, granted: bool
) -> None:
    voter = Voter(hard_state)
    assert voter.grant_vote(vote_request) is granted
    assert (voter.hard_state == hard_state) is (not granted or hard_state.voted_for == "candidate")


def test_a_voter_whose_stored_vote_was_removed_votes_twice_in_a_term() -> None:
    """A limit that docs/explanation/security.md states: the root of a node can change the hard state of its members."""
    voter = Voter(HARD_STATE)
    assert voter.grant_vote(RequestVote(O2, E1, "candidate"))
    assert not voter.grant_vote(RequestVote(O2, E1, "other"))
    # when the node restarts the sidecar with its earlier hard state
    voter = Voter(HARD_STATE)
    assert voter.grant_vote(RequestVote(O2, E1, "other"))


def test_a_member_follows_any_pod_of_the_job_that_claims_a_newer_term() -> None:
    """A limit that docs/explanation/security.md states: a member does not count the votes of its coordinator."""
    voter = Voter(HARD_STATE)
    assert voter.follow(Term(1, 1_000_000))
    assert not voter.follow(O2)


def test_a_vote_stores_no_voter_configuration() -> None:
    """Only a proposal does: a candidate that loses must not make its voters deny candidates with an older
    configuration.
    """
    voter = Voter(HARD_STATE)
    voter.grant_vote(RequestVote(O2, E2, "candidate"))
    assert voter.hard_state.config_version == HARD_STATE.config_version


@pytest.mark.attack("C1", "a coordinator that was replaced, and continues to send commands", before="refused, too")
def test_a_coordinator_of_an_older_term_is_not_followed() -> None:
    voter = Voter(HardState(O2))
    assert not voter.follow(O1)
    assert voter.follow(O2)
    assert voter.follow(O3)
    assert voter.hard_state.term == O3


@pytest.mark.parametrize(("term", "accepted"), [(Term(1, 1), False), (Term(2, 1), True)])
def test_an_appointment_is_accepted_in_a_new_epoch_only(term: Term, accepted: bool) -> None:
    assert Voter(HardState(O2)).accept_appointment(term) is accepted


def test_an_older_config_change_or_leader_snapshot_changes_nothing() -> None:
    leader_snapshot = LeaderSnapshot(E2, ("a",), (), "a", {})
    voter = Voter(HardState(O1, "", E2, (StandbyCoordinator("a", "10.0.0.1"),), leader_snapshot))
    before = voter.hard_state
    assert not voter.acknowledge(ConfigChange(E1, ()))
    assert not voter.store_leader_snapshot(replace(leader_snapshot, config_version=E1))
    assert voter.hard_state == before
    assert voter.store_leader_snapshot(replace(leader_snapshot, recoveries_by_strategy={"InPlace": 1}))


@pytest.mark.parametrize(("config_version", "reported"), [(E1, True), (E2, False)])
def test_only_a_standby_coordinator_of_the_newest_voter_configuration_reports_its_history(
    config_version: ConfigVersion, reported: bool
) -> None:
    history = History(O1, 1, (), {}, (), 0)
    voter = Voter(HardState(O1, "", config_version, (), LeaderSnapshot(E1, ("a",), (), "a", {}, history)))
    assert voter.history == (history if reported else None)


def test_standby_coordinators_of_earlier_lists_are_kept() -> None:
    """Found by the simulation (seed 87125): a coordinator that was cut off had named one of its own side only."""
    a, b, c = (StandbyCoordinator(name, name.upper()) for name in "abc")
    voter = Voter(HardState())
    voter.acknowledge(ConfigChange(ConfigVersion(1, 1, 1), (a, b)))
    voter.acknowledge(ConfigChange(ConfigVersion(1, 1, 2), (c,)))
    assert (voter.hard_state.standby_coordinators, voter.hard_state.previous_standby_coordinators) == ((c,), (a, b))
    # at most five, the newest first
    for number in range(3, 9):
        voter.acknowledge(ConfigChange(ConfigVersion(1, 1, number), (StandbyCoordinator(str(number), str(number)),)))
    assert [standby.pod_uid for standby in voter.hard_state.previous_standby_coordinators] == ["7", "6", "5", "4", "3"]

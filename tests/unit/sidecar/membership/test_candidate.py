"""A sidecar that is not the coordinator: how it redirects callers, and how it becomes the coordinator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from understudy_protocol import membership as m
from understudy_protocol.enums import NO_ROUND, CloseReason, ConfigVersion, Term, WorkersState
from understudy_protocol.hard_state import HardState
from understudy_protocol.observer import Superseded
from understudy_sidecar.membership import events as e
from understudy_sidecar.membership.candidate import CandidateMachine, CandidateState, MemberInfo
from understudy_sidecar.membership.voter import Voter

AGAIN_S = 0.1

E1, E2 = ConfigVersion(1, 1, 1), ConfigVersion(1, 1, 2)
O1, O2, O3 = Term(1, 1), Term(1, 2), Term(1, 3)
NOBODY = m.StandbyCoordinator("", "")
ELSEWHERE = m.StandbyCoordinator("uid-other", "10.0.0.9")
CLOSED = m.Close(CloseReason.SUCCEEDED, "done")


class CandidatePool:
    """The standby coordinator `a` of a voter configuration a, b, c, d, e; its own member looks for a coordinator."""

    def __init__(self, *, place: int = 0, leader_snapshot: bool = True) -> None:
        standbys = tuple(m.StandbyCoordinator(name, f"10.0.0.{number}") for number, name in enumerate("abc"))
        standbys = standbys if place == 0 else (*standbys[1 : 1 + place], standbys[0])
        given = m.LeaderSnapshot(E1, tuple("abcde"), (), "coordinator", {}) if leader_snapshot else None
        self.voter = Voter(HardState(O1, "", E1, standbys, given))
        self.known = MemberInfo(None, None, True, self.voter.hard_state)
        self.machine = CandidateMachine("a", self.voter, self.known)
        self.now = 100.0
        self.links = {name: number for number, name in enumerate("abcdefgh", start=1)}

    def do(self, event: e.CandidateEvent, **changes: Any) -> list[e.CandidateEffect]:
        self.known = replace(self.known, hard_state=self.voter.hard_state, **changes)
        effects = self.machine.handle(event, self.known, self.now)
        return [x for x in effects if not isinstance(x, e.Log)]

    def call(self, *names: str, term: Term = O1, config: ConfigVersion = E1) -> list[e.CandidateEffect]:
        effects = []
        for name in names:
            join = m.Join(name, name, "n", "ip", None, NO_ROUND, None, WorkersState.IDLE, 1, term, config)
            effects += self.do(e.JoinReceived(self.links[name], join))
        return effects

    def grant(self, *names: str, term: Term = O2) -> list[e.CandidateEffect]:
        return [x for name in names for x in self.do(e.Received(self.links[name], m.VoteGranted(term)))]

    def refuse(self, name: str, term: Term, voter_config: ConfigVersion = E1) -> list[e.CandidateEffect]:
        return self.do(e.Received(self.links[name], m.VoteDenied(term, voter_config)))

    def vote_requests(self, effects: list[e.CandidateEffect]) -> dict[int, Term]:
        sent = [x for x in effects if isinstance(x, e.Send) and isinstance(x.message, m.RequestVote)]
        return {x.link: x.message.term for x in sent if isinstance(x.message, m.RequestVote)}


def elected(effects: list[e.CandidateEffect]) -> Term | None:
    return next((x.term for x in effects if isinstance(x, e.AssumeLeadership)), None)


def sent_away(to: m.StandbyCoordinator, link: int) -> list[e.CandidateEffect]:
    return [e.Send(link, m.Redirect(to.pod_uid, to.ip)), e.Hangup(link, "redirected")]


# Callers


def test_a_sidecar_that_knows_the_coordinator_redirects_callers() -> None:
    pool = CandidatePool()
    pool.do(e.Tick(), coordinator=ELSEWHERE)
    assert pool.call("b") == sent_away(ELSEWHERE, 2)


def test_a_sidecar_that_is_no_standby_coordinator_keeps_no_caller() -> None:
    assert CandidatePool(leader_snapshot=False).call("b") == sent_away(m.StandbyCoordinator("", ""), 2)


def test_every_sidecar_that_knows_the_close_sends_it_to_late_callers() -> None:
    pool = CandidatePool(leader_snapshot=False)
    pool.do(e.Tick(), closed=CLOSED)
    assert pool.call("b") == [e.Send(2, CLOSED), e.Send(2, m.ShutdownComplete())]


def test_waiting_callers_are_redirected_as_soon_as_a_coordinator_is_known() -> None:
    pool = CandidatePool()
    assert pool.call("b") == []
    assert pool.do(e.Tick(), coordinator=ELSEWHERE) == sent_away(ELSEWHERE, 2)
    assert pool.machine.state is CandidateState.IDLE


def test_a_caller_that_lost_the_coordinator_of_this_sidecar_waits_until_its_member_has_decided() -> None:
    # given a standby coordinator whose member is connected to a coordinator, which two callers have lost
    pool = CandidatePool()
    pool.do(e.Tick(), coordinator=ELSEWHERE, may_vote=False)
    pool.do(e.Tick(), doubts_coordinator=True)
    assert pool.call("b", "c") == []
    # when the coordinator's machine responds, then they are redirected to it
    assert pool.do(e.Tick(), doubts_coordinator=False) == sent_away(ELSEWHERE, 2) + sent_away(ELSEWHERE, 3)
    # and when its member has lost the coordinator too, then it asks them for their votes
    pool.do(e.Tick(), doubts_coordinator=True)
    assert pool.call("b", "c") == []
    requests = pool.do(e.Tick(), coordinator=None, may_vote=True, doubts_coordinator=False)
    assert pool.vote_requests(requests) == {2: O2, 3: O2}


def test_a_sidecar_that_is_no_standby_coordinator_keeps_no_such_caller() -> None:
    pool = CandidatePool(leader_snapshot=False)
    pool.do(e.Tick(), coordinator=ELSEWHERE, may_vote=False, doubts_coordinator=True)
    assert pool.call("b") == sent_away(NOBODY, 2)


@pytest.mark.parametrize("to", [ELSEWHERE, m.StandbyCoordinator("", "")], ids=["reachable", "lost"])
def test_waiting_callers_are_redirected_to_the_coordinator_that_the_operator_has_appointed(
    to: m.StandbyCoordinator,
) -> None:
    pool = CandidatePool()
    assert pool.call("b") == []
    assert pool.do(e.FromOperator(Superseded(Term(2, 1), to.pod_uid, to.ip))) == sent_away(to, 2)
    assert pool.machine.state is CandidateState.IDLE


# The election


def test_no_vote_is_requested_before_a_majority_is_connected() -> None:
    pool = CandidatePool()
    assert pool.call("b") == []
    assert pool.vote_requests(pool.call("c")) == {2: O2, 3: O2}  # with its own member they are three of five


def test_if_a_majority_needs_members_of_a_newer_voter_configuration_all_callers_call_another_sidecar() -> None:
    """Found by the simulation (seed 796294): candidates with an older one increased the term, and nobody could lead."""
    pool = CandidatePool()
    assert pool.call("b", config=E2) == []
    assert pool.call("c") == [*sent_away(NOBODY, 2), *sent_away(NOBODY, 3)]
    assert pool.machine.state is CandidateState.IDLE
    assert pool.voter.hard_state.term == O1


def test_a_majority_without_the_members_of_a_newer_voter_configuration_is_asked_for_its_votes() -> None:
    pool = CandidatePool()
    pool.call("b")
    assert pool.vote_requests(pool.call("c")) == {2: O2, 3: O2}
    assert pool.vote_requests(pool.call("d", config=E2)) == {}
    assert elected(pool.grant("b", "c")) == O2


def test_a_member_that_is_no_voter_does_not_count() -> None:
    pool = CandidatePool()
    assert pool.call("f", "g", "h", "b") == []


def test_its_own_member_does_not_count_while_it_would_not_vote() -> None:
    pool = CandidatePool()
    pool.do(e.Tick(), may_vote=False)
    assert pool.call("b", "c") == []
    assert pool.vote_requests(pool.call("d")) == {2: O2, 3: O2, 4: O2}


def test_its_own_hard_state_is_stored_before_its_own_vote_counts() -> None:
    pool = CandidatePool()
    effects = pool.call("b", "c")
    assert e.RecordHardState(pool.voter.hard_state) in effects
    assert (pool.voter.hard_state.term, pool.voter.hard_state.voted_for) == (O2, "a")


def test_a_majority_of_votes_elects_the_candidate() -> None:
    pool = CandidatePool()
    pool.call("b", "c")
    assert elected(pool.grant("b")) is None
    assert elected(pool.grant("c")) == O2
    assert set(pool.machine.callers) == {2, 3}


def test_a_member_that_connects_late_gets_a_vote_request_too() -> None:
    pool = CandidatePool()
    pool.call("b", "c")
    assert pool.vote_requests(pool.call("d")) == {4: O2}
    pool.grant("b")
    assert elected(pool.grant("d")) == O2


def test_both_connections_of_a_member_that_calls_twice_may_end_in_any_order() -> None:
    """Found by the simulation (seed 654908): the sidecar ended with a KeyError."""
    # given a member that calls again before its first connection has ended
    pool = CandidatePool()
    pool.call("b")
    pool.links["b"] = 9
    pool.call("b")
    # when the newer connection ends first
    pool.do(e.Dropped(9, False))
    pool.do(e.Dropped(2, False))
    # then no caller is left
    assert pool.machine.callers == {}


def test_votes_for_another_term_do_not_count() -> None:
    pool = CandidatePool()
    pool.call("b", "c")
    assert elected(pool.grant("b", "c", term=O3)) is None


def test_the_term_is_higher_than_every_term_that_a_caller_knows() -> None:
    pool = CandidatePool()
    assert pool.vote_requests(pool.call("b", "c", term=Term(1, 7))) == {2: Term(1, 8), 3: Term(1, 8)}


def test_a_candidate_requests_votes_for_a_higher_term_if_a_voter_knows_a_newer_one() -> None:
    pool = CandidatePool()
    pool.call("b", "c")
    assert pool.vote_requests(pool.refuse("b", O3)) == {2: Term(1, 4), 3: Term(1, 4)}


def test_a_candidate_asks_again_only_when_a_majority_can_vote_for_it() -> None:
    """Found by the simulation (seed 1323898): two candidates, each in the other's pool, took the votes from each other,
    and each lacked its own, because that was the other's.
    """
    # given a candidate that needs its own vote for a majority
    pool = CandidatePool()
    assert pool.vote_requests(pool.call("b", "c")) == {2: O2, 3: O2}
    # when its own member has voted for another candidate, and a caller knows that term
    pool.voter.grant_vote(m.RequestVote(O3, E1, "b"))
    effects = pool.do(e.Received(2, m.VoteDenied(O3, E1)), may_vote=False)
    # then it does not take the votes of its callers from that candidate
    assert pool.vote_requests(effects) == {}
    assert pool.machine.deadline() is None
    # and asks them once its own member has left the other pool
    assert pool.vote_requests(pool.do(e.Tick(), may_vote=True)) == {2: Term(1, 4), 3: Term(1, 4)}
    assert elected(pool.grant("b", "c", term=Term(1, 4))) == Term(1, 4)


def test_two_candidates_that_deny_each_other_do_not_ask_again_at_the_same_time() -> None:
    pool = CandidatePool(place=2)
    pool.call("b", "c")
    assert pool.vote_requests(pool.refuse("b", O2)) == {}
    pool.now += 2 * AGAIN_S + 0.01
    assert pool.vote_requests(pool.do(e.Tick())) == {2: O3, 3: O3}


def test_a_candidate_gives_way_if_a_voter_knows_a_newer_voter_configuration() -> None:
    pool = CandidatePool()
    pool.call("b", "c")
    nobody = m.StandbyCoordinator("", "")
    assert pool.refuse("b", O1, E2) == [*sent_away(nobody, 2), *sent_away(nobody, 3)]
    assert pool.machine.state is CandidateState.IDLE


def test_a_standby_coordinator_of_an_older_epoch_is_no_candidate() -> None:
    pool = CandidatePool()
    pool.voter.follow(Term(2, 1))
    assert pool.call("b", "c") == [
        *sent_away(m.StandbyCoordinator("", ""), 2),
        *sent_away(m.StandbyCoordinator("", ""), 3),
    ]


def test_while_a_voter_configuration_is_pending_it_needs_majorities_of_both() -> None:
    pool = CandidatePool()
    pool.voter.store_leader_snapshot(m.LeaderSnapshot(E2, tuple("abcde"), tuple("afgh"), "coordinator", {}))
    assert pool.call("b", "c") == []
    pool.call("f")
    assert pool.vote_requests(pool.call("g")) == {2: O2, 3: O2, 6: O2, 7: O2}
    pool.grant("b", "c")
    assert elected(pool.grant("f")) is None
    assert elected(pool.grant("g")) == O2

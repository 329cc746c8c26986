"""Which voter configurations count, and when one replaces another."""

from understudy_protocol.enums import ConfigVersion, Term
from understudy_protocol.hard_state import HardState
from understudy_protocol.membership import ConfigChange, RequestVote
from understudy_sidecar.membership.voter import Voter
from understudy_sidecar.membership.voter_config import Tally, VoterConfig, VoterConfigs, majority

V1 = ConfigVersion(1, 1, 1)


def voters(names: str) -> frozenset[str]:
    return frozenset(names)


def committed(names: str) -> VoterConfigs:
    """Configurations of term 1.1, whose newest one counts."""
    configs = VoterConfigs(Term(1, 1))
    version = configs.propose(names).version
    for name in names:
        configs.acknowledge(name, version)
    assert configs.committed.voters == voters(names)
    return configs


def test_a_majority_is_more_than_half() -> None:
    assert [majority("abcde"[:size]) for size in range(1, 6)] == [1, 2, 2, 3, 3]


def test_the_first_configuration_counts_with_a_majority_of_its_own() -> None:
    configs = VoterConfigs(Term(1, 1))
    version = configs.propose("abc").version
    assert not configs.acknowledge("a", version)
    assert configs.acknowledge("b", version)
    assert configs.committed == VoterConfig(V1, voters("abc"))


def test_the_next_configuration_needs_majorities_of_both() -> None:
    configs = committed("abc")
    version = configs.propose("cdefg").version
    assert not any(configs.acknowledge(name, version) for name in "cdefg")
    assert configs.committed.voters == voters("abc")
    assert configs.acknowledge("a", version)


def test_an_election_during_a_change_needs_majorities_of_both() -> None:
    configs = committed("abc")
    proposed = configs.propose("cde")
    assert not Tally(proposed, "cde").has_majority()
    assert not Tally(proposed, "abc").has_majority()
    assert Tally(proposed, "acd").has_majority()


def test_a_tally_counts_each_voter_once_and_no_other_member() -> None:
    tally = Tally(VoterConfig(V1, voters("abc")), "aax")
    assert not tally.has_majority()
    tally.add("b")
    assert tally.has_majority()
    tally.discard("b")
    tally.discard("b")
    assert not tally.has_majority()
    tally.add("c")
    assert tally.has_majority()


def test_an_empty_configuration_has_no_majority() -> None:
    assert not Tally(VoterConfig(), "abc").has_majority()


def test_an_acknowledgement_of_another_version_does_not_count() -> None:
    configs = committed("abc")
    old_version = configs.committed.version
    configs.propose("abcd")
    assert not any(configs.acknowledge(name, old_version) for name in "abcd")


def test_no_other_change_is_proposed_while_one_is_pending() -> None:
    configs = committed("abc")
    version = configs.propose("abcd").version
    assert not configs.next_voters("abce")
    assert not configs.next_voters("abc")
    # but as soon as it counts, another change follows
    for name in "abc":
        configs.acknowledge(name, version)
    assert configs.next_voters("abce") == voters("abce")
    assert configs.propose("abce").old_voters == voters("abcd")


def test_nothing_is_proposed_without_a_change() -> None:
    configs = committed("abc")
    assert not configs.next_voters("cba")
    assert not VoterConfigs(Term(1, 1)).next_voters("")


def test_a_new_term_repeats_its_configuration_under_a_version_of_its_own_before_any_change() -> None:
    configs = VoterConfigs(Term(1, 2), VoterConfig(V1, voters("abc")))
    assert configs.next_voters("abcd") == voters("abc")
    version = configs.propose("abc").version
    assert version > V1
    for name in "ab":
        configs.acknowledge(name, version)
    assert configs.next_voters("abcd") == voters("abcd")


def test_a_configuration_that_was_pending_at_the_election_needs_both_majorities_until_it_is_repeated() -> None:
    configs = VoterConfigs(Term(1, 2), VoterConfig(V1, voters("abcdefg"), voters("ab")))
    assert configs.newest.old_voters == voters("ab")
    version = configs.propose(configs.next_voters("abcdefg")).version
    assert not any(configs.acknowledge(name, version) for name in "cdefg")
    assert not configs.acknowledge("a", version)
    assert configs.acknowledge("b", version)
    assert not configs.newest.old_voters


def test_a_pending_change_that_all_members_stored_leaves_room_for_one_coordinator() -> None:
    # given voters S, and a change to S and six more pods that all have stored; its acknowledgements are lost
    coordinator = committed("abcxy")
    pods = {name: Voter(HardState(Term(1, 1), config_version=coordinator.committed.version)) for name in "abcxydefghi"}
    pending = coordinator.propose("abcxydefghi")
    assert all(pod.acknowledge(ConfigChange(pending.version, ())) for pod in pods.values())
    # when the coordinator loses the connection to the six, then it does not propose S again, under a newer version
    assert not coordinator.next_voters("abcxy")
    # when it dies, then a standby coordinator that knows the pending change is elected, by majorities of both
    term = Term(1, 2)
    granted = [name for name in "axydefghi" if pods[name].grant_vote(RequestVote(term, pending.version, "d"))]
    assert Tally(pending, granted).has_majority()
    elected = VoterConfigs(term, VoterConfig(pending.version, pending.voters, pending.old_voters))
    # and can change nothing with the six alone, while it is cut off from the others
    version = elected.propose(elected.next_voters("defghi")).version
    stored = [name for name in "defghi" if pods[name].acknowledge(ConfigChange(version, ()))]
    assert not any(elected.acknowledge(name, version) for name in stored)
    # then the others may elect a coordinator of a newer term, under the same change, and the first one has no majority
    term = Term(1, 3)
    granted = [name for name in "abxydefghi" if pods[name].grant_vote(RequestVote(term, pending.version, "b"))]
    assert set(granted) == set("abxy"), "the six have stored a newer version"
    assert not Tally(pending, granted).has_majority()
    # and no candidate is elected under S any more
    granted = [name for name in "abxy" if pods[name].grant_vote(RequestVote(Term(1, 4), V1, "b"))]
    assert granted == []


def test_a_change_that_an_elected_coordinator_did_not_know_can_never_count_later() -> None:
    """Why a new term repeats its configuration first: Raft's single-server changes had this fault (raft-dev, 2015)."""
    # given a change that only d and e have stored, and a coordinator that the others elected under the previous list
    first = committed("abc")
    pods = {name: Voter(HardState(Term(1, 1), config_version=first.committed.version)) for name in "abcde"}
    pending = first.propose("abcde")
    for name in "de":
        pods[name].acknowledge(ConfigChange(pending.version, ()))
    term = Term(1, 2)
    assert all(pods[name].grant_vote(RequestVote(term, V1, "b")) for name in "ab")
    # when it has repeated the list
    second = VoterConfigs(term, VoterConfig(V1, voters("abc")))
    version = second.propose(second.next_voters("ab")).version
    for name in "ab":
        assert pods[name].acknowledge(ConfigChange(version, ()))
        second.acknowledge(name, version)
    # then no majority elects a candidate under the change
    granted = [name for name in "abcde" if pods[name].grant_vote(RequestVote(Term(1, 3), pending.version, "d"))]
    assert not Tally(pending, granted).has_majority()


def test_a_voter_stores_no_version_of_a_term_older_than_its_vote() -> None:
    voter = Voter(HardState(Term(1, 1), config_version=V1))
    assert voter.grant_vote(RequestVote(Term(1, 2), V1, "b"))
    assert not voter.acknowledge(ConfigChange(ConfigVersion(1, 1, 2), ()))
    assert voter.hard_state.config_version == V1
    assert voter.acknowledge(ConfigChange(ConfigVersion(1, 2, 1), ()))

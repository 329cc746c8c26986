"""Which lists of voters count, and when one takes the place of another."""

from understudy_protocol.membership import Candidacy, Succession
from understudy_protocol.vow import Vow
from understudy_protocol.words import ElectorateVersion, Office
from understudy_sidecar.membership.electorate import Electorate, ElectorateKeeper, Tally, majority
from understudy_sidecar.membership.voter import Voter

V1 = ElectorateVersion(1, 1, 1)


def voters(names: str) -> frozenset[str]:
    return frozenset(names)


def settled(names: str) -> ElectorateKeeper:
    """A keeper of office 1.1 whose electorate counts."""
    keeper = ElectorateKeeper(Office(1, 1))
    version = keeper.propose(names).version
    for name in names:
        keeper.acknowledged(name, version)
    assert keeper.settled.voters == voters(names)
    return keeper


def test_a_majority_is_more_than_half() -> None:
    assert [majority("abcde"[:size]) for size in range(1, 6)] == [1, 2, 2, 3, 3]


def test_the_first_electorate_counts_with_a_majority_of_its_own() -> None:
    keeper = ElectorateKeeper(Office(1, 1))
    version = keeper.propose("abc").version
    assert not keeper.acknowledged("a", version)
    assert keeper.acknowledged("b", version)
    assert keeper.settled == Electorate(V1, voters("abc"))


def test_the_next_one_needs_majorities_of_both() -> None:
    keeper = settled("abc")
    version = keeper.propose("cdefg").version
    assert not any(keeper.acknowledged(name, version) for name in "cdefg")
    assert keeper.settled.voters == voters("abc")
    assert keeper.acknowledged("a", version)


def test_an_election_meanwhile_needs_both_too() -> None:
    keeper = settled("abc")
    proposed = keeper.propose("cde")
    assert not Tally(proposed, "cde").carries()
    assert not Tally(proposed, "abc").carries()
    assert Tally(proposed, "acd").carries()


def test_a_tally_counts_each_voter_once_and_nobody_else() -> None:
    tally = Tally(Electorate(V1, voters("abc")), "aax")
    assert not tally.carries()
    tally.add("b")
    assert tally.carries()
    tally.discard("b")
    tally.discard("b")
    assert not tally.carries()
    tally.add("c")
    assert tally.carries()


def test_no_electorate_is_carried_by_nobody() -> None:
    assert not Tally(Electorate(), "abc").carries()


def test_an_acknowledgement_of_another_version_counts_for_nothing() -> None:
    keeper = settled("abc")
    former = keeper.settled.version
    keeper.propose("abcd")
    assert not any(keeper.acknowledged(name, former) for name in "abcd")


def test_no_other_change_is_proposed_while_one_is_pending() -> None:
    keeper = settled("abc")
    version = keeper.propose("abcd").version
    assert not keeper.next_voters("abce")
    assert not keeper.next_voters("abc")
    # but as soon as it counts, after it
    for name in "abc":
        keeper.acknowledged(name, version)
    assert keeper.next_voters("abce") == voters("abce")
    assert keeper.propose("abce").former == voters("abcd")


def test_nothing_is_proposed_without_a_change() -> None:
    keeper = settled("abc")
    assert not keeper.next_voters("cba")
    assert not ElectorateKeeper(Office(1, 1)).next_voters("")


def test_a_new_office_repeats_its_electorate_under_a_version_of_its_own_before_it_changes_anything() -> None:
    keeper = ElectorateKeeper(Office(1, 2), Electorate(V1, voters("abc")))
    assert keeper.next_voters("abcd") == voters("abc")
    version = keeper.propose("abc").version
    assert version > V1
    for name in "ab":
        keeper.acknowledged(name, version)
    assert keeper.next_voters("abcd") == voters("abcd")


def test_an_electorate_that_was_pending_at_the_election_needs_both_lists_until_it_is_repeated() -> None:
    keeper = ElectorateKeeper(Office(1, 2), Electorate(V1, voters("abcdefg"), voters("ab")))
    assert keeper.newest.former == voters("ab")
    version = keeper.propose(keeper.next_voters("abcdefg")).version
    assert not any(keeper.acknowledged(name, version) for name in "cdefg")
    assert not keeper.acknowledged("a", version)
    assert keeper.acknowledged("b", version)
    assert not keeper.newest.former


def test_a_pending_change_that_everybody_stored_leaves_room_for_one_coordinator() -> None:
    # given voters S, and a change to S and six more pods that all have stored; its acknowledgements are lost
    coordinator = settled("abcxy")
    pods = {name: Voter(Vow(Office(1, 1), electorate=coordinator.settled.version)) for name in "abcxydefghi"}
    pending = coordinator.propose("abcxydefghi")
    assert all(pod.acknowledge(Succession(pending.version, ())) for pod in pods.values())
    # when the coordinator loses the six from sight, then it does not propose S again, under a newer version
    assert not coordinator.next_voters("abcxy")
    # when it dies, then an heir that knows the pending change is elected, by majorities of both
    office = Office(1, 2)
    granted = [name for name in "axydefghi" if pods[name].grant(Candidacy(office, pending.version, "d"))]
    assert Tally(pending, granted).carries()
    elected = ElectorateKeeper(office, Electorate(pending.version, pending.voters, pending.former))
    # and can change nothing with the six alone, while it is cut off from the others
    version = elected.propose(elected.next_voters("defghi")).version
    stored = [name for name in "defghi" if pods[name].acknowledge(Succession(version, ()))]
    assert not any(elected.acknowledged(name, version) for name in stored)
    # then the others may elect a coordinator of a newer term, under the same change, and the former one has no majority
    office = Office(1, 3)
    granted = [name for name in "abxydefghi" if pods[name].grant(Candidacy(office, pending.version, "b"))]
    assert set(granted) == set("abxy"), "the six have stored a newer version"
    assert not Tally(pending, granted).carries()
    # and nobody is elected under S any more
    granted = [name for name in "abxy" if pods[name].grant(Candidacy(Office(1, 4), V1, "b"))]
    assert granted == []


def test_a_change_that_an_elected_coordinator_did_not_know_of_cannot_come_to_count_later() -> None:
    """Why a new office repeats its electorate first: Raft's single-server changes had this fault (raft-dev, 2015)."""
    # given a change that only d and e have stored, and a coordinator that the others elected under the former list
    first = settled("abc")
    pods = {name: Voter(Vow(Office(1, 1), electorate=first.settled.version)) for name in "abcde"}
    pending = first.propose("abcde")
    for name in "de":
        pods[name].acknowledge(Succession(pending.version, ()))
    office = Office(1, 2)
    assert all(pods[name].grant(Candidacy(office, V1, "b")) for name in "ab")
    # when it has repeated the list
    second = ElectorateKeeper(office, Electorate(V1, voters("abc")))
    version = second.propose(second.next_voters("ab")).version
    for name in "ab":
        assert pods[name].acknowledge(Succession(version, ()))
        second.acknowledged(name, version)
    # then no majority elects anybody under the change
    granted = [name for name in "abcde" if pods[name].grant(Candidacy(Office(1, 3), pending.version, "d"))]
    assert not Tally(pending, granted).carries()


def test_a_voter_that_gave_an_office_stores_no_version_of_an_older_one() -> None:
    voter = Voter(Vow(Office(1, 1), electorate=V1))
    assert voter.grant(Candidacy(Office(1, 2), V1, "b"))
    assert not voter.acknowledge(Succession(ElectorateVersion(1, 1, 2), ()))
    assert voter.vow.electorate == V1
    assert voter.acknowledge(Succession(ElectorateVersion(1, 2, 1), ()))

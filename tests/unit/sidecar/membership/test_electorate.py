"""Which lists of voters count, and when one takes the place of another."""

from understudy_protocol.words import ElectorateVersion, Office
from understudy_sidecar.membership.electorate import Electorate, ElectorateKeeper, Tally, majority

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
    old = keeper.propose("abcd").version
    keeper.propose("abce")
    assert not any(keeper.acknowledged(name, old) for name in "abce")


def test_a_proposal_that_does_not_count_yet_may_be_superseded_and_the_base_stays() -> None:
    keeper = settled("abc")
    keeper.propose("abcd")
    assert keeper.wants("abce")
    assert keeper.propose("abce").former == voters("abc")


def test_nothing_is_proposed_without_a_change() -> None:
    keeper = settled("abc")
    assert not keeper.wants("cba")
    assert not ElectorateKeeper(Office(1, 1)).wants("")


def test_a_new_office_proposes_the_same_voters_anew_under_its_own_version() -> None:
    keeper = ElectorateKeeper(Office(1, 2), Electorate(V1, voters("abc")))
    assert keeper.wants("abc")
    assert keeper.propose("abc").version > V1

"""What a member may promise, and what it keeps of it."""

from dataclasses import replace

import pytest

from understudy_protocol.membership import Candidacy, Estate, Heir, Succession
from understudy_protocol.recovery import History
from understudy_protocol.vow import Vow
from understudy_protocol.words import ElectorateVersion, Office
from understudy_sidecar.membership.voter import Voter

E1, E2 = ElectorateVersion(1, 1, 1), ElectorateVersion(1, 1, 2)
O1, O2, O3 = Office(1, 1), Office(1, 2), Office(1, 3)
VOW = Vow(O1, "", E1)


@pytest.mark.parametrize(
    ("vow", "candidacy", "granted"),
    [
        (VOW, Candidacy(O2, E1, "heir"), True),
        (VOW, Candidacy(O2, E2, "heir"), True),
        (VOW, Candidacy(O1, E1, "heir"), False),  # it is followed already
        (replace(VOW, electorate=E2), Candidacy(O2, E1, "heir"), False),  # the candidate's electorate is older
        (Vow(O2, "heir", E1), Candidacy(O2, E1, "heir"), True),  # asked again
        (Vow(O2, "other", E1), Candidacy(O2, E1, "heir"), False),  # once only
        (Vow(O2, "other", E1), Candidacy(O3, E1, "heir"), True),
        (Vow(Office(2, 1), "", E1), Candidacy(O3, E1, "heir"), False),  # a newer epoch is known
    ],
)
def test_an_office_is_granted_once_to_who_is_not_behind(vow: Vow, candidacy: Candidacy, granted: bool) -> None:
    voter = Voter(vow)
    assert voter.grant(candidacy) is granted
    assert (voter.vow == vow) is (not granted or vow.granted_to == "heir")


def test_a_grant_stores_no_electorate() -> None:
    """Only a proposal does: a candidate that loses must not make its voters refuse those with an older electorate."""
    voter = Voter(VOW)
    voter.grant(Candidacy(O2, E2, "heir"))
    assert voter.vow.electorate == VOW.electorate


@pytest.mark.attack("C1", "a coordinator that was replaced, and goes on commanding", before="refused, too")
def test_an_older_office_is_not_followed() -> None:
    voter = Voter(Vow(O2))
    assert not voter.follow(O1)
    assert voter.follow(O2)
    assert voter.follow(O3)
    assert voter.vow.office == O3


@pytest.mark.parametrize(("office", "held"), [(Office(1, 1), False), (Office(2, 1), True)])
def test_an_appointment_is_taken_in_a_new_epoch_only(office: Office, held: bool) -> None:
    assert Voter(Vow(O2)).hold(office) is held


def test_an_older_succession_or_estate_changes_nothing() -> None:
    estate = Estate(E2, ("a",), (), "a", (), {})
    voter = Voter(Vow(O1, "", E2, (Heir("a", "10.0.0.1"),), estate))
    before = voter.vow
    assert not voter.acknowledge(Succession(E1, ()))
    assert not voter.inherit(replace(estate, electorate=E1))
    assert voter.vow == before
    assert voter.inherit(replace(estate, charges=(1.0,)))


@pytest.mark.parametrize(("electorate", "told"), [(E1, True), (E2, False)])
def test_only_an_heir_of_the_newest_electorate_brings_its_history(electorate: ElectorateVersion, told: bool) -> None:
    history = History(O1, 1, (), {}, (), 0)
    voter = Voter(Vow(O1, "", electorate, (), Estate(E1, ("a",), (), "a", (), {}, history)))
    assert voter.history == (history if told else None)


def test_standby_coordinators_of_earlier_lists_are_kept() -> None:
    """Found by the simulation (seed 87125): a coordinator that was cut off had named one of its side only."""
    a, b, c = (Heir(name, name.upper()) for name in "abc")
    voter = Voter(Vow())
    voter.acknowledge(Succession(ElectorateVersion(1, 1, 1), (a, b)))
    voter.acknowledge(Succession(ElectorateVersion(1, 1, 2), (c,)))
    assert (voter.vow.heirs, voter.vow.former_heirs) == ((c,), (a, b))
    # at most five, the newest first
    for number in range(3, 9):
        voter.acknowledge(Succession(ElectorateVersion(1, 1, number), (Heir(str(number), str(number)),)))
    assert [heir.pod_uid for heir in voter.vow.former_heirs] == ["7", "6", "5", "4", "3"]

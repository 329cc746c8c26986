"""A sidecar that is not in office: where it sends callers, and how it comes into office."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from understudy_protocol import membership as m
from understudy_protocol.vow import Vow
from understudy_protocol.words import NO_ROUND, CloseReason, ElectorateVersion, Office, WorkersState
from understudy_sidecar.membership import events as e
from understudy_sidecar.membership.heir import HeirMachine, Known, State
from understudy_sidecar.membership.voter import Voter

AGAIN_S = 0.1

E1, E2 = ElectorateVersion(1, 1, 1), ElectorateVersion(1, 1, 2)
O1, O2, O3 = Office(1, 1), Office(1, 2), Office(1, 3)
ELSEWHERE = m.Heir("uid-other", "10.0.0.9")
CLOSED = m.Close(CloseReason.SUCCEEDED, "done")


class Hall:
    """The heir `a` of an electorate a, b, c, d, e; its own member looks for a coordinator."""

    def __init__(self, *, place: int = 0, estate: bool = True) -> None:
        heirs = tuple(m.Heir(name, f"10.0.0.{number}") for number, name in enumerate("abc"))
        heirs = heirs if place == 0 else (*heirs[1 : 1 + place], heirs[0])
        given = m.Estate(E1, tuple("abcde"), (), "office", (), {}) if estate else None
        self.voter = Voter(Vow(O1, "", E1, heirs, given))
        self.known = Known(None, None, True, self.voter.vow)
        self.machine = HeirMachine("a", self.voter, self.known)
        self.now = 100.0
        self.links = {name: number for number, name in enumerate("abcdefgh", start=1)}

    def do(self, event: e.HeirEvent, **changes: Any) -> list[e.HeirEffect]:
        self.known = replace(self.known, vow=self.voter.vow, **changes)
        effects = self.machine.handle(event, self.known, self.now)
        return [x for x in effects if not isinstance(x, e.Say)]

    def call(self, *names: str, office: Office = O1) -> list[e.HeirEffect]:
        effects = []
        for name in names:
            join = m.Join(name, name, "n", "ip", None, NO_ROUND, None, WorkersState.IDLE, 1, office, E1, votes=True)
            effects += self.do(e.Called(self.links[name], join))
        return effects

    def grant(self, *names: str, office: Office = O2) -> list[e.HeirEffect]:
        return [x for name in names for x in self.do(e.Received(self.links[name], m.Grant(office)))]

    def refuse(self, name: str, office: Office, electorate: ElectorateVersion = E1) -> list[e.HeirEffect]:
        return self.do(e.Received(self.links[name], m.Refusal(office, electorate)))

    def asked(self, effects: list[e.HeirEffect]) -> dict[int, Office]:
        sent = [x for x in effects if isinstance(x, e.Send) and isinstance(x.message, m.Candidacy)]
        return {x.link: x.message.office for x in sent if isinstance(x.message, m.Candidacy)}


def elected(effects: list[e.HeirEffect]) -> Office | None:
    return next((x.office for x in effects if isinstance(x, e.TakeOffice)), None)


def sent_away(to: m.Heir, link: int) -> list[e.HeirEffect]:
    return [e.Send(link, m.Elsewhere(to.pod_uid, to.ip)), e.Hangup(link, "redirected")]


# Who calls


def test_who_knows_the_coordinator_says_so() -> None:
    hall = Hall()
    hall.do(e.Tick(), coordinator=ELSEWHERE)
    assert hall.call("b") == sent_away(ELSEWHERE, 2)


def test_who_is_no_heir_keeps_nobody() -> None:
    assert Hall(estate=False).call("b") == sent_away(m.Heir("", ""), 2)


def test_a_late_comer_is_told_of_the_close_by_whoever_it_calls() -> None:
    hall = Hall(estate=False)
    hall.do(e.Tick(), closed=CLOSED)
    assert hall.call("b") == [e.Send(2, CLOSED), e.Send(2, m.Adjourned())]


def test_who_waits_is_told_as_soon_as_somebody_is_found() -> None:
    hall = Hall()
    assert hall.call("b") == []
    assert hall.do(e.Tick(), coordinator=ELSEWHERE) == sent_away(ELSEWHERE, 2)
    assert hall.machine.state is State.IDLE


# The election


def test_nothing_is_asked_before_a_majority_is_here() -> None:
    hall = Hall()
    assert hall.call("b") == []
    assert hall.asked(hall.call("c")) == {2: O2, 3: O2}  # with its own member they are three of five


def test_who_is_no_voter_does_not_count() -> None:
    hall = Hall()
    assert hall.call("f", "g", "h", "b") == []


def test_nor_does_its_own_member_while_it_would_not_vote() -> None:
    hall = Hall()
    hall.do(e.Tick(), apart=False)
    assert hall.call("b", "c") == []
    assert hall.asked(hall.call("d")) == {2: O2, 3: O2, 4: O2}


def test_its_own_vow_is_stored_before_its_own_vote_counts() -> None:
    hall = Hall()
    effects = hall.call("b", "c")
    assert e.RecordVow(hall.voter.vow) in effects
    assert (hall.voter.vow.office, hall.voter.vow.granted_to) == (O2, "a")


def test_a_majority_of_grants_is_an_office() -> None:
    hall = Hall()
    hall.call("b", "c")
    assert elected(hall.grant("b")) is None
    assert elected(hall.grant("c")) == O2
    assert set(hall.machine.callers) == {2, 3}


def test_who_comes_late_is_asked_too() -> None:
    hall = Hall()
    hall.call("b", "c")
    assert hall.asked(hall.call("d")) == {4: O2}
    hall.grant("b")
    assert elected(hall.grant("d")) == O2


def test_grants_of_another_office_count_for_nothing() -> None:
    hall = Hall()
    hall.call("b", "c")
    assert elected(hall.grant("b", "c", office=O3)) is None


def test_the_term_is_after_every_one_that_a_caller_knows() -> None:
    hall = Hall()
    assert hall.asked(hall.call("b", "c", office=Office(1, 7))) == {2: Office(1, 8), 3: Office(1, 8)}


def test_where_somebody_knows_a_newer_office_it_asks_for_the_next() -> None:
    hall = Hall()
    hall.call("b", "c")
    assert hall.asked(hall.refuse("b", O3)) == {2: Office(1, 4), 3: Office(1, 4)}


def test_two_that_refuse_each_other_do_not_ask_again_at_the_same_time() -> None:
    hall = Hall(place=2)
    hall.call("b", "c")
    assert hall.asked(hall.refuse("b", O2)) == {}
    hall.now += 2 * AGAIN_S + 0.01
    assert hall.asked(hall.do(e.Tick())) == {2: O3, 3: O3}


def test_where_somebody_knows_a_newer_electorate_it_gives_way() -> None:
    hall = Hall()
    hall.call("b", "c")
    nobody = m.Heir("", "")
    assert hall.refuse("b", O1, E2) == [*sent_away(nobody, 2), *sent_away(nobody, 3)]
    assert hall.machine.state is State.IDLE


def test_an_heir_of_an_older_epoch_stands_for_nothing() -> None:
    hall = Hall()
    hall.voter.follow(Office(2, 1))
    assert hall.call("b", "c") == [*sent_away(m.Heir("", ""), 2), *sent_away(m.Heir("", ""), 3)]


def test_while_a_new_electorate_does_not_count_it_needs_majorities_of_both() -> None:
    hall = Hall()
    hall.voter.inherit(m.Estate(E2, tuple("abcde"), tuple("afgh"), "office", (), {}))
    assert hall.call("b", "c") == []
    hall.call("f")
    assert hall.asked(hall.call("g")) == {2: O2, 3: O2, 6: O2, 7: O2}
    hall.grant("b", "c")
    assert elected(hall.grant("f")) is None
    assert elected(hall.grant("g")) == O2

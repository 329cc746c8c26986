"""Whom a member without a coordinator calls, in which order, and how long it waits there."""

from understudy_protocol.membership import Heir
from understudy_sidecar.membership.calling import Calls
from understudy_sidecar.membership.events import SERVICE

CALL_AGAIN_S = 0.25
LONG_S = 10.0
SHORT_S = 2.0

HEIRS = tuple(Heir(name, name.upper()) for name in "abc")


def test_heirs_come_in_their_order_and_the_service_last() -> None:
    assert Calls().next(HEIRS, "X") == (("A", "B", "C", SERVICE), 0.0)
    assert Calls().next((), "X") == ((SERVICE,), 0.0)


def test_an_heir_does_not_call_itself() -> None:
    assert Calls().next(HEIRS, "B")[0] == ("A", "C", SERVICE)


def test_who_was_named_comes_first() -> None:
    assert Calls().next(HEIRS, "X", "C")[0] == ("C", "A", "B", SERVICE)
    assert Calls().next(HEIRS, "X", "N")[0] == ("N", "A", "B", "C", SERVICE)


def test_after_one_who_could_not_help_come_those_after_it() -> None:
    calls = Calls()
    calls.called("B")
    assert calls.next(HEIRS, "X") == (("C", SERVICE), 0.0)


def test_it_waits_long_only_where_everybody_comes_first() -> None:
    calls = Calls()
    assert [calls.called(host) for host in ("A", "B", "C")] == [LONG_S, SHORT_S, SHORT_S]


def test_after_the_last_it_begins_again_but_not_at_once() -> None:
    calls = Calls()
    calls.called(SERVICE)
    assert calls.next(HEIRS, "X") == (("A", "B", "C", SERVICE), CALL_AGAIN_S)
    assert calls.called("A") == LONG_S

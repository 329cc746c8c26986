"""Whom a member without a coordinator calls, in which order, and how long it waits there."""

from understudy_protocol.membership import Heir
from understudy_sidecar.membership.calling import CALL_AGAIN_S, LONG_S, SHORT_S, Calls
from understudy_sidecar.membership.events import SERVICE

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
    assert calls.next(HEIRS, "X") == (("C", SERVICE, "A", "B"), 0.0)


def test_if_none_of_those_responds_the_first_one_is_called_again_and_waited_for_long() -> None:
    """Found by the simulation (test_schedules.py): a member called nobody any more but hosts that it cannot reach."""
    # given a member that has called A, which was of no help and sent it to N, which it cannot reach
    calls = Calls()
    calls.called("A")
    assert calls.next(HEIRS, "X", "N")[0] == ("N", "B", "C", SERVICE, "A")
    # when none of the hosts after A responds either, then the next call to A is the first one of another turn
    assert calls.called("A") == LONG_S
    assert calls.next(HEIRS, "X") == (("B", "C", SERVICE, "A"), CALL_AGAIN_S)


def test_it_waits_long_only_where_everybody_comes_first() -> None:
    calls = Calls()
    assert [calls.called(host) for host in ("A", "B", "C")] == [LONG_S, SHORT_S, SHORT_S]


def test_after_the_last_it_begins_again_but_not_at_once() -> None:
    calls = Calls()
    calls.called(SERVICE)
    assert calls.next(HEIRS, "X") == (("A", "B", "C", SERVICE), CALL_AGAIN_S)
    assert calls.called("A") == LONG_S

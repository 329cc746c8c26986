"""The addresses that a member without a coordinator calls, their order, and how long it waits at each."""

from hypothesis import given
from hypothesis import strategies as st

from understudy_protocol.membership import StandbyCoordinator
from understudy_sidecar.membership.calling import Calls, Dialing
from understudy_sidecar.membership.events import SERVICE

CALL_AGAIN_S = 0.25
LONG_S = 10.0
SHORT_S = 2.0

STANDBYS = tuple(StandbyCoordinator(name, name.upper()) for name in "abc")


def test_standby_coordinators_come_in_their_order_and_the_service_last() -> None:
    assert Calls().next(STANDBYS, "X") == (("A", "B", "C", SERVICE), 0.0)
    assert Calls().next((), "X") == ((SERVICE,), 0.0)


def test_a_standby_coordinator_does_not_call_itself() -> None:
    assert Calls().next(STANDBYS, "B")[0] == ("A", "C", SERVICE)


def test_the_last_coordinator_comes_before_the_service() -> None:
    """Found by the simulation (seed 47726): one of three pods was gone, and the other two called only themselves."""
    assert Calls().next(STANDBYS[:1], "A", followed="F")[0] == ("F", SERVICE)
    assert Calls().next(STANDBYS, "X", followed="B")[0] == ("A", "B", "C", SERVICE)
    assert Calls().next((), "X", followed="X")[0] == (SERVICE,)


def test_the_host_of_a_redirect_comes_first() -> None:
    assert Calls().next(STANDBYS, "X", "C")[0] == ("C", "A", "B", SERVICE)
    assert Calls().next(STANDBYS, "X", "N")[0] == ("N", "A", "B", "C", SERVICE)


def test_the_hosts_after_the_last_that_answered_come_first_and_then_all_others() -> None:
    calls = Calls()
    calls.next(STANDBYS, "X")
    calls.on_answer("B")
    assert calls.next(STANDBYS, "X") == (("C", SERVICE, "A", "B"), 0.0)


def test_if_none_of_those_responds_the_first_one_is_called_again_and_waited_for_long() -> None:
    """Found by the simulation (test_schedules.py): a member called only hosts that it could not reach."""
    # given a member that has called A, which redirected it to N, which it cannot reach
    calls = Calls()
    calls.next(STANDBYS, "X")
    calls.on_answer("A")
    assert calls.next(STANDBYS, "X", "N")[0] == ("N", "B", "C", SERVICE, "A")
    # when none of the hosts after A responds either, then the next call to A is the first one of another turn
    assert calls.on_answer("A") == 20.0
    assert calls.next(STANDBYS, "X") == (("B", "C", SERVICE, "A"), CALL_AGAIN_S)


def test_a_lone_host_that_answers_without_success_is_called_four_times_a_second() -> None:
    """Found by the simulation (seed 86500): the member called it ten times a second, for minutes."""
    calls = Calls()
    calls.next(STANDBYS, "X")
    calls.on_answer("A")
    assert calls.next(STANDBYS, "X")[1] == 0.0
    calls.on_answer("A")
    assert calls.next(STANDBYS, "X") == (("B", "C", SERVICE, "A"), CALL_AGAIN_S)


def test_a_member_whose_last_hosts_do_not_answer_calls_the_first_standby_coordinator_again() -> None:
    # given a member that has waited at the last standby coordinator in vain, and a Service behind which no pod answers
    calls = Calls()
    calls.next(STANDBYS, "X")
    calls.on_answer("C")
    # when it calls again, then the first standby coordinator is among the hosts, and the member waits there for long
    assert calls.next(STANDBYS, "X")[0] == (SERVICE, "A", "B", "C")
    assert calls.on_answer("A") == 20.0
    assert calls.next(STANDBYS, "X")[0] == ("B", "C", SERVICE, "A")


def test_a_member_waits_long_at_the_first_standby_coordinator_that_answers_and_longer_in_each_turn() -> None:
    calls = Calls()
    calls.next(STANDBYS, "X")
    stays = [[calls.on_answer(host) for host in ("A", "B", "C")] for _ in range(4)]
    assert stays == [[10.0, 2.0, 2.0], [20.0, 2.0, 2.0], [40.0, 2.0, 2.0], [40.0, 2.0, 2.0]]


def test_after_the_last_host_it_starts_over_after_a_pause() -> None:
    calls = Calls()
    calls.next(STANDBYS, "X")
    calls.on_answer(SERVICE)
    assert calls.next(STANDBYS, "X") == (("A", "B", "C", SERVICE), 0.25)


def test_a_new_search_begins_with_the_first_standby_coordinator() -> None:
    calls = Calls()
    calls.next(STANDBYS, "X")
    calls.on_answer("B")
    calls.reset()
    assert calls.next(STANDBYS, "X") == (("A", "B", "C", SERVICE), 0.0)
    assert calls.on_answer("A") == 10.0


@given(
    st.integers(3, 5).flatmap(
        lambda standbys: st.tuples(
            st.just(standbys), st.lists(st.floats(0.0, 60.0), min_size=standbys, max_size=standbys)
        )
    )
)
def test_standby_coordinators_that_are_all_needed_meet_whenever_each_of_them_began(
    case: tuple[int, list[float]],
) -> None:
    # given standby coordinators that begin to call at any times, and a Service behind which no pod answers
    number, starts = case
    standbys = tuple(StandbyCoordinator(str(place), str(place)) for place in range(number))
    stays = {
        standby.ip: [stay for stay in _stays(standbys, standby.ip, starts[place]) if stay[0] == standbys[0].ip]
        for place, standby in enumerate(standbys[1:], start=1)
    }
    # then within five minutes there is a moment at which all others are connected to the first standby coordinator
    begins = sorted(start for there in stays.values() for _, start, _ in there)
    assert any(all(any(a <= at < b for _, a, b in there) for there in stays.values()) for at in begins), stays


def _stays(standbys: tuple[StandbyCoordinator, ...], own_ip: str, start: float) -> list[tuple[str, float, float]]:
    """The intervals that a member spends at each host in the first five minutes; the Service does not answer for a
    second.
    """
    calls, now, found = Calls(), start, []
    while now < 300.0:
        hosts, wait_s = calls.next(standbys, own_ip)
        now += wait_s
        if hosts[0] == SERVICE:
            now += 1.0
        host = next(host for host in hosts if host != SERVICE)
        stays_s = calls.on_answer(host)
        found.append((host, now, now + stays_s))
        now += stays_s
    return found


def test_all_addresses_are_called_in_turn_and_the_pauses_between_the_turns_double_up_to_a_second() -> None:
    dialing = Dialing(("a", "b"))
    called = [dialing.next() for _ in range(16)]
    assert [address for _, address in called] == ["a", "b"] * 8
    assert [wait_s for wait_s, _ in called[1::2]] == [0.0] * 8
    assert [wait_s for wait_s, _ in called[::2]] == [0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]

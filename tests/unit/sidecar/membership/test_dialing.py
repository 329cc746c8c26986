"""The order in which addresses are called."""

from understudy_sidecar.membership.dialing import Dialing


def test_all_addresses_are_called_in_turn_and_the_pauses_between_the_turns_double_up_to_a_second() -> None:
    dialing = Dialing(("a", "b"))
    called = [dialing.next() for _ in range(16)]
    assert [address for _, address in called] == ["a", "b"] * 8
    assert [wait_s for wait_s, _ in called[1::2]] == [0.0] * 8
    assert [wait_s for wait_s, _ in called[::2]] == [0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]

"""When a machine counts as unreachable, from the counters of its connection."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from understudy_sidecar.tcp import Counters, MachineCheck, needed_packets

SENT = 1000


@dataclass
class Kernel:
    """The counters of a connection to which a packet was just sent, and a check of them. Times in seconds."""

    seen: Counters
    now: float = 100.0
    check: MachineCheck = field(init=False)

    def __post_init__(self) -> None:
        self.check = MachineCheck(self.seen, self.now, 3)

    def later(self, seconds: float, **changes: object) -> bool:
        """Whether the machine counts as unreachable then. It sends nothing unless silent_s changes."""
        self.now += seconds
        times = {"silent_s": self.seen.silent_s + seconds, "sent_s": self.seen.sent_s + seconds}
        self.seen = self.seen._replace(**{**times, **changes})  # type: ignore[arg-type]
        return self.check.is_unreachable(self.seen, self.now)


def connection(silent_s: float, *, probes: int = 0, retransmitted: int = 0) -> Kernel:
    return Kernel(Counters(True, probes, 0, retransmitted, SENT, silent_s, 0.0, 0.001))


def test_a_keepalive_a_message_and_its_first_repetition_suffice() -> None:
    # given a connection at rest: a keepalive has got no answer, and a message was just sent
    kernel = connection(1.2, probes=1)
    assert not kernel.later(0.2)
    # when its kernel sends the message again, as a tail loss probe, which is no timeout
    # then the machine is unreachable
    assert kernel.later(0.02, retransmitted=1)


def test_without_a_keepalive_two_repetitions_are_needed_and_a_second_without_a_packet() -> None:
    kernel = connection(0.3)
    assert not kernel.later(0.22, retransmitted=1)
    assert not kernel.later(0.22, retransmitted=2, timeouts=1)
    assert not kernel.later(0.2)
    assert kernel.later(0.1)


def test_a_packet_from_the_machine_begins_a_new_count() -> None:
    # given a message that was sent twice, because its acknowledgment was late
    kernel = connection(1.5)
    assert not kernel.later(0.22, retransmitted=1)
    assert not kernel.later(0.1, silent_s=0.05, in_flight=False)
    # when the next message is under way for a second, with a keepalive before
    assert not kernel.later(1.2, in_flight=True, probes=1)
    # then it still needs its repetition
    assert kernel.later(0.3, retransmitted=2)


def test_a_message_that_the_machine_has_acknowledged_counts_no_more() -> None:
    kernel = connection(0.1)
    assert not kernel.later(0.9, retransmitted=2, timeouts=0, in_flight=False, silent_s=0.5)
    assert not kernel.later(2.0, probes=2)


def test_repetitions_before_the_check_count_as_timeouts() -> None:
    """A message was under way already, and the next one waits behind it."""
    kernel = Kernel(Counters(True, 0, 2, 3, SENT, 0.9, 0.3, 0.001))
    assert not kernel.later(0.05)
    assert kernel.later(0.1, timeouts=3, retransmitted=4)


def test_the_last_packet_has_the_time_that_an_answer_takes() -> None:
    """A false alarm of bench-detection: a keepalive and a message were on their way to a machine far away."""
    # given a network in which an acknowledgment takes up to 0.6 s
    seen = Counters(True, probes=1, timeouts=0, retransmitted=0, sent=SENT, silent_s=1.0, sent_s=0.0, answer_s=0.6)
    kernel = Kernel(seen)
    # when the message is repeated
    assert not kernel.later(0.3, retransmitted=1, sent_s=0.0)
    assert not kernel.later(0.5)
    # then the machine is unreachable if there is no acknowledgment after that time
    assert kernel.later(0.2)


@pytest.mark.parametrize(
    ("retransmitted", "sent", "packets"),
    [(0, 0, 3), (0, 9000, 3), (1, 9000, 3), (1, 1, 4), (1, 1000, 4), (20, 1000, 5), (50, 100, 6), (9000, 9000, 6)],
)
def test_in_a_network_that_loses_packets_more_are_needed(retransmitted: int, sent: int, packets: int) -> None:
    """So many that all of them are lost by chance once in 10^10 times, but at most 6. A thousand packets without a loss
    are assumed before the first.
    """
    assert needed_packets(retransmitted, sent) == packets


def test_a_lossy_network_needs_more_repetitions() -> None:
    kernel = connection(1.2, probes=1, retransmitted=2)
    assert not kernel.later(0.22, retransmitted=3)
    assert kernel.later(0.22, retransmitted=4, timeouts=1)

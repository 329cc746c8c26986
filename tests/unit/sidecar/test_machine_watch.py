"""Links whose machines do not acknowledge a message are reported once, while they are watched."""

from __future__ import annotations

from tests.unit.sidecar.recording_handler import until
from understudy_sidecar.machine_watch import MachineWatch
from understudy_sidecar.tcp import Counters

#: in_flight, probes, timeouts, retransmitted, sent, silent_s, sent_s, answer_s
ACKNOWLEDGED = Counters(False, 0, 0, 0, 900, 0.0, 0.1, 0.1)
UNREACHABLE = Counters(True, 1, 1, 1, 901, 1.5, 0.2, 0.1)


class WatchedLink:
    def __init__(self) -> None:
        self.now: Counters | None = ACKNOWLEDGED
        self.looks = 0

    def counters(self) -> Counters | None:
        self.looks += 1
        return self.now


async def test_a_link_is_reported_once_and_no_other() -> None:
    found: list[frozenset[int]] = []
    watch, near, far = MachineWatch(found.append), WatchedLink(), WatchedLink()
    watch.begin({1: near, 2: far}, for_s=60.0)
    await until(lambda: far.looks == 2)
    far.now = UNREACHABLE
    await until(lambda: bool(found))
    seen = near.looks
    await until(lambda: near.looks >= seen + 2)
    assert found == [frozenset({2})]


async def test_in_a_network_that_loses_packets_more_are_needed_on_each_link() -> None:
    # given a link without a loss so far, and two others on which 34 of 900 packets were lost
    found: list[frozenset[int]] = []
    watch, links = MachineWatch(found.append), [WatchedLink(), WatchedLink(), WatchedLink()]
    for link in links[1:]:
        link.now = ACKNOWLEDGED._replace(retransmitted=17)
    watch.begin(dict(enumerate(links)), for_s=60.0)
    # when three packets on it are not acknowledged
    links[0].now = UNREACHABLE
    await until(lambda: links[0].looks == 3)
    assert found == []
    # then its machine counts as unreachable after the fifth
    links[0].now = UNREACHABLE._replace(timeouts=3)
    await until(lambda: bool(found))
    assert found == [frozenset({0})]


async def test_a_link_that_is_watched_again_keeps_its_count() -> None:
    """Half of the power-offs of a training were found after 2.4 s or more: it stalls soon after a step is late."""
    # given a link with a message that its kernel has repeated once
    found: list[frozenset[int]] = []
    watch, link = MachineWatch(found.append), WatchedLink()
    link.now = Counters(True, 0, 0, 0, 100, 0.9, 0.0, 0.1)
    watch.begin({1: link}, for_s=60.0)
    link.now = Counters(True, 0, 0, 1, 101, 1.1, 0.2, 0.1)
    # when it is watched again, and then the message is repeated a second time
    watch.begin({1: link}, for_s=60.0)
    await until(lambda: link.looks == 3)
    assert found == []
    link.now = Counters(True, 0, 1, 2, 102, 1.4, 0.2, 0.1)
    # then these are three packets without an acknowledgment
    await until(lambda: bool(found))
    assert found == [frozenset({1})]


async def test_the_next_watch_replaces_the_one_before() -> None:
    found: list[frozenset[int]] = []
    watch, before, after = MachineWatch(found.append), WatchedLink(), WatchedLink()
    watch.begin({1: before}, for_s=60.0)
    watch.begin({2: after}, for_s=60.0)
    before.now = UNREACHABLE
    await until(lambda: after.looks == 3)
    assert (before.looks, found) == (1, [])


async def test_a_watch_ends_with_its_time() -> None:
    watch, link, other = MachineWatch(lambda links: None), WatchedLink(), WatchedLink()
    watch.begin({1: link}, for_s=0.0)
    MachineWatch(lambda links: None).begin({2: other}, for_s=60.0)
    await until(lambda: other.looks == 3)
    assert link.looks == 1


async def test_a_connection_that_has_ended_is_not_watched() -> None:
    """The end of the connection is reported itself."""
    found: list[frozenset[int]] = []
    watch, ended, link = MachineWatch(found.append), WatchedLink(), WatchedLink()
    watch.begin({1: ended, 2: link}, for_s=60.0)
    ended.now = None
    await until(lambda: link.looks == 2)
    seen = ended.looks
    await until(lambda: link.looks == 4)
    assert (ended.looks, found) == (seen, [])

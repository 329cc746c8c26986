"""Links whose machines do not acknowledge a message are reported once, while they are watched."""

from __future__ import annotations

from tests.unit.sidecar.recording_handler import until
from understudy_sidecar.machine_watch import MachineWatch
from understudy_sidecar.tcp import Counters

ACKNOWLEDGED = Counters(in_flight=False, probes=0, timeouts=0, retransmitted=0, sent=9, silent_s=0.0)
UNREACHABLE = Counters(in_flight=True, probes=1, timeouts=1, retransmitted=1, sent=9, silent_s=1.5)


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

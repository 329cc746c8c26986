"""Links whose machines do not acknowledge a message are reported once, while they are watched."""

from __future__ import annotations

from tests.unit.sidecar.recording_handler import until
from understudy_sidecar.machine_watch import MachineWatch


class WatchedLink:
    def __init__(self) -> None:
        self.unreachable = False
        self.looks = 0

    def is_unreachable(self) -> bool:
        self.looks += 1
        return self.unreachable


async def test_a_link_is_reported_once_and_no_other() -> None:
    found: list[frozenset[int]] = []
    watch, near, far = MachineWatch(found.append), WatchedLink(), WatchedLink()
    watch.begin({1: near, 2: far}, for_s=60.0)
    await until(lambda: far.looks == 1)
    far.unreachable = True
    await until(lambda: bool(found))
    seen = near.looks
    await until(lambda: near.looks >= seen + 2)
    assert found == [frozenset({2})]


async def test_the_next_watch_replaces_the_one_before() -> None:
    found: list[frozenset[int]] = []
    watch, before, after = MachineWatch(found.append), WatchedLink(), WatchedLink()
    watch.begin({1: before}, for_s=60.0)
    watch.begin({2: after}, for_s=60.0)
    before.unreachable = True
    await until(lambda: after.looks == 2)
    assert (before.looks, found) == (0, [])


async def test_a_watch_ends_with_its_time() -> None:
    watch, link, other = MachineWatch(lambda links: None), WatchedLink(), WatchedLink()
    watch.begin({1: link}, for_s=0.0)
    MachineWatch(lambda links: None).begin({2: other}, for_s=60.0)
    await until(lambda: other.looks == 2)
    assert link.looks == 0

"""Watches whether the kernels of the peers' machines acknowledge a message that was just sent to them.

One timer for all connections: a coordinator may watch thousands at once.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from understudy_sidecar.tcp import Counters, MachineCheck, needed_packets

#: Seconds between two checks, and the seconds that each link adds: a check costs about 3 us for each link.
LOOK_S = 0.05
LOOK_S_PER_LINK = 0.00002


class Watched(Protocol):
    """A link."""

    def counters(self) -> Counters | None:
        """Of its kernel; None once it has ended."""


class MachineWatch:
    """on_unreachable gets the numbers of links, each of them once."""

    def __init__(self, on_unreachable: Callable[[frozenset[int]], None]) -> None:
        self._on_unreachable = on_unreachable
        self._links: dict[int, tuple[Watched, MachineCheck]] = {}
        self._until = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, links: Mapping[int, Watched], for_s: float) -> None:
        """Watch these links, and no others. Each has just got a message. A link that is watched now keeps its count:
        packets that were not acknowledged meanwhile would count as losses of the network.

        A network that loses packets shows it on all links together before it shows it on each of them.
        """
        now = asyncio.get_running_loop().time()
        found = {number: seen for number, link in links.items() if (seen := link.counters()) is not None}
        needed = needed_packets(sum(x.retransmitted for x in found.values()), sum(x.sent for x in found.values()))
        watched = self._links if now < self._until else {}
        self._links = {
            number: watched.get(number) or (links[number], MachineCheck(seen, now, needed))
            for number, seen in found.items()
        }
        self._until = now + for_s
        if self._timer is not None:
            self._timer.cancel()
        self._plan()

    def _plan(self) -> None:
        loop = asyncio.get_running_loop()
        is_over = not self._links or loop.time() >= self._until
        look_s = LOOK_S + LOOK_S_PER_LINK * len(self._links)
        self._timer = None if is_over else loop.call_later(look_s, self._look)

    def _look(self) -> None:
        now, found, ended = asyncio.get_running_loop().time(), set(), set()
        for number, (link, check) in self._links.items():
            if (seen := link.counters()) is None:
                ended.add(number)
            elif check.is_unreachable(seen, now):
                found.add(number)
        for number in found | ended:
            del self._links[number]
        self._plan()
        if found:
            self._on_unreachable(frozenset(found))

"""Watches whether the kernels of the peers' machines acknowledge a message that was just sent to them.

One timer for all connections: a coordinator may watch thousands at once.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

#: Seconds between two checks, and the seconds that each link adds: a check costs about 2 us for each link.
LOOK_S = 0.05
LOOK_S_PER_LINK = 0.00002


class Watched(Protocol):
    """A link."""

    def is_unreachable(self) -> bool: ...


class MachineWatch:
    """on_unreachable gets the numbers of links, each of them once."""

    def __init__(self, on_unreachable: Callable[[frozenset[int]], None]) -> None:
        self._on_unreachable = on_unreachable
        self._links: dict[int, Watched] = {}
        self._until = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, links: Mapping[int, Watched], for_s: float) -> None:
        """Watch these links, and no others."""
        self._links, self._until = dict(links), asyncio.get_running_loop().time() + for_s
        if self._timer is not None:
            self._timer.cancel()
        self._plan()

    def _plan(self) -> None:
        loop = asyncio.get_running_loop()
        is_over = not self._links or loop.time() >= self._until
        look_s = LOOK_S + LOOK_S_PER_LINK * len(self._links)
        self._timer = None if is_over else loop.call_later(look_s, self._look)

    def _look(self) -> None:
        found = frozenset(number for number, link in self._links.items() if link.is_unreachable())
        for number in found:
            del self._links[number]
        self._plan()
        if found:
            self._on_unreachable(found)

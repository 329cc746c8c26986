"""Callers that have proved nothing yet: how long each may take, and how many there may be.

Rules: who has taken `limit_s` has to go, unless it was this process that was late; when more than `places` are in it,
the one that came first has to. One timer for all, because ten thousand members may come within a second.
"""

import asyncio
from collections.abc import Callable, Hashable

from understudy_sidecar.clock import LATE_S, now

_OnOut = Callable[[str], None]


class Lobby:
    def __init__(self, places: int, limit_s: float) -> None:
        self._places, self._limit_s = places, limit_s
        self._inside: dict[Hashable, tuple[float, _OnOut]] = {}  # by arrival: when its time is over
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def enter(self, caller: Hashable, out: _OnOut) -> None:
        """out: called with the reason when the caller has to go; it has left the lobby by then."""
        self._inside[caller] = (now() + self._limit_s, out)
        if len(self._inside) > self._places:
            self._turn_out(next(iter(self._inside)), f"{self._places} callers that proved nothing came after it")
        if self._timer is None:
            self._set_timer()

    def leave(self, caller: Hashable) -> None:
        self._inside.pop(caller, None)

    def __len__(self) -> int:
        return len(self._inside)

    def _turn_out(self, caller: Hashable, reason: str) -> None:
        _, out = self._inside.pop(caller)
        out(reason)

    def _set_timer(self) -> None:
        self._due = now() + self._limit_s / 5
        self._timer = asyncio.get_running_loop().call_later(self._limit_s / 5, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        if now() < self._due + LATE_S:  # later: what they have sent may still have to be read
            self._turn_out_overdue()
        if self._inside:
            self._set_timer()

    def _turn_out_overdue(self) -> None:
        for caller, (until, _) in tuple(self._inside.items()):
            if until > now():
                return
            self._turn_out(caller, f"no proof of the job's key within {self._limit_s:g} s")

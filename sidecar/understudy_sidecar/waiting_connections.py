"""Callers that have proved nothing yet: how long each may take, and how many there may be.

Rules: who has taken `limit_s` has to go, unless it waits for us to read what it has sent (this process may have been
frozen, or ten thousand may call at once): it has as long again. When more than `places` are in, the one that came first
has to go. One timer for all.
"""

import asyncio
import itertools
from typing import Protocol

from understudy_sidecar.clock import now


class Waiting(Protocol):
    def unread(self) -> bool:
        """Whether it has sent what was not read yet."""

    def turn_out(self, reason: str) -> None:
        """It has left the lobby, and has to go."""


class Lobby:
    def __init__(self, places: int, limit_s: float) -> None:
        self._places, self._limit_s = places, limit_s
        self._inside: dict[Waiting, float] = {}  # until when; the first is the one that came first
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, caller: Waiting) -> None:
        self._inside[caller] = now() + self._limit_s
        if len(self._inside) > self._places:
            self.make_room(f"{self._places} callers that proved nothing came after it")
        if self._timer is None:
            self._set_timer()

    def leave(self, caller: Waiting) -> None:
        self._inside.pop(caller, None)

    def make_room(self, reason: str) -> None:
        """The one that came first has to go, if anybody is in."""
        first = next(iter(self._inside), None)
        if first is not None:
            self._turn_out(first, reason)

    def __len__(self) -> int:
        return len(self._inside)

    def _turn_out(self, caller: Waiting, reason: str) -> None:
        self.leave(caller)
        caller.turn_out(reason)

    def _set_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._limit_s / 5, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        at = now()
        overdue = list(itertools.takewhile(lambda caller: self._inside[caller] <= at, self._inside))
        for caller in overdue:
            if caller.unread():
                self.leave(caller)
                self._inside[caller] = at + self._limit_s
            else:
                self._turn_out(caller, f"no proof of the job's key within {self._limit_s:g} s")
        if self._inside:
            self._set_timer()

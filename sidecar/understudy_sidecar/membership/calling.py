"""The order in which a disconnected member calls hosts, how long it waits at each, and how soon it calls again.

All members use the same order, so that they meet: first a host that another member has named, then the standby
coordinators, then the last coordinator (it may have stepped down and be the only one left), then the coordinator's
Service. A member waits long in the candidate pool of the first standby coordinator that it reaches, because the others
come there too. In later pools it waits only for a moment. Then it begins a new turn, with a longer stay in the first
pool. So members that start at different times, or that reach different standby coordinators, soon are in one pool
together, even if a majority needs all of them. A standby coordinator does not call itself: its own vote counts in its
pool, wherever its member is connected. A coordinator's own member calls it last (core.py).
"""

from collections.abc import Sequence
from typing import Generic, TypeVar

from understudy_protocol.membership import StandbyCoordinator
from understudy_protocol.pauses import growing_pause_s
from understudy_sidecar.membership.events import SERVICE

#: Longer than all members need to detect a hung coordinator (a few missing heartbeats). Doubles in each turn: k members
#: are in the pool at the same time if each of them spends less than 1/k of the time elsewhere.
FIRST_WAIT_S = 10.0
MAX_WAIT_S = 40.0
NEXT_WAIT_S = 2.0
CALL_AGAIN_S = 0.25
#: Between two calls of the same addresses, while none answers.
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0
Address = TypeVar("Address")


class Calls:
    def __init__(self) -> None:
        self._answered = 0  # calls of this turn
        self._turns = 0  # that have ended
        self._order: tuple[str, ...] = ()  # all hosts, without the named one
        self._last: int | None = None  # index in that order of the newest host that has answered in this turn
        self._turn_ended = False  # the newest host has answered for a second time, so no host after it answers

    def reset(self) -> None:
        """Begin a new search."""
        self._answered, self._turns, self._order, self._last = 0, 0, (), None

    def on_answer(self, host: str) -> float:
        """Record that this host has answered the call; return the seconds to wait for its next message.

        A turn ends at the end of the order, even if the last hosts do not answer.
        """
        place = self._order.index(host) if host in self._order else None
        if place is not None and self._last is not None and place <= self._last:
            self._answered, self._turn_ended = 0, True
            self._turns += 1
        self._answered += 1
        self._last = self._last if place is None else place
        return growing_pause_s(FIRST_WAIT_S, MAX_WAIT_S, self._turns + 1) if self._answered == 1 else NEXT_WAIT_S

    def next(
        self, standbys: tuple[StandbyCoordinator, ...], own_ip: str, named: str = "", followed: str = ""
    ) -> tuple[tuple[str, ...], float]:
        """The hosts to call, in order, and the seconds to wait before. followed: the last coordinator's host.

        The list has all hosts. So a member whose last hosts do not answer calls the first hosts again.
        """
        last = None if self._last is None else self._order[self._last]
        known = [*(standby.ip for standby in standbys), *([followed] if followed else [])]
        self._order = tuple(dict.fromkeys([*(ip for ip in known if ip != own_ip), SERVICE]))
        self._last = self._order.index(last) if last in self._order else None
        first = 0 if self._last is None else self._last + 1
        is_new_turn = first == len(self._order) or self._turn_ended
        self._turn_ended = False
        hosts = [*self._order[first:], *self._order[:first]]
        if named:
            hosts = [named, *(host for host in hosts if host != named)]
        return tuple(hosts), CALL_AGAIN_S if is_new_turn else 0.0


class Dialing(Generic[Address]):
    """Each address in turn; after the last one a pause, 50 ms doubling to 1 s, and the first one again."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = addresses
        self._next = 0
        self._turns = 0  # that have ended

    def next(self) -> tuple[float, Address]:
        """The seconds to wait, and the address to call then."""
        wait_s = 0.0
        if self._next == len(self._addresses):
            wait_s, self._next = growing_pause_s(FIRST_PAUSE_S, LONGEST_PAUSE_S, self._turns + 1), 0
            self._turns += 1
        self._next += 1
        return wait_s, self._addresses[self._next - 1]

"""Whom a member calls that has no coordinator: in which order, how long it waits there, and how soon it calls again.

The order is the same for all members, so that they meet: first whom somebody has named, then the heirs, then the last
coordinator (it may have stepped down, and be the only one that is left), then whoever the coordinator's Service leads
to. In the hall of the first heir that it reaches a member waits long, because there the others come too; in those after
it only for a moment, and then it begins again, with a longer stay at the first heir in each turn. So members that
started at different times, or that reach different heirs, are in one hall together before long, even if all of them are
needed for a majority. An heir does not call itself: its own vote counts in its hall wherever its member looks.
"""

from understudy_protocol.membership import StandbyCoordinator
from understudy_sidecar.membership.events import SERVICE

#: Longer than it takes everybody to find out that a coordinator hangs (a few missing heartbeats). Doubles in each turn:
#: k members that all have to be there at one time surely are if each is elsewhere for less than 1/k of the time.
FIRST_WAIT_S = 10.0
MAX_WAIT_S = 40.0
NEXT_WAIT_S = 2.0
CALL_AGAIN_S = 0.25


class Calls:
    def __init__(self) -> None:
        self._answered = 0  # calls of this turn through the list
        self._first_wait_s = FIRST_WAIT_S  # of this turn
        self._order: tuple[str, ...] = ()  # all hosts, whomever somebody has named aside
        self._last: int | None = None  # the place in that order of the newest host that has answered in this turn
        self._turn_ended = False  # the newest call has answered for a second time: nobody after it does

    def reset(self) -> None:
        """A search begins."""
        self._answered, self._first_wait_s, self._order, self._last = 0, FIRST_WAIT_S, (), None

    def on_answer(self, host: str) -> float:
        """This one has answered the call; the seconds for which it may say nothing more.

        A turn ends at the end of the order, wherever that was: behind hosts that do not answer, too.
        """
        place = self._order.index(host) if host in self._order else None
        if place is not None and self._last is not None and place <= self._last:
            self._answered, self._first_wait_s = 0, min(2 * self._first_wait_s, MAX_WAIT_S)
            self._turn_ended = True
        self._answered += 1
        self._last = self._last if place is None else place
        return self._first_wait_s if self._answered == 1 else NEXT_WAIT_S

    def next(
        self, standbys: tuple[StandbyCoordinator, ...], own_ip: str, named: str = "", followed: str = ""
    ) -> tuple[tuple[str, ...], float]:
        """The hosts to call, in order, and how many seconds to wait before. followed: the last coordinator's.

        All hosts are in it, so that a member whose last hosts do not answer calls the first ones again.
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

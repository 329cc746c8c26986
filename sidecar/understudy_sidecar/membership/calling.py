"""Whom a member calls that has no coordinator: in which order, how long it waits there, and how soon it calls again.

The order is the same for all members, so that they meet: first whom somebody has named, then the heirs, then whoever
the coordinator's Service leads to. In the hall of the first heir that it reaches a member waits long, because there the
others come too; in those after it only for a moment, and then it begins again. So members that started at different
times, or that reach different heirs, still are in one hall together before long, and a majority elects. An heir does
not call itself: its own vote counts in its hall wherever its member looks.
"""

from understudy_protocol.membership import Heir
from understudy_sidecar.membership.events import SERVICE

#: Longer than it takes everybody to find out that a coordinator hangs (a few missing heartbeats).
LONG_S = 10.0
SHORT_S = 2.0
CALL_AGAIN_S = 0.25


class Calls:
    def __init__(self) -> None:
        self._answered = 0  # calls of this turn through the list
        self._turns = 0
        self._last = ""
        self._passed: list[str] = []  # hosts of this turn before the next one to call

    def fresh(self) -> None:
        """A search begins."""
        self._answered, self._turns, self._last = 0, 0, ""

    def called(self, host: str) -> float:
        """This one has answered the call; the seconds for which it may say nothing more."""
        if host in self._passed:  # nobody after them did
            self._begin_again()
        self._answered += 1
        self._last = host
        return LONG_S if self._answered == 1 else SHORT_S

    def next(self, heirs: tuple[Heir, ...], own_ip: str, named: str = "") -> tuple[tuple[str, ...], float]:
        """All hosts in the order in which to call them, and how many seconds to wait before."""
        hosts, passed = list(dict.fromkeys([*(heir.ip for heir in heirs if heir.ip != own_ip), SERVICE])), 0
        if self._answered and self._last in hosts:
            passed = hosts.index(self._last) + 1
        if passed == len(hosts):
            self._begin_again()
            passed = 0
        self._passed = [host for host in hosts[:passed] if host != named]
        hosts = hosts[passed:] + hosts[:passed]
        if named:
            hosts = [named, *(host for host in hosts if host != named)]
        return tuple(hosts), CALL_AGAIN_S if self._turns else 0.0

    def _begin_again(self) -> None:
        self._answered, self._last = 0, ""
        self._turns += 1

"""Whom a member calls that has no coordinator: in which order, and how soon again.

The order is the same for all members, so that they meet: first whom somebody has named, then the heirs, then whoever
the coordinator's Service leads to. One who was called and could not help is followed by the next of the list. Once
through the list, calls come CALL_AGAIN_S apart.
"""

from understudy_protocol.membership import Heir
from understudy_sidecar.membership.events import SERVICE

#: Who was called must have said something within this time: longer than callers wait in a hall.
ANSWER_S = 4.0
CALL_AGAIN_S = 0.25


class Calls:
    def __init__(self) -> None:
        self._tried = 0
        self._last = ""

    def fresh(self) -> None:
        """A search begins."""
        self._tried, self._last = 0, ""

    def called(self, host: str) -> None:
        """This one has answered the call."""
        self._tried += 1
        self._last = host

    def next(self, heirs: tuple[Heir, ...], named: str = "") -> tuple[tuple[str, ...], float]:
        """The hosts to call, in order, and how many seconds to wait before."""
        hosts = list(dict.fromkeys([*(heir.ip for heir in heirs), SERVICE]))
        if self._tried and self._last in hosts:
            after = hosts.index(self._last) + 1
            hosts = hosts[after:] + hosts[:after]
        if named:
            hosts = [named, *(host for host in hosts if host != named)]
        return tuple(hosts), CALL_AGAIN_S if self._tried > len(hosts) else 0.0

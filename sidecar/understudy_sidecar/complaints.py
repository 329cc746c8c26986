"""Warnings about callers, few enough to read: one a kind and address, however often it calls.

Rules: the first of a kind from an address is logged; what follows within QUIET_S is counted, and told with the first
one after that. At most LINES are logged within QUIET_S, whoever calls: a scanner with many addresses fills no log.
"""

import logging
from collections.abc import Callable

from understudy_sidecar.clock import now

QUIET_S = 60.0
LINES = 100


class Complaints:
    def __init__(self, log: logging.Logger, clock: Callable[[], float] = now) -> None:
        self._log = log
        self._clock = clock
        self._since = clock()
        self._untold: dict[tuple[str, str], int] = {}  # since the last line about it

    def about(self, peer: str, kind: str, text: str) -> None:
        """kind: what all complaints have in common that need only one line. text: that line."""
        self._start_anew_after_quiet()
        subject = (kind, peer)
        if subject in self._untold:
            self._untold[subject] += 1
        elif len(self._untold) < LINES:
            self._untold[subject] = 0
            self._log.warning("%s %s", peer, text)
        else:
            self._untold[_OTHERS] = self._untold.get(_OTHERS, 0) + 1

    def _start_anew_after_quiet(self) -> None:
        if self._clock() < self._since + QUIET_S:
            return
        for (kind, peer), count in self._untold.items():
            if count:
                self._log.warning("%s %d more times: %s", peer, count, kind)
        self._untold.clear()
        self._since = self._clock()


_OTHERS = ("various reasons", "others")

"""Rate-limited warnings about callers: one for each kind and address, however often it calls.

Rules: the first of a kind from an address is logged; repetitions within QUIET_S are counted, and reported after that.
At most LINES are logged within QUIET_S in total: a scanner with many addresses does not fill the log.
"""

import logging
from collections.abc import Callable

from understudy_sidecar.clock import now

QUIET_S = 60.0
LINES = 100


class RejectionLog:
    def __init__(self, log: logging.Logger, clock: Callable[[], float] = now) -> None:
        self._log = log
        self._clock = clock
        self._since = clock()
        self._suppressed: dict[tuple[str, str], int] = {}  # since the last line about it

    def log(self, peer: str, kind: str, text: str) -> None:
        """kind: warnings of one kind are logged as one line. text: that line."""
        self._reset_after_quiet()
        subject = (kind, peer)
        if subject in self._suppressed:
            self._suppressed[subject] += 1
        elif len(self._suppressed) < LINES:
            self._suppressed[subject] = 0
            self._log.warning("%s %s", peer, text)
        else:
            self._suppressed[_OTHERS] = self._suppressed.get(_OTHERS, 0) + 1

    def _reset_after_quiet(self) -> None:
        if self._clock() < self._since + QUIET_S:
            return
        for (kind, peer), count in self._suppressed.items():
            if count:
                self._log.warning("%s %d more times: %s", peer, count, kind)
        self._suppressed.clear()
        self._since = self._clock()


_OTHERS = ("various reasons", "others")

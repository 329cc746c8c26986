"""Log lines about malformed objects. Tenants decide how many there are, and how often each changes.

Rules: at most NAMESPACE_LINES about the objects of a namespace in each WINDOW_S. The first line after the window has
the number of omitted lines. Events and a metric cover all malformed objects.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable

WINDOW_S = 60.0
NAMESPACE_LINES = 20
log = logging.getLogger(__name__)


class MalformedLog:
    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._since = now, now()
        self._count = Counter[str]()  # within the window, by namespace

    def warn(self, namespace: str, text: str) -> None:
        if self._now() >= self._since + WINDOW_S:
            self._start_window()
        self._count[namespace] += 1
        if self._count[namespace] <= NAMESPACE_LINES:
            log.warning("%s", text)

    def _start_window(self) -> None:
        for namespace, count in self._count.items():
            if count > NAMESPACE_LINES:
                log.warning(
                    "namespace %s: %d more states of malformed objects are not logged",
                    namespace,
                    count - NAMESPACE_LINES,
                )
        self._count.clear()
        self._since = self._now()

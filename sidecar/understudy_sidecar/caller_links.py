"""The links of callers that have proved the key, for the core: it refers to them by number.

Rules: effects are carried out in order, and all of them before the next event is read: the answers of the first members
do not delay the messages to the last ones. With ten thousand members this takes about a quarter of a second. A message
to many links is encoded once.
"""

import logging
import time
from collections import deque
from collections.abc import Callable

from understudy_protocol import compiled
from understudy_protocol.observer import Snapshot
from understudy_sidecar.link import Link
from understudy_sidecar.machine_watch import MachineWatch
from understudy_sidecar.membership.core import FromObserver, ObserverDown, ObserverUp
from understudy_sidecar.membership.events import (
    Broadcast,
    Dropped,
    Hangup,
    Received,
    Send,
    Unreachable,
    WatchMachines,
)

Event = Received | Dropped | Unreachable | ObserverUp | ObserverDown | FromObserver
Effect = Send | Broadcast | Hangup | WatchMachines
log = logging.getLogger(__name__)


class CallerLinks:
    """on_event gets the events of the links. on_snapshot gets the CPU time of a snapshot in seconds.

    CPU time, because on a busy node the process is often not scheduled, which would delay the next snapshot too long.
    """

    def __init__(self, on_event: Callable[[Event], None], on_snapshot: Callable[[float], None]) -> None:
        self._on_event, self._on_snapshot = on_event, on_snapshot
        self._links: dict[int, Link] = {}
        self._pending: deque[Effect] = deque()
        self._is_flushing = False
        self._watch = MachineWatch(lambda links: on_event(Unreachable(links)))

    # From the server --------------------------------------------------------------------------------------------------

    def add(self, link: Link) -> None:
        self._links[link.number] = link

    def on_message(self, link: Link, message: object) -> None:
        self._on_event(Received(link.number, message))

    def on_dropped(self, link: Link, silent: bool) -> None:
        self._links.pop(link.number, None)
        self._on_event(Dropped(link.number, silent))

    def add_observer(self, link: Link) -> None:
        self._links[link.number] = link
        self._on_event(ObserverUp(link.number))

    def on_observer_message(self, link: Link, message: object) -> None:
        self._on_event(FromObserver(link.number, message))

    def on_observer_dropped(self, link: Link) -> None:
        self._links.pop(link.number, None)
        self._on_event(ObserverDown(link.number))

    # From the core ----------------------------------------------------------------------------------------------------

    def enqueue(self, effect: Effect) -> None:
        """Carry out at the next flush."""
        self._pending.append(effect)

    def flush(self) -> None:
        """Carry out the pending effects. An effect may lead to an event, and so to more effects: they come last."""
        if self._is_flushing:
            return
        self._is_flushing = True
        try:
            while self._pending:
                self._do(self._pending.popleft())
        finally:
            self._is_flushing = False

    def _do(self, effect: Effect) -> None:
        match effect:
            case Send(number, message):
                self._send((number,), message)
            case Broadcast(numbers, Snapshot() as snapshot):
                begun = time.thread_time()
                self._send(numbers, snapshot)
                self._on_snapshot(time.thread_time() - begun)
            case Broadcast(numbers, message):
                self._send(numbers, message)
            case WatchMachines(numbers, for_s):
                self._watch.begin({number: self._links[number] for number in numbers if number in self._links}, for_s)
            case Hangup(number, reason):
                log.debug("closes connection %d: %s", number, reason)
                if number in self._links:
                    self._links[number].hangup()

    def _send(self, numbers: tuple[int, ...], message: object) -> None:
        encoded = compiled.encode(message)
        for number in numbers:
            if number in self._links:
                self._links[number].send_encoded(encoded)

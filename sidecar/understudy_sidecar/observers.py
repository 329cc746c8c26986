"""Who watches (the operator, usually), and what it is told: whole Snapshots of who is in office, or where to ask.

Rules: at most five a second, and at 10,000 members, where one takes a tenth of a second, so few that they take at most
SHARE of the time. If only the progress has changed, only that is sent. A message of an observer is answered with the
next one, whether or not there is news. The end is sent at once: a moment later this process may be gone.
"""

import asyncio
import time
from collections.abc import Callable

from understudy_protocol import compiled
from understudy_protocol.observer import Refused, Stepping, StepProgress
from understudy_sidecar.link import Link
from understudy_sidecar.membership.coordinator import Coordinator
from understudy_sidecar.membership.heir import Known

EVERY_S = 0.2
SHARE = 0.05


class Observers:
    def __init__(self, coordinator: Callable[[], Coordinator | None], known: Callable[[], Known]) -> None:
        self._coordinator, self._known = coordinator, known
        self._links: dict[int, Link] = {}
        self._owed: set[int] = set()  # numbers of links whose message has no answer yet
        self._due: asyncio.TimerHandle | None = None
        self._not_before = 0.0
        self._told_version = -1
        self._told_progress: StepProgress | None = None
        self._told_refusal: Refused | None = None
        self._told_end = False

    def __len__(self) -> int:
        return len(self._links)

    def add(self, link: Link) -> None:
        self._links[link.number] = link

    def remove(self, link: Link) -> None:
        self._links.pop(link.number, None)
        self._owed.discard(link.number)

    def answer(self, link: Link) -> None:
        """Answer this observer's message, whether or not there is news, within the same limits as all others."""
        self._owed.add(link.number)
        self._schedule()

    def changed(self) -> None:
        """Something may have changed: look when the next telling is due."""
        if self._links and not self._told_end and self._ended():
            self._told_end = True
            if self._due is not None:
                self._due.cancel()
            self._tell()
        elif self._links and self._news():
            self._schedule()

    def _schedule(self) -> None:
        if self._due is None:
            delay = max(0.0, self._not_before - time.monotonic())
            self._due = asyncio.get_running_loop().call_later(delay, self._tell)

    def _ended(self) -> bool:
        coordinator = self._coordinator()
        return coordinator is not None and coordinator.desk.closed is not None

    def _news(self) -> bool:
        coordinator = self._coordinator()
        if coordinator is None:
            return self._refusal() != self._told_refusal
        desk = coordinator.desk
        return desk.version != self._told_version or desk.progress != self._told_progress

    def _tell(self) -> None:
        self._due = None
        begun = time.monotonic()
        message = self._message() if self._news() else None
        if message is not None:
            self._send(message, tuple(self._links.values()))
        if message is None or isinstance(message, Stepping):  # an observer that asks may know nothing yet
            coordinator = self._coordinator()
            owed = tuple(link for number, link in self._links.items() if number in self._owed)
            if owed:
                self._send(self._refusal() if coordinator is None else coordinator.snapshot(), owed)
        self._owed.clear()
        took = time.monotonic() - begun
        self._not_before = begun + max(EVERY_S, took / SHARE)

    @staticmethod
    def _send(message: object, links: tuple[Link, ...]) -> None:
        encoded = compiled.encode(message)
        for link in links:
            link.send_encoded(encoded)

    def _message(self) -> object:
        coordinator = self._coordinator()
        if coordinator is None:
            self._told_version = -1
            self._told_refusal = self._refusal()
            return self._told_refusal
        desk = coordinator.desk
        self._told_refusal = None
        self._told_progress = desk.progress
        if desk.version == self._told_version and desk.progress is not None:
            return Stepping(desk.progress)
        self._told_version = desk.version
        return coordinator.snapshot()

    def _refusal(self) -> Refused:
        known = self._known()
        holder, epoch = known.coordinator, known.vow.electorate.epoch
        if holder is None:
            return Refused("this sidecar is not in office, and knows nobody who is", electorate_epoch=epoch)
        return Refused("this sidecar is not in office", holder.pod_uid, holder.ip, epoch)

"""Which observers (the operator, usually) are sent what, and when: Snapshots of the coordinator, or where to ask. Pure.

Rules: at most five a second, and at 10,000 members, where one takes a tenth of a second, so few that they take at most
SHARE of the time. If only the progress has changed, only that is sent. A message of an observer is answered with the
next one, whether or not there is news. The end is sent at once: a moment later this process may be gone.
"""

from collections.abc import Callable

from understudy_protocol.observer import Refused, Stepping, StepProgress
from understudy_sidecar.membership.coordinator import Coordinator
from understudy_sidecar.membership.events import Broadcast
from understudy_sidecar.membership.heir import Known

EVERY_S = 0.2
SHARE = 0.05


class Observation:
    """coordinator: of this sidecar, if it has the office. known: what its member knows."""

    def __init__(self, coordinator: Callable[[], Coordinator | None], known: Callable[[], Known]) -> None:
        self._coordinator, self._known = coordinator, known
        self._links: set[int] = set()
        self._owed: set[int] = set()  # links whose message has no answer yet
        self._not_before = 0.0
        self._sent_version = -1
        self._sent_progress: StepProgress | None = None
        self._sent_refusal: Refused | None = None
        self._sent_end = False

    def __len__(self) -> int:
        return len(self._links)

    def add(self, link: int) -> None:
        self._links.add(link)

    def remove(self, link: int) -> None:
        self._links.discard(link)
        self._owed.discard(link)

    def answer(self, link: int) -> None:
        """This observer has sent a message: it is answered whether or not there is news."""
        if link in self._links:
            self._owed.add(link)

    def took(self, seconds: float, now: float) -> None:
        """A snapshot took so much CPU time to be encoded and written: the next one waits in proportion."""
        self._not_before = max(self._not_before, now - seconds + seconds / SHARE)

    def deadline(self) -> float | None:
        """When there is something to send, None while there is nothing."""
        return self._not_before if self._owed or (self._links and self._has_news()) else None

    def due(self, now: float) -> list[Broadcast]:
        """What is to be sent now."""
        ends = bool(self._links) and not self._sent_end and self._has_ended()
        if not ends and (now < self._not_before or self.deadline() is None):
            return []
        self._sent_end = self._sent_end or ends
        self._not_before = now + EVERY_S
        message = self._message() if ends or self._has_news() else None
        sent = [] if message is None else [Broadcast(tuple(sorted(self._links)), message)]
        if self._owed and (message is None or isinstance(message, Stepping)):  # it may know nothing yet
            sent.append(Broadcast(tuple(sorted(self._owed)), self._whole()))
        self._owed.clear()
        return sent

    def _has_ended(self) -> bool:
        coordinator = self._coordinator()
        return coordinator is not None and coordinator.desk.closed is not None

    def _has_news(self) -> bool:
        coordinator = self._coordinator()
        if coordinator is None:
            return self._refusal() != self._sent_refusal
        desk = coordinator.desk
        return desk.version != self._sent_version or desk.progress != self._sent_progress

    def _message(self) -> object:
        coordinator = self._coordinator()
        if coordinator is None:
            self._sent_version = -1
            self._sent_refusal = self._refusal()
            return self._sent_refusal
        desk = coordinator.desk
        self._sent_refusal = None
        self._sent_progress = desk.progress
        if desk.version == self._sent_version and desk.progress is not None:
            return Stepping(desk.progress)
        self._sent_version = desk.version
        return coordinator.snapshot()

    def _whole(self) -> object:
        coordinator = self._coordinator()
        return self._refusal() if coordinator is None else coordinator.snapshot()

    def _refusal(self) -> Refused:
        known = self._known()
        holder, epoch, why = known.coordinator, known.vow.electorate.epoch, known.replaced
        if holder is None:
            reason = "this sidecar is not the coordinator, and knows no coordinator"
            return Refused(reason, electorate_epoch=epoch, replaced=why)
        return Refused("this sidecar is not the coordinator", holder.pod_uid, holder.ip, epoch, why)

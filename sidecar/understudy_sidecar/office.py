"""The coordinator's office: runs the coordinator's machine over links, and tells observers.

Holds no decision: an event goes in, effects come out and are done. Without an appointment there is no office, and
members that call are turned away (they ask again soon). One epoch has one coordinator: a sidecar that was restarted
refuses the epoch that its former life held, and the operator appoints anew.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from understudy_protocol.observer import Appoint, Snapshot
from understudy_protocol.pod import JobShape
from understudy_sidecar import records
from understudy_sidecar.alarm import Alarm
from understudy_sidecar.clock import now
from understudy_sidecar.link import Link
from understudy_sidecar.membership.coordinator import Coordinator
from understudy_sidecar.membership.events import (
    Adjourn,
    CoordinatorEffect,
    CoordinatorEvent,
    Dropped,
    Hangup,
    Received,
    Resign,
    Say,
    Send,
    Tick,
    Watched,
)

SNAPSHOT_EVERY_S = 0.2
log = logging.getLogger(__name__)


class Office:
    def __init__(self, shape: JobShape, pod_uid: str, folder: Path, on_taken: Callable[[], None]) -> None:
        self.adjourned = asyncio.Event()
        self.coordinator: Coordinator | None = None
        self._shape, self._pod_uid, self._folder, self._on_taken = shape, pod_uid, folder, on_taken
        self._links: dict[int, Link] = {}
        self._observers = 0
        self._alarm = Alarm(lambda: self.handle(Tick()))
        self._changed = asyncio.Event()

    def appoint(self, appoint: Appoint) -> None:
        """Take office in a new epoch; one that is not newer than any that this pod has held changes nothing."""
        if appoint.epoch <= records.recorded_epoch(self._folder):
            return
        records.record_epoch(self._folder, appoint.epoch)
        log.info("takes office in epoch %d, rounds above %d", appoint.epoch, appoint.at_least_round)
        for link in self._links.values():
            link.hangup()
        self.coordinator = Coordinator(
            self._shape,
            self._pod_uid,
            appoint.epoch,
            appoint.at_least_round,
            now(),
            counts=appoint.recoveries_by_strategy,
        )
        self.handle(Watched(self._observers))
        self._changed.set()
        self._on_taken()

    def _resign(self, reason: str) -> None:
        """Nobody coordinates here any more; members, ours too, look for who does."""
        log.warning("leaves office: %s", reason)
        self.coordinator = None
        self._alarm.set(None)
        for link in self._links.values():
            link.hangup()

    def add(self, link: Link) -> None:
        self._links[link.number] = link

    def observed(self, change: int) -> None:
        """An observer came (1) or went (-1)."""
        self._observers += change
        self.handle(Watched(self._observers))

    def received(self, link: Link, message: object) -> None:
        self.handle(Received(link.number, message))

    def dropped(self, link: Link, silent: bool) -> None:
        self._links.pop(link.number, None)
        self.handle(Dropped(link.number, silent))

    def handle(self, event: CoordinatorEvent) -> None:
        coordinator = self.coordinator
        if coordinator is None:
            return
        version = coordinator.version
        for effect in coordinator.handle(event, now()):
            self._do(effect)
        if self.coordinator is coordinator:
            self._alarm.set(coordinator.deadline())
        if coordinator.version != version:
            self._changed.set()

    def _do(self, effect: CoordinatorEffect) -> None:
        match effect:
            case Send(number, message):
                if number in self._links:
                    self._links[number].send(message)
            case Hangup(number, reason):
                log.info("hangs up link %d: %s", number, reason)
                if number in self._links:
                    self._links[number].hangup()
            case Say(text):
                log.info("coordinator: %s", text)
            case Adjourn():
                self.adjourned.set()
            case Resign(reason):
                self._resign(reason)

    def snapshot(self) -> Snapshot | None:
        return None if self.coordinator is None else self.coordinator.snapshot()

    async def changes(self, seen: int) -> int:
        """Wait until the coordinator's version differs from `seen`, but at most five times a second; the new one."""
        await asyncio.sleep(SNAPSHOT_EVERY_S if seen >= 0 else 0)
        while self.coordinator is None or self.coordinator.version == seen:
            self._changed.clear()
            await self._changed.wait()
        return self.coordinator.version

"""The office of a sidecar: runs the coordinator's machine while it is held, the heir's while it is not.

Holds no decision: an event goes in, effects come out and are done. Callers that proved the key come from the server;
whether they find a coordinator here or are told where to go is the machines' to say. One epoch and term has one
coordinator: what this sidecar has granted, followed or held is in its vow, which is stored before it is relied on.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path

from understudy_protocol import compiled
from understudy_protocol import membership as m
from understudy_protocol.observer import Appoint, End, Nodes, Observe, Superseded
from understudy_protocol.pod import JobShape
from understudy_protocol.words import Office as OfficeToken
from understudy_sidecar import records
from understudy_sidecar.alarm import Alarm
from understudy_sidecar.clock import now
from understudy_sidecar.link import Link
from understudy_sidecar.membership.coordinator import Coordinator
from understudy_sidecar.membership.events import (
    Adjourn,
    Broadcast,
    Called,
    CoordinatorEffect,
    CoordinatorEvent,
    Dropped,
    Hangup,
    HeirEffect,
    HeirEvent,
    Received,
    RecordVow,
    Resign,
    Say,
    Send,
    TakeOffice,
    Tick,
    Told,
    Watched,
)
from understudy_sidecar.membership.heir import HeirMachine, Known
from understudy_sidecar.membership.identity import Identity
from understudy_sidecar.membership.voter import Voter
from understudy_sidecar.metrics import CoordinatorMetrics
from understudy_sidecar.observers import Observers

#: So many effects are done in one turn of the loop.
SLICE = 500
log = logging.getLogger(__name__)


class Office:
    """known: what the pod's member knows now. on_office, on_ended: what has happened here that concerns it."""

    def __init__(
        self,
        shape: JobShape,
        identity: Identity,
        voter: Voter,
        folder: Path,
        known: Callable[[], Known],
        on_office: Callable[[], None],
        on_ended: Callable[[m.Close], None],
    ) -> None:
        self.adjourned = asyncio.Event()
        self.coordinator: Coordinator | None = None
        self._shape, self._identity, self._voter, self._folder = shape, identity, voter, folder
        self._known, self._on_office, self._on_ended = known, on_office, on_ended
        self._heir = HeirMachine(identity.pod_uid, voter, known())
        self._links: dict[int, Link] = {}
        self._left: deque[CoordinatorEffect] = deque()  # to be done in the next turns of the loop, in this order
        self._alarm = Alarm(self._tick)
        self.observers = Observers(lambda: self.coordinator, known)
        self._metrics = CoordinatorMetrics()

    def metrics(self) -> bytes:
        """For Prometheus."""
        return self._metrics.text(self.coordinator)

    # From the server ------------------------------------------------------------------------------------------------

    def add(self, link: Link) -> None:
        self._links[link.number] = link

    def received(self, link: Link, message: object) -> None:
        if self.coordinator is None and isinstance(message, m.Join):
            self._ask_heir(Called(link.number, message))
        else:
            self._handle(Received(link.number, message))

    def dropped(self, link: Link, silent: bool) -> None:
        self._links.pop(link.number, None)
        self._handle(Dropped(link.number, silent))

    def observer(self, link: Link) -> None:
        self.observers.add(link)
        self._tell(Watched(len(self.observers)))

    def asked(self, link: Link, message: object) -> None:
        match message:
            case Appoint():
                self._appoint(message)
            case Nodes() | Superseded():
                self._tell(Told(message))
            case End(reason, text) if self.coordinator is None:
                self._on_ended(m.Close(reason, text))
            case End():
                self._tell(Told(message))
            case Observe() | _:
                pass
        self.observers.answer(link)

    def observer_gone(self, link: Link) -> None:
        self.observers.remove(link)
        self._tell(Watched(len(self.observers)))

    # From the pod's member ------------------------------------------------------------------------------------------

    def member_changed(self) -> None:
        """What its member knows may be news for those who wait here."""
        if self.coordinator is None:
            self._ask_heir(Tick())
            self.observers.changed()

    # Taking and leaving ---------------------------------------------------------------------------------------------

    def _appoint(self, appoint: Appoint) -> None:
        """By the operator; an epoch that this sidecar has heard of before changes nothing."""
        office = OfficeToken(appoint.epoch, 1)
        if not self._voter.hold(office):
            return
        records.record_vow(self._folder, self._voter.vow)
        log.info("appointed to office %s, rounds above %d", office, appoint.at_least_round)
        if self.coordinator is not None:
            self._act(self.coordinator, self.coordinator.appoint(appoint, now()))
            return
        self._hang_up_all()
        me = self._identity
        self.coordinator = Coordinator.appointed(self._shape, me.pod_uid, me.ip, appoint, now())
        self._tell(Watched(len(self.observers)))
        self._on_office()

    def _take(self, effect: TakeOffice) -> None:
        """By election: who waits in the hall is welcomed."""
        assert effect.estate is not None, "an heir stands with an electorate"
        callers = self._heir.callers
        if self._voter.follow(effect.office):
            records.record_vow(self._folder, self._voter.vow)
        me = self._identity
        self.coordinator = Coordinator.elected(self._shape, me.pod_uid, me.ip, effect.office, effect.estate, now())
        self._tell(Watched(len(self.observers)))
        for number, join in callers.items():
            self._tell(Received(number, join))
        self._on_office()

    def _resign(self, reason: str) -> None:
        """Nobody coordinates here any more; members, ours too, look for who does."""
        log.warning("leaves office: %s", reason)
        self.coordinator = None
        self._heir = HeirMachine(self._identity.pod_uid, self._voter, self._known())
        self._alarm.set(None)
        self._hang_up_all()
        self.observers.changed()

    def _hang_up_all(self) -> None:
        for link in self._links.values():
            link.hangup()

    # The machines ---------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._handle(Tick())

    def _handle(self, event: Received | Dropped | Tick) -> None:
        if self.coordinator is None:
            self._ask_heir(event)
        else:
            self._tell(event)

    def _ask_heir(self, event: HeirEvent) -> None:
        heir = self._heir
        for effect in heir.handle(event, self._known(), now()):
            self._do(effect)
        if self.coordinator is None:
            self._alarm.set(heir.deadline())

    def _tell(self, event: CoordinatorEvent) -> None:
        if self.coordinator is not None:
            self._act(self.coordinator, self.coordinator.handle(event, now()))

    def _act(self, coordinator: Coordinator, effects: list[CoordinatorEffect]) -> None:
        if self._left or len(effects) > SLICE:
            self._left.extend(effects)
            if len(self._left) == len(effects):
                self._go_on()
        else:
            for effect in effects:
                self._do(effect)
        if self.coordinator is coordinator:
            self._metrics.look(coordinator, now())
            self._alarm.set(coordinator.deadline())
            self.observers.changed()

    def _go_on(self) -> None:
        """What was sent goes out before the next slice is encoded, so that the first need not wait for the last."""
        for _ in range(min(SLICE, len(self._left))):
            self._do(self._left.popleft())
        if self._left:
            asyncio.get_running_loop().call_soon(self._go_on)

    def _do(self, effect: CoordinatorEffect | HeirEffect) -> None:
        match effect:
            case Send(number, message):
                self._broadcast((number,), compiled.encode(message))
            case Broadcast(numbers, message):
                self._broadcast(numbers, compiled.encode(message))
            case Hangup(number, reason):
                self._hang_up(number, reason)
            case Say(text):
                log.info("%s: %s", "heir" if self.coordinator is None else "coordinator", text)
            case RecordVow(vow):
                records.record_vow(self._folder, vow)
            case TakeOffice():
                self._take(effect)
            case Adjourn():
                self.adjourned.set()
            case Resign(reason):
                self._resign(reason)

    def _broadcast(self, numbers: tuple[int, ...], message: bytes) -> None:
        for number in numbers:
            if number in self._links:
                self._links[number].send_encoded(message)

    def _hang_up(self, number: int, reason: str) -> None:
        log.debug("hangs up link %d: %s", number, reason)
        if number in self._links:
            self._links[number].hangup()

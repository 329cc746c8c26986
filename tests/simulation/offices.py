"""office.py and server.py of the sidecar in simulated time: the real coordinator over links, and its observers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.simulation.network import End
from tests.simulation.process import Alarm
from understudy_protocol.membership import Assign
from understudy_protocol.observer import Appoint, Refused
from understudy_sidecar.membership import events as e
from understudy_sidecar.membership.coordinator import Coordinator

if TYPE_CHECKING:
    from tests.simulation.sidecars import Sidecar

SNAPSHOT_EVERY_S = 0.2


class Office:
    def __init__(self, sidecar: Sidecar) -> None:
        self.coordinator: Coordinator | None = None
        self.adjourned = False
        self._sidecar, self._world, self._pod = sidecar, sidecar.world, sidecar.pod
        self._links: dict[int, End] = {}
        self._observers: list[End] = []
        self._told_at, self._tell_due = -1.0, False
        self._alarm = Alarm(sidecar, self._deadline, lambda: self._handle(e.Tick()))

    def close(self) -> None:
        for end in (*self._links.values(), *self._observers):
            end.close()

    def serve(self, end: End) -> None:
        """A member's link counts from its first message on (its proof comes just before)."""
        number = self._pod.cluster.link_number()

        def received(message: object) -> None:
            self._links.setdefault(number, end)
            self._handle(e.Received(number, message))

        def ended(silent: bool) -> None:
            if self._links.pop(number, None) is not None:
                self._handle(e.Dropped(number, silent))

        self._sidecar.listen(end, received, ended)

    def observe(self, end: End) -> None:
        """The operator calls."""

        def ended(silent: bool) -> None:
            self._observers.remove(end)
            self._handle(e.Watched(len(self._observers)))

        def called() -> None:
            self._observers.append(end)
            self._handle(e.Watched(len(self._observers)))

        self._sidecar.listen(end, lambda message: self._asked(end, message), ended)
        self._sidecar.post(called)

    def _asked(self, end: End, message: Any) -> None:
        if isinstance(message, Appoint):
            self._appoint(message)
        if self.coordinator is None:
            end.send(Refused("this sidecar is not in office"))
        else:
            self._changed()

    def _appoint(self, appoint: Appoint) -> None:
        if appoint.epoch <= self._pod.held_epoch:  # a file in the emptyDir: it outlives this process
            return
        self._pod.held_epoch = appoint.epoch
        self._hang_up_all()
        self._world.say(self._pod.name, f"takes office in epoch {appoint.epoch}, rounds above {appoint.at_least_round}")
        self.coordinator = Coordinator(
            self._pod.cluster.shape,
            self._pod.uid,
            appoint.epoch,
            appoint.at_least_round,
            self._world.now,
            counts=appoint.recoveries_by_strategy,
        )
        self._pod.cluster.took_office(self._sidecar)
        self._handle(e.Watched(len(self._observers)))
        self._sidecar.taken_office()

    def _deadline(self) -> float | None:
        return None if self.coordinator is None else self.coordinator.deadline()

    def _handle(self, event: e.CoordinatorEvent) -> None:
        coordinator = self.coordinator
        if coordinator is None:
            return
        version = coordinator.version
        for effect in coordinator.handle(event, self._world.now):
            self._do(effect, coordinator)
        self._alarm.set()
        if coordinator.version != version:
            self._changed()
        self._sidecar.end_if_over()

    def _do(self, effect: e.CoordinatorEffect, coordinator: Coordinator) -> None:
        match effect:
            case e.Send(number, message):
                if isinstance(message, Assign):
                    self._pod.cluster.assigned(coordinator, message)
                if number in self._links:
                    self._links[number].send(message)
            case e.Hangup(number, reason):
                self._world.say(self._pod.name, f"hangs up link {number}: {reason}")
                self._hang_up(number)
            case e.Say(text):
                self._world.say(self._pod.name, f"coordinator: {text}")
            case e.Adjourn():
                self.adjourned = True
            case e.Resign(reason):
                self._world.say(self._pod.name, f"leaves office: {reason}")
                self.coordinator = None
                self._hang_up_all()

    def _hang_up_all(self) -> None:
        for number in list(self._links):
            self._hang_up(number)

    def _hang_up(self, number: int) -> None:
        """What is in the outbox is written first; what comes in meanwhile is still read."""

        def closed() -> None:
            if (end := self._links.pop(number, None)) is not None:
                end.close()
                self._handle(e.Dropped(number, False))

        self._sidecar.later(self._world.between(0.0, 0.01), closed)

    def _changed(self) -> None:
        """At most five snapshots a second."""
        if not self._tell_due and self._observers:
            self._tell_due = True
            delay = max(0.0, self._told_at + SNAPSHOT_EVERY_S - self._world.now)
            self._sidecar.later(delay, self._tell)

    def _tell(self) -> None:
        self._tell_due, self._told_at = False, self._world.now
        if self.coordinator is not None:
            for end in self._observers:
                end.send(self.coordinator.snapshot())

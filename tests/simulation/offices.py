"""office.py and observers.py of the sidecar in simulated time: the real coordinator and heir over links."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.simulation.network import End
from tests.simulation.process import Alarm
from understudy_protocol import membership as m
from understudy_protocol.observer import Appoint, Nodes, Refused, Superseded
from understudy_protocol.observer import End as EndJob
from understudy_protocol.words import Office as OfficeToken
from understudy_sidecar.membership import events as e
from understudy_sidecar.membership.coordinator import Coordinator
from understudy_sidecar.membership.heir import HeirMachine

if TYPE_CHECKING:
    from tests.simulation.sidecars import Sidecar

SNAPSHOT_EVERY_S = 0.2


class Office:
    def __init__(self, sidecar: Sidecar) -> None:
        self.coordinator: Coordinator | None = None
        self.adjourned = False
        self._sidecar, self._world, self._pod = sidecar, sidecar.world, sidecar.pod
        self._heir = HeirMachine(self._pod.uid, sidecar.voter, sidecar.look())
        self._links: dict[int, End] = {}
        self._observers: list[End] = []
        self._told_at, self._tell_due = -1.0, False
        self._told_refusal: Refused | None = None
        self._alarm = Alarm(sidecar, self._deadline, lambda: self._handle(e.Tick()))

    def close(self) -> None:
        for end in (*self._links.values(), *self._observers):
            end.close()

    def serve(self, end: End) -> None:
        """A member's link counts from its first message on (its proof comes just before)."""
        number = self._pod.cluster.link_number()

        def received(message: object) -> None:
            self._links.setdefault(number, end)
            if self.coordinator is None and isinstance(message, m.Join):
                self._ask_heir(e.Called(number, message))
            else:
                self._handle(e.Received(number, message))

        def ended(silent: bool) -> None:
            if self._links.pop(number, None) is not None:
                self._handle(e.Dropped(number, silent))

        self._sidecar.listen(end, received, ended)

    def observe(self, end: End) -> None:
        """The operator calls."""

        def ended(silent: bool) -> None:
            self._observers.remove(end)
            self._tell_machine(e.Watched(len(self._observers)))

        def called() -> None:
            self._observers.append(end)
            self._tell_machine(e.Watched(len(self._observers)))

        self._sidecar.listen(end, lambda message: self._asked(end, message), ended)
        self._sidecar.post(called)

    def member_changed(self) -> None:
        if self.coordinator is None:
            self._ask_heir(e.Tick())
            self._changed()

    # Taking and leaving ---------------------------------------------------------------------------------------------

    def _asked(self, end: End, message: Any) -> None:
        match message:
            case Appoint():
                self._appoint(message)
            case EndJob(reason, text) if self.coordinator is None:
                self._sidecar.handle(e.Ended(m.Close(reason, text)))
            case Nodes() | EndJob() | Superseded():
                self._tell_machine(e.Told(message))
        if self.coordinator is None:
            end.send(self._refusal())
        else:
            end.send(self.coordinator.snapshot())

    def _appoint(self, appoint: Appoint) -> None:
        office = OfficeToken(appoint.epoch, 1)
        if not self._sidecar.voter.hold(office):
            return
        self._pod.vow = self._sidecar.voter.vow
        if self.coordinator is not None:
            self._act(self.coordinator, self.coordinator.appoint(appoint, self._sidecar.now()))
            self._changed()
            return
        self._hang_up_all()
        self._world.say(self._pod.name, f"is appointed to office {office}, rounds above {appoint.at_least_round}")
        pod, now = self._pod, self._sidecar.now()
        self.coordinator = Coordinator.appointed(pod.cluster.shape, pod.uid, pod.ip, appoint, now)
        self._pod.cluster.took_office(self._sidecar)
        self._tell_machine(e.Watched(len(self._observers)))
        self._sidecar.handle(e.InOffice())

    def _take(self, effect: e.TakeOffice) -> None:
        assert effect.estate is not None
        callers = self._heir.callers
        if self._sidecar.voter.follow(effect.office):
            self._pod.vow = self._sidecar.voter.vow
        self.coordinator = Coordinator.elected(
            self._pod.cluster.shape, self._pod.uid, self._pod.ip, effect.office, effect.estate, self._sidecar.now()
        )
        self._pod.cluster.took_office(self._sidecar)
        self._tell_machine(e.Watched(len(self._observers)))
        for number, join in callers.items():
            self._tell_machine(e.Received(number, join))
        self._sidecar.handle(e.InOffice())

    def _resign(self, reason: str) -> None:
        self._world.say(self._pod.name, f"leaves office: {reason}")
        self.coordinator = None
        self._heir = HeirMachine(self._pod.uid, self._sidecar.voter, self._sidecar.look())
        self._hang_up_all()
        self._changed()

    # The machines ---------------------------------------------------------------------------------------------------

    def _deadline(self) -> float | None:
        return self._heir.deadline() if self.coordinator is None else self.coordinator.deadline()

    def _handle(self, event: e.Received | e.Dropped | e.Tick) -> None:
        if self.coordinator is None:
            self._ask_heir(event)
        else:
            self._tell_machine(event)

    def _ask_heir(self, event: e.HeirEvent) -> None:
        for effect in self._heir.handle(event, self._sidecar.look(), self._sidecar.now()):
            self._do(effect)
        self._alarm.set()

    def _tell_machine(self, event: e.CoordinatorEvent) -> None:
        coordinator = self.coordinator
        if coordinator is None:
            return
        version = coordinator.desk.version
        self._act(coordinator, coordinator.handle(event, self._sidecar.now()))
        if coordinator.desk.version != version:
            self._changed()
        self._sidecar.end_if_over()

    def _act(self, coordinator: Coordinator, effects: list[e.CoordinatorEffect]) -> None:
        for effect in effects:
            self._do(effect)
        self._alarm.set()

    def _do(self, effect: e.CoordinatorEffect | e.HeirEffect) -> None:
        match effect:
            case e.Send(number, message):
                self._send(number, message)
            case e.Broadcast(numbers, message):
                for number in numbers:
                    self._send(number, message)
            case e.Hangup(number, reason):
                self._world.say(self._pod.name, f"hangs up link {number}: {reason}")
                self._hang_up(number)
            case e.Say(text):
                self._world.say(self._pod.name, f"{'heir' if self.coordinator is None else 'coordinator'}: {text}")
            case e.RecordVow(vow):
                self._pod.vow = vow
            case e.TakeOffice():
                self._take(effect)
            case e.Adjourn():
                self.adjourned = True
            case e.Resign(reason):
                self._resign(reason)

    def _send(self, number: int, message: object) -> None:
        if not self._sidecar.alive:
            return  # killed in the middle of what it said
        if isinstance(message, m.Assign) and self.coordinator is not None:
            self._pod.cluster.assigned(self.coordinator, message)
        if number in self._links:
            self._links[number].send(message)
            self._pod.cluster.coordinator_sent(self._sidecar, message)

    def _hang_up_all(self) -> None:
        for number in list(self._links):
            self._hang_up(number)

    def _hang_up(self, number: int) -> None:
        """What was sent goes out first; nothing more is read."""
        end = self._links.get(number)
        if end is None:
            return
        end.on_message = lambda message: None

        def closed() -> None:
            if (gone := self._links.pop(number, None)) is not None:
                gone.close()
                self._handle(e.Dropped(number, False))

        self._sidecar.later(self._world.between(0.0, 0.01), closed)

    # Observers ------------------------------------------------------------------------------------------------------

    def _refusal(self) -> Refused:
        known = self._sidecar.look()
        holder, epoch = known.coordinator or m.Heir("", ""), known.vow.electorate.epoch
        return Refused("not in office", holder.pod_uid, holder.ip, epoch)

    def _changed(self) -> None:
        """At most five snapshots a second."""
        if not self._tell_due and self._observers:
            self._tell_due = True
            delay = max(0.0, self._told_at + SNAPSHOT_EVERY_S - self._world.now)
            self._sidecar.later(delay, self._tell)

    def _tell(self) -> None:
        self._tell_due, self._told_at = False, self._world.now
        if self.coordinator is None:
            refusal = self._refusal()
            if refusal == self._told_refusal:
                return
            self._told_refusal = refusal
        for end in self._observers:
            end.send(self._refusal() if self.coordinator is None else self.coordinator.snapshot())

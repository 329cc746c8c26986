"""One process of a sidecar in simulated time: the real core; only links, files and clocks are simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.clients import CoordinatorClient
from tests.simulation.network import End
from tests.simulation.process import Alarm, Process
from tests.simulation.snapshots import SimulatedCopies
from understudy_protocol import membership as m
from understudy_protocol.enums import EVICTED_EXIT_CODE
from understudy_protocol.launcher import ExitLauncher, LauncherHello, StopWorkers
from understudy_protocol.snapshots import CopyPlan
from understudy_sidecar.membership import events as e
from understudy_sidecar.membership.coordinator import Coordinator
from understudy_sidecar.membership.core import (
    Core,
    CoreEffect,
    CoreEvent,
    FromObserver,
    HardStateNotStored,
    ObserverDown,
    ObserverUp,
)
from understudy_sidecar.membership.member import Member
from understudy_sidecar.membership.member_state import Identity

if TYPE_CHECKING:
    from tests.simulation.pods import Pod

#: Seconds between two looks at the kernel's counters.
LOOK_S = 0.1
#: How a member's message about its fence begins.
FENCED_MESSAGES = "no coordinator has renewed the lease"


class SimulatedSidecar(Process):
    def __init__(self, pod: Pod) -> None:
        super().__init__(pod.world, pod.machine)
        self.pod = pod
        shape = pod.cluster.shape
        me = Identity(pod.uid, pod.name, pod.machine.name, pod.address, pod.index, pod.grace_s, shape.fence_s)
        self.core = Core(shape, me, pod.hard_state, self.now(), pod.recorded_close, launcher_known=pod.launcher_known)
        self._is_leader: Coordinator | None = None  # whose effects are being carried out
        self._launcher: End | None = None
        self._links: dict[int, End] = {}  # of members and observers
        self._observers: set[int] = set()
        self._callers: dict[int, str] = {}  # the pod uid in the Join of a link
        self.sent_plans: dict[int, CopyPlan] = {}  # the newest one by link
        self._watched: tuple[frozenset[int], float] = (frozenset(), 0.0)  # links, and until when
        self._client = CoordinatorClient(
            self,
            lambda host: self.handle(e.LinkUp(host)),
            lambda message: self.handle(e.FromCoordinator(message)),
            lambda silent: self.handle(e.LinkDown(silent)),
            lambda: self.handle(e.CoordinatorUnreachable()),
        )
        self.copies = SimulatedCopies(self) if shape.snapshot_copies else None
        self._alarm = Alarm(self, self.core.deadline, lambda: self.handle(e.Tick()))

    @property
    def member(self) -> Member:
        return self.core.member

    @property
    def coordinator(self) -> Coordinator | None:
        return self.core.coordinator

    def die(self) -> None:
        """The kernel closes the process's connections (unless the machine is off)."""
        self.alive = False
        self._client.crashed()
        if self._launcher is not None:
            self._launcher.close()
        for end in self._links.values():
            end.close()

    def handle(self, event: CoreEvent) -> None:
        before, launcher = self.coordinator, self.pod.launcher
        match event:
            case e.FromCoordinator(m.Standby(token)) if launcher is not None and launcher.memory is not None:
                launcher.memory.replaced = max(launcher.memory.replaced, token)
            case e.FromCoordinator(m.Welcome(token)) if launcher is not None and launcher.memory is not None:
                if token > max(self.member.token, launcher.memory.missed):
                    launcher.memory.missed_before, launcher.memory.missed = launcher.memory.missed, token
            case e.FromCoordinator(m.Assign(token)) if launcher is not None and launcher.memory is not None:
                if token == launcher.memory.missed:
                    launcher.memory.missed = launcher.memory.missed_before
        effects = self.core.handle(event, self.now())
        if self.coordinator is not None and self.coordinator is not before:
            self.pod.cluster.became_leader(self)
        self._is_leader = self.coordinator or before
        for effect in effects:
            if not self.alive:
                return  # killed in the middle of its effects
            if isinstance(effect, e.RecordHardState) and self.pod.volume_full:
                self.pod.store_failed = True
                self.handle(HardStateNotStored("/understudy-state: No space left on device"))
                return
            self._do(effect)
        self._alarm.set()
        if self.core.is_over and self.alive:
            self._client.hangup()
            self.die()

    def _do(self, effect: CoreEffect) -> None:
        match effect:
            case e.Send(number, message):
                self._send(number, message)
            case e.Broadcast(numbers, message):
                for number in numbers:
                    self._send(number, message)
            case e.WatchMachines(numbers, for_s):
                self._watch(numbers, self.world.now + for_s)
            case e.Hangup(number, reason):
                self.world.log(self.pod.name, f"hangs up link {number}: {reason}")
                self._hang_up(number)
            case e.RecordClose(close):
                self.pod.recorded_close, self.pod.reported_at = close, self.world.now
            case e.RecordHardState(hard_state):
                self.pod.hard_state = hard_state
            case e.RecordLauncher(connected):
                self.pod.launcher_known = connected
            case e.Log(text):
                self.world.log(self.pod.name, text)
            case e.ToLauncher(message):
                self._to_launcher(message)
            case _:
                self._to_coordinator(effect)

    def _to_coordinator(self, effect: CoreEffect) -> None:
        match effect:
            case e.ToCoordinator(message):
                self._client.send(message)
            case e.KeepLink():
                self._client.keep()
            case e.WatchCoordinator():
                self._client.watch()
            case e.PlanCopies() | e.FetchCopy() | e.FlushCopies():
                assert self.copies is not None
                self.copies.do(effect)
            case e.Dial(hosts):
                self._client.dial(hosts)
            case e.HangupCoordinator(reason):
                self.world.log(self.pod.name, f"hangs up: {reason}")
                self._client.hangup()
            case _:
                pass

    def _to_launcher(self, message: object) -> None:
        if isinstance(message, StopWorkers) and message.reason.startswith(FENCED_MESSAGES):
            self.pod.cluster.worker_faults.append(self.world.now)
        if isinstance(message, ExitLauncher) and message.code == EVICTED_EXIT_CODE:
            self.pod.was_evicted = True
        if self._launcher is not None:
            self._launcher.send(message)

    def terminate(self) -> None:
        """SIGTERM."""
        self.handle(e.LeaveRequested("the sidecar got SIGTERM", self.pod.grace_s))

    # Its server -------------------------------------------------------------------------------------------------------

    def serve(self, end: End) -> None:
        """A member's link counts from its first message on (its proof comes just before)."""
        number = self.pod.cluster.link_number()

        def received(message: object) -> None:
            self._links.setdefault(number, end)
            if isinstance(message, m.Join):
                self._callers[number] = message.pod_uid
            self.handle(e.Received(number, message))

        def ended(silent: bool) -> None:
            if self._links.pop(number, None) is not None:
                self.handle(e.Dropped(number, silent))

        self.listen(end, received, ended)

    def observe(self, end: End) -> None:
        """The operator calls."""
        number = self.pod.cluster.link_number()

        def called() -> None:
            self._links[number] = end
            self._observers.add(number)
            self.handle(ObserverUp(number))

        def ended(silent: bool) -> None:
            if self._links.pop(number, None) is not None:
                self.handle(ObserverDown(number))

        self.listen(end, lambda message: self.handle(FromObserver(number, message)), ended)
        self.post(called)

    def _send(self, number: int, message: object) -> None:
        if not self.alive:
            return  # killed in the middle of a broadcast
        if isinstance(message, m.Assign) and self._is_leader is not None:
            self.pod.cluster.assigned(self._is_leader, self._callers[number], message)
        if number in self._links:
            self._links[number].send(message)
            if isinstance(message, m.PlanCopies):
                self.sent_plans[number] = message.plan
            elif isinstance(message, m.Assign) and message.copies is not None:
                self.sent_plans[number] = message.copies
            if number not in self._observers:
                self.pod.cluster.coordinator_sent(self, message)

    def _watch(self, numbers: tuple[int, ...], until: float) -> None:
        """machine_watch.py"""
        self._watched = (frozenset(numbers), until)
        self.later(LOOK_S, lambda: self._look(until))

    def _look(self, until: float) -> None:
        numbers, watched_until = self._watched
        if until != watched_until or self.world.now >= until:
            return
        found = frozenset(x for x in numbers if x in self._links and self._links[x].is_unreachable)
        self._watched = (numbers - found, until)
        self.later(LOOK_S, lambda: self._look(until))
        if found:
            self.handle(e.Unreachable(found))

    def _hang_up(self, number: int) -> None:
        """Send pending messages first; read no more."""
        end = self._links.get(number)
        if end is None:
            return
        end.on_message = lambda message: None

        def closed() -> None:
            if (gone := self._links.pop(number, None)) is not None:
                gone.close()
                self.handle(e.Dropped(number, False))

        self.later(self.world.between(0.0, 0.01), closed)

    # Its launcher -----------------------------------------------------------------------------------------------------

    def launcher_connected(self, end: End) -> None:
        """launcher_link.py: a newer connection replaces an older one; its first line is the hello."""
        if self._launcher is not None:
            self._launcher.close()
        self._launcher = end
        up = False

        def received(message: object) -> None:
            nonlocal up
            if self._launcher is end:
                first, up = isinstance(message, LauncherHello) and not up, True
                self.handle(e.LauncherUp(message) if first else e.FromLauncher(message))  # type: ignore[arg-type]

        def ended(silent: bool) -> None:
            if self._launcher is end:
                self._launcher = None
                self.handle(e.LauncherDown())

        self.listen(end, received, ended)

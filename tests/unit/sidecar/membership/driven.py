"""A coordinator, the time, and the messages that it sent to each pod, for the tests of the coordinator's rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from understudy_protocol import membership as m
from understudy_protocol.enums import NO_CONFIG, NO_ROUND, NO_TERM, ConfigVersion, RoundToken, Term, WorkersState
from understudy_protocol.observer import Appoint, Recovery
from understudy_protocol.pod import JobShape
from understudy_protocol.recovery import History
from understudy_protocol.snapshots import KeptSteps, MadeStep, SavedSteps
from understudy_sidecar.membership.coordinator import Coordinator
from understudy_sidecar.membership.events import (
    Broadcast,
    CompleteShutdown,
    CoordinatorEvent,
    Dropped,
    Hangup,
    Log,
    ObserversChanged,
    Received,
    Send,
    StepDown,
    Tick,
    WatchMachines,
)

START = 1_000_000.0


class DrivenCoordinator:
    """Pods are named. A pod `spare…` is created as a spare; any other pod is created for the rank at the end of its
    name.
    """

    def __init__(
        self,
        actives: int = 2,
        *,
        epoch: int = 1,
        at_least_round: int = -1,
        max_in_place: int = 2,
        nproc: int = 1,
        elected: m.LeaderSnapshot | None = None,
        known: m.LeaderSnapshot | None = None,
        running_pods: tuple[str, ...] = (),
        rank_holders: tuple[m.RankHolder, ...] = (),
        coordinator_uid: str = "",
        **shape_of: Any,
    ) -> None:
        self.now = START
        shape = JobShape("job-uid", "ns", "job", actives, nproc, max_in_place, 3600.0, **shape_of)
        self.coordinator = (
            Coordinator.appointed(
                shape,
                "uid-coordinator",
                "10.0.0.9",
                Appoint(epoch, at_least_round, {}, running_pods, rank_holders, coordinator_uid),
                self.now,
                known,
            )
            if elected is None
            else Coordinator.elected(shape, "uid-coordinator", "10.0.0.9", Term(epoch, 2), elected, self.now)
        )
        self.sent: dict[str, list[Any]] = {}
        self.stepped_s: dict[str, float] = {}  # in a pod's answers to heartbeats
        self.logged: list[str] = []
        self.hung_up: list[str] = []
        self.watched: list[str] = []  # the pods of the newest WatchMachines
        self.has_completed_shutdown = self.step_down_reason = False
        self._links: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self.do(ObserversChanged(1))

    def do(self, event: CoordinatorEvent) -> None:
        """Also handle the effects that follow while losses are gathered."""
        self.at_once(event)
        gathers_until = self.coordinator.state.round.gathers_until
        if self.now < gathers_until and not self.step_down_reason:
            self.now = gathers_until
            self.at_once(Tick())

    def at_once(self, event: CoordinatorEvent) -> None:
        for effect in self.coordinator.handle(event, self.now):
            match effect:
                case Send(link, message):
                    self.sent.setdefault(self._names[link], []).append(message)
                case Broadcast(links, message):
                    for link in links:
                        self.sent.setdefault(self._names[link], []).append(message)
                case Hangup(link):
                    self.hung_up.append(self._names[link])
                case Log(text):
                    self.logged.append(text)
                case WatchMachines(links):
                    self.watched = [self._names[link] for link in links]
                case CompleteShutdown():
                    self.has_completed_shutdown = True
                case StepDown():
                    self.step_down_reason = True

    def join(
        self,
        name: str,
        token: RoundToken = NO_ROUND,
        group_rank: int | None = None,
        workers: WorkersState = WorkersState.IDLE,
        *,
        term: Term = NO_TERM,
        node: str = "",
        address: str = "",
        leaving: m.Leaving | None = None,
        group_world_size: int = 0,
        history: History | None = None,
        verdict: m.NodeVerdict | None = None,
        warm: bool = False,
        stepped: RoundToken = NO_ROUND,
        disconnected_s: float | None = None,
        disconnected_silently: bool = False,
        unable_reason: str = "",
        saved: SavedSteps | None = None,
        kept: tuple[KeptSteps, ...] | None = (),
        drain_s: float | None = None,
        config_version: ConfigVersion = NO_CONFIG,
        has_stopped: bool = False,
        failure: m.WorkerFailed | None = None,
    ) -> None:
        number = len(self._names) + 1
        self._links[name], self._names[number] = number, name
        end = name.lstrip("-_abcdefghijklmnopqrstuvwxyz")
        index = None if name.startswith("spare") else int(end)
        at, ip = node or f"node-of-{name}", address or f"10.0.0.{ord(name[0])}{end}"
        role = (f"uid-{name}", name, at, ip, index, token, group_rank, workers, 4000)
        known = m.Join(*role, term, leaving=leaving, group_world_size=group_world_size, history=history)
        join = replace(known, verdict=verdict, warm=warm, stepped=stepped, disconnected_s=disconnected_s)
        join = replace(join, disconnected_silently=disconnected_silently, unable_reason=unable_reason, saved=saved)
        join = replace(join, kept=kept, drain_s=drain_s, config_version=config_version, has_stopped=has_stopped)
        self.do(Received(number, replace(join, failure=failure)))

    def receive(self, name: str, message: Any) -> None:
        self.do(Received(self._links[name], message))

    def link(self, name: str) -> int:
        return self._links[name]

    def drop(self, name: str, *, silent: bool = False) -> None:
        self.do(self.dropped(name, silent=silent))

    def dropped(self, name: str, *, silent: bool) -> Dropped:
        return Dropped(self._links[name], silent)

    def later(self, seconds: float, *answering: str) -> None:
        """Let time pass, with a Tick at each deadline. Only the `answering` pods answer their heartbeats."""
        until = self.now + seconds
        while (due := self.coordinator.deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            self.do(Tick())
            for name in answering:
                for change in self.take(name, m.ConfigChange):
                    self.receive(name, m.ConfigChangeAck(change.config_version))
            self.answer_heartbeats(*answering)
        self.now = until

    def answer_heartbeats(self, *names: str) -> None:
        """These members answer the heartbeats that they received."""
        for name in names:
            for message in self.take(name, m.Heartbeat):
                self.receive(name, m.HeartbeatAck(message.number, self.stepped_s.get(name)))

    def take(self, name: str, kind: type[Any]) -> list[Any]:
        """The messages of a kind that the coordinator sent to a pod since the last call."""
        every = self.sent.get(name, [])
        self.sent[name] = [message for message in every if not isinstance(message, kind)]
        return [message for message in every if isinstance(message, kind)]

    def assigned(self) -> dict[str, int]:
        """Group ranks by pod, from the assignments since the last call."""
        found = {name: self.take(name, m.Assign) for name in list(self.sent)}
        return {name: assigns[-1].group_rank for name, assigns in found.items() if assigns}

    @property
    def token(self) -> RoundToken:
        return self.coordinator.token

    def report_started(self, *names: str, newest: MadeStep | None = None) -> None:
        """These members acknowledge the running round, and their workers run. newest: that they made before."""
        saved = None if newest is None else SavedSteps((), newest)
        for name in names:
            self.receive(name, m.Ack(self.token))
            self.receive(name, m.Started(self.token, saved))

    def report_step(
        self,
        name: str,
        step: int = 1,
        pause_s: float | None = None,
        *,
        is_counted: bool = False,
        median_step_s: float = 0.1,
        since_first_s: float = 0.0,
    ) -> None:
        """pause_s: as its launcher measures it; None if no earlier round has made a step on its pod."""
        self.receive(
            name, m.Progress(self.token, step, None, median_step_s, self.now, pause_s, is_counted, since_first_s)
        )

    def fail_worker(
        self, name: str, message: str = "exit code 1", at_round: RoundToken | None = None, *, at: float | None = None
    ) -> None:
        failed_at = self.now if at is None else at
        self.receive(name, m.WorkerFailed(at_round or self.token, 0, 1, None, message, failed_at))

    def recovery(self) -> Recovery:
        return self.coordinator.snapshot().recoveries[-1]

    def lost_pods(self) -> dict[str, str]:
        return {x.pod_name: x.fault.value for x in self.coordinator.snapshot().lost}


def running(actives: int = 2, spares: int = 1, **given: Any) -> DrivenCoordinator:
    """A job whose first round makes steps."""
    driven = DrivenCoordinator(actives, **given)
    for number in range(spares):
        driven.join(f"spare-{number}")
    names = [f"active-{number}" for number in range(actives)]
    for name in names:
        driven.join(name)
    driven.report_started(*names)
    driven.report_step("active-0")
    driven.sent.clear()
    driven.logged.clear()
    return driven

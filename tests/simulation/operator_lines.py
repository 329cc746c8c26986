"""The operator's lines to a job's pods in simulated time: the real search, over simulated connections."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.simulation.api_server import ApiServer, Site
from tests.simulation.network import End, Machine, reachable
from tests.simulation.sidecars import SimulatedSidecar
from understudy_operator.plan.facts.observed import Coordination
from understudy_operator.plan.intents import Callee, Follow
from understudy_operator.plan.leadership.search import PodMessage, Search
from understudy_protocol.observer import Snapshot

SEARCH_EVERY_S = 0.25
PING_S = 4.5  # the WebSocket's heartbeat finds a peer that is silent or frozen


@dataclass(eq=False)
class _Line:
    callee: Callee
    end: End | None = None
    heard_at: float = 0.0


class CoordinatorLink:
    """apply/coordinator_link.py."""

    def __init__(
        self, site: Site, api: ApiServer, machine: Machine, before: Coordination, on_change: Callable[[], None]
    ) -> None:
        self._site, self._api, self._machine, self._on_change = site, api, machine, on_change
        self._world = site.training.world
        self._search = Search(before, self._world.now)
        self._version = self._search.version
        self._lines: dict[str, _Line] = {}
        self._closed = False
        self._search_again()

    @property
    def coordination(self) -> Coordination:
        return self._search.coordination

    def follow(self, follow: Follow) -> None:
        self._learnt(self._search.follow(follow, self._world.now))
        self._dial()

    def close(self) -> None:
        self._closed = True
        for line in self._lines.values():
            if line.end is not None:
                line.end.close()
        self._lines.clear()

    def _search_again(self) -> None:
        if not self._closed:
            self._dial()
            self._world.after(SEARCH_EVERY_S, self._search_again)

    def _dial(self) -> None:
        wanted = self._search.calls(self._world.now)
        for uid, line in list(self._lines.items()):
            if wanted.get(uid) is not line.callee:
                del self._lines[uid]
                if line.end is not None:
                    line.end.close()
        for uid, callee in wanted.items():
            if uid not in self._lines:
                line = self._lines[uid] = _Line(callee)
                self._world.after(self._world.between(0.001, 0.03), lambda line=line: self._call(line))  # type: ignore[misc]

    def _call(self, line: _Line) -> None:
        uid = line.callee.pod_uid
        if self._lines.get(uid) is not line:
            return
        entry = next((x for x in self._api.objects.values() if x.pod.uid == uid), None)
        sidecar = None if entry is None else entry.pod.sidecar
        if entry is None or sidecar is None or not sidecar.alive or not reachable(self._machine, entry.pod.machine):
            self._ended(line)
            return
        ours, theirs = self._site.network.connect(self._machine, entry.pod.machine)
        line.end, line.heard_at = ours, self._world.now
        sidecar.observe(theirs)
        ours.on_message = lambda message: self._on_message(line, message)
        ours.on_end = lambda silent: self._ended(line)
        ours.send(line.callee.greeting)
        self._ping(line, sidecar)

    def _ping(self, line: _Line, sidecar: SimulatedSidecar) -> None:
        """The pings of a line: an acknowledgement by the kernel is no answer to them."""

        def ponged() -> None:
            if self._lines.get(line.callee.pod_uid) is not line or line.end is None:
                return
            if sidecar.machine.is_responding and sidecar.alive and not sidecar.stopped:
                line.heard_at = self._world.now
            elif self._world.now - line.heard_at >= PING_S:
                line.end.close()
                self._ended(line)
                return
            self._world.after(1.0, ponged)

        self._world.after(1.0, ponged)

    def _on_message(self, line: _Line, message: object) -> None:
        if self._lines.get(line.callee.pod_uid) is not line:
            return
        before = self._search.coordination.snapshot
        answers = self._search.on_message(line.callee, message, self._world.now)
        known = self._search.coordination.snapshot
        if isinstance(message, Snapshot) and known is not None and known is not before:
            self._site.snapshot_seen(known)
        self._learnt(answers)

    def _ended(self, line: _Line) -> None:
        if self._lines.get(line.callee.pod_uid) is line:
            del self._lines[line.callee.pod_uid]
            self._search.on_line_ended(line.callee, self._world.now)
            self._learnt([])

    def _learnt(self, answers: list[PodMessage]) -> None:
        for answer in answers:
            line = self._lines.get(answer.pod_uid)
            if line is not None and line.end is not None:
                line.end.send(answer.message)
        if self._search.version != self._version:
            self._version = self._search.version
            self._on_change()

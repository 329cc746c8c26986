"""The operator's links to a job's pods in simulated time: the real search, over simulated connections."""

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
class _Link:
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
        self._links: dict[str, _Link] = {}
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
        for link in self._links.values():
            if link.end is not None:
                link.end.close()
        self._links.clear()

    def _search_again(self) -> None:
        if not self._closed:
            self._dial()
            self._world.after(SEARCH_EVERY_S, self._search_again)

    def _dial(self) -> None:
        wanted = self._search.calls(self._world.now)
        for uid, link in list(self._links.items()):
            if wanted.get(uid) is not link.callee:
                del self._links[uid]
                if link.end is not None:
                    link.end.close()
        for uid, callee in wanted.items():
            if uid not in self._links:
                link = self._links[uid] = _Link(callee)
                self._world.after(self._world.between(0.001, 0.03), lambda link=link: self._call(link))  # type: ignore[misc]

    def _call(self, link: _Link) -> None:
        uid = link.callee.pod_uid
        if self._links.get(uid) is not link:
            return
        entry = next((x for x in self._api.objects.values() if x.pod.uid == uid), None)
        sidecar = None if entry is None else entry.pod.sidecar
        if entry is None or sidecar is None or not sidecar.alive or not reachable(self._machine, entry.pod.machine):
            self._ended(link)
            return
        ours, theirs = self._site.network.connect(self._machine, entry.pod.machine)
        link.end, link.heard_at = ours, self._world.now
        sidecar.observe(theirs)
        ours.on_message = lambda message: self._on_message(link, message)
        ours.on_end = lambda silent: self._ended(link)
        ours.send(link.callee.greeting)
        self._ping(link, sidecar)

    def _ping(self, link: _Link, sidecar: SimulatedSidecar) -> None:
        """The pings of a link: an acknowledgement by the kernel is no answer to them."""

        def ponged() -> None:
            if self._links.get(link.callee.pod_uid) is not link or link.end is None:
                return
            if sidecar.machine.is_responding and sidecar.alive and not sidecar.stopped:
                link.heard_at = self._world.now
            elif self._world.now - link.heard_at >= PING_S:
                link.end.close()
                self._ended(link)
                return
            self._world.after(1.0, ponged)

        self._world.after(1.0, ponged)

    def _on_message(self, link: _Link, message: object) -> None:
        if self._links.get(link.callee.pod_uid) is not link:
            return
        before = self._search.coordination.snapshot
        answers = self._search.on_message(link.callee, message, self._world.now)
        known = self._search.coordination.snapshot
        if isinstance(message, Snapshot) and known is not None and known is not before:
            self._site.snapshot_seen(known)
        self._learnt(answers)

    def _ended(self, link: _Link) -> None:
        if self._links.get(link.callee.pod_uid) is link:
            del self._links[link.callee.pod_uid]
            self._search.on_line_ended(link.callee, self._world.now)
            self._learnt([])

    def _learnt(self, answers: list[PodMessage]) -> None:
        for answer in answers:
            link = self._links.get(answer.pod_uid)
            if link is not None and link.end is not None:
                link.end.send(answer.message)
        if self._search.version != self._version:
            self._version = self._search.version
            self._on_change()

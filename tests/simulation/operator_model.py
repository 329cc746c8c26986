"""The operator in simulated time: its real plan (who coordinates, which pods there should be), simulated edges.

Simulated are only what the plan observes and what it asks for: the API server (api_server.py), and the link to the
coordinator (here). It may be down: nothing is planned then, and its link is gone; status stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.simulation.api_server import ApiServer, Site, is_ready, patch
from tests.simulation.network import End, Machine, reachable
from tests.simulation.sidecars import Sidecar
from understudy_operator.plan.coordination import plan_label, plan_link, plan_office
from understudy_operator.plan.intents import CreatePod, DeletePod, Follow, PatchPod
from understudy_operator.plan.members import plan_members, silent_nodes
from understudy_operator.plan.observed import Coordination, Job, JobSpec, Node, Observed
from understudy_protocol.observer import Appoint, Refused, Snapshot

PASS_DELAY_S = (0.02, 0.2)
LOOK_AGAIN_S = 2.0
RETRY_S = 0.5
PING_S = 4.5  # the WebSocket's heartbeat finds a peer that is silent or frozen
TEMPLATE: Mapping[str, Any] = {"spec": {"containers": [{"name": "trainer", "command": ["train"]}]}}


@dataclass
class CoordinatorLink:
    """observe/coordinator_link.py."""

    follow: Follow
    end: End | None = None
    heard_at: float = 0.0


@dataclass
class Operator:
    site: Site
    api: ApiServer
    spares: int
    up: bool = True
    status: dict[str, Any] = field(default_factory=dict)
    coordination: Coordination = field(default_factory=Coordination)
    machine: Machine = field(default_factory=lambda: Machine("control-plane"))
    _link: CoordinatorLink | None = None
    _due: bool = False
    _passes: int = 0

    def start(self) -> None:
        self.api.changed = self.dirty
        self._look_again()

    def go_down(self) -> None:
        self.site.training.world.say("operator", "FAULT: it goes down")
        self.up = False
        self._unfollow()
        self.coordination = Coordination()

    def come_up(self) -> None:
        self.site.training.world.say("operator", "it is up again")
        self.up = True
        self.dirty()

    def dirty(self) -> None:
        world = self.site.training.world
        if self.up and not self._due:
            self._due = True
            world.after(world.between(*PASS_DELAY_S), self._pass)

    def _look_again(self) -> None:
        self.dirty()
        self.api.evict()
        self.site.training.world.after(LOOK_AGAIN_S, self._look_again)

    # A pass ---------------------------------------------------------------------------------------------------------

    def _pass(self) -> None:
        self._due = False
        if not self.up:
            return
        now = self.site.training.world.now
        observed = self._observe(now)
        office = plan_office(observed, now)
        if office.epoch != self.status.get("coordinator", {}).get("epoch", 0) and office.pod is not None:
            text = f"appoints {office.pod.name} in epoch {office.epoch}: {office.reason}"
            self.site.training.world.say("operator", text)
            self.status["coordinator"] = {"epoch": office.epoch, "podUID": office.pod.uid}
        if observed.snapshot is not None:
            self.status["round"] = max(self.status.get("round", -1), observed.snapshot.token.round)
            counts = observed.snapshot.recoveries_by_strategy
            self.status["recoveriesByStrategy"] = {name[0].lower() + name[1:]: count for name, count in counts.items()}
        if observed.close is not None:
            self.status.setdefault("completedAt", now)
        link = plan_link(observed, office)
        for intent in (*plan_members(observed, "sidecar:1", now), *plan_label(observed, office)):
            self._do(intent, observed, now)
        if isinstance(link, Follow):
            self._follow(link)
        elif link is not None:
            self._unfollow()

    def _observe(self, now: float) -> Observed:
        shape = self.site.shape
        spec = JobSpec(
            "workers",
            1,
            shape.actives,
            TEMPLATE,
            {},
            shape.nproc_per_node,
            "trainer",
            self.spares,
            shape.in_place_max_restarts,
            shape.in_place_window_s,
        )
        self._passes += 1
        return Observed(
            job=Job(
                "ns", "job", "job-uid", 1, "1", False, 0.0, self.status.get("completedAt"), spec, dict(self.status)
            ),
            pods=tuple(entry.observed() for entry in self.api.objects.values()),
            nodes={machine.name: Node(machine.name, is_ready(machine, now)) for machine in self.site.machines},
            coordination=self.coordination,
            has_secret=True,
            has_hostnames_service=True,
            coordinator_address="10.0.0.1:8478",
            entropy=str(self._passes),
        )

    def _do(self, intent: object, observed: Observed, now: float) -> None:
        match intent:
            case CreatePod(manifest):
                self.api.create(manifest, silent_nodes(observed, now), now)
            case DeletePod(name=name) | PatchPod(name=name) if name not in self.api.objects:
                pass  # 404: an intent of the same pass has removed it
            case DeletePod(name, _, grace_s, reason):
                self.api.delete(self.api.objects[name], grace_s, reason, now)
            case PatchPod(name, labels, annotations):
                entry = self.api.objects[name]
                patch(entry.labels, labels)
                patch(entry.annotations, annotations)

    # The link to the coordinator ------------------------------------------------------------------------------------

    def _follow(self, follow: Follow) -> None:
        now = self._link.follow if self._link is not None else None
        if now is not None and (now.pod_uid, now.epoch) == (follow.pod_uid, follow.epoch):
            return
        self._unfollow()
        self._link = CoordinatorLink(follow)
        self.coordination = Coordination(snapshot=self.coordination.snapshot, followed_uid=follow.pod_uid)
        self._dial(self._link)

    def _unfollow(self) -> None:
        if self._link is not None and self._link.end is not None:
            self._link.end.close()
        self._link = None

    def _learn(self, link: CoordinatorLink, **changes: Any) -> None:
        if self._link is link:
            self.coordination = replace(self.coordination, **changes)
            self.dirty()

    def _dial(self, link: CoordinatorLink) -> None:
        if self._link is not link:
            return
        world = self.site.training.world
        entry = next((x for x in self.api.objects.values() if x.pod.uid == link.follow.pod_uid), None)
        sidecar = None if entry is None else entry.pod.sidecar
        if entry is None or sidecar is None or not sidecar.alive or not reachable(self.machine, entry.pod.machine):
            self._lost(link)
            return
        ours, theirs = self.site.network.connect(self.machine, entry.pod.machine)
        link.end, link.heard_at = ours, world.now
        sidecar.office.observe(theirs)
        ours.on_message = lambda message: self._heard(link, message)
        ours.on_end = lambda silent: self._lost(link) if link.end is ours else None
        follow = link.follow
        ours.send(Appoint(follow.epoch, follow.at_least_round, dict(follow.recoveries_by_strategy)))
        self._ping(link, ours, sidecar)

    def _ping(self, link: CoordinatorLink, end: End, sidecar: Sidecar) -> None:
        """aiohttp's heartbeat: a kernel that acknowledges is not enough for it."""

        def ponged() -> None:
            if link.end is not end:
                return
            if sidecar.machine.answers and sidecar.alive and not sidecar.stopped:
                link.heard_at = world.now
            elif world.now - link.heard_at >= PING_S:
                end.close()
                self._lost(link)
                return
            world.after(1.0, ponged)

        world = self.site.training.world
        world.after(1.0, ponged)

    def _heard(self, link: CoordinatorLink, message: object) -> None:
        match message:
            case Snapshot() as snapshot:
                self.site.snapshot_seen(snapshot)
                self._learn(link, snapshot=snapshot, unreachable_since=None, refused="")
            case Refused(reason):
                self._learn(link, refused=reason, unreachable_since=None)

    def _lost(self, link: CoordinatorLink) -> None:
        world = self.site.training.world
        link.end = None
        if self._link is link and self.coordination.unreachable_since is None:
            self._learn(link, unreachable_since=world.now)
        world.after(RETRY_S, lambda: self._dial(link))

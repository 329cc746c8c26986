"""The API server, the scheduler, the kubelets and the node controller, as far as a job's pods need them.

A pod's object has the state that its kubelet reported last. A machine that does not respond reports nothing and does
nothing until it responds again. It is not Ready from NOT_READY_S after it stopped responding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.simulation.network import Machine
from tests.simulation.pods import GRACE_S, Pod, SimulatedPods
from understudy_operator.plan.facts.cluster_objects import Pod as ObservedPod
from understudy_protocol import pod as names
from understudy_protocol.observer import Snapshot

NOT_READY_S = 40.0
#: Pods tolerate a node that is not Ready for this time; then the node controller deletes them (Kubernetes' default).
EVICTION_S = 300.0
POD_CREATION_S = (1.0, 4.0)


@dataclass
class PodObject:
    """A pod's object in the API server: the state that its kubelet reported last."""

    pod: Pod
    node: str
    spare: bool
    index: int | None
    labels: dict[str, str]
    annotations: dict[str, str]
    created_at: float
    deleting_since: float | None = None
    phase: str = "Pending"
    sidecar_started: bool = False
    sidecar_ran: bool = False
    ip_is_known: bool = False

    def observed(self) -> ObservedPod:
        pod = self.pod
        return ObservedPod(
            uid=pod.uid,
            name=pod.name,
            node=self.node,
            ip=pod.ip if self.ip_is_known else "",
            port=pod.port,
            phase=self.phase,
            spare=self.spare,
            index=self.index,
            labels=self.labels,
            annotations=self.annotations,
            created_at=self.created_at,
            deleting_since=self.deleting_since,
            grace_s=GRACE_S,
            sidecar_started=self.sidecar_started,
            sidecar_ran=self.sidecar_ran,
            close=pod.recorded_close if self.phase in ("Succeeded", "Failed") else None,
            trouble="",
            exit_code=pod.exit_code if self.phase in ("Succeeded", "Failed") else None,
            trainer_started_at=0.0 if self.phase in ("Succeeded", "Failed") else pod.trainer_started_at,
        )


class Site(SimulatedPods, Protocol):
    """The part of the cluster that the operator needs, beyond the part that a pod needs."""

    machines: list[Machine]

    def new_pod(self, made_as: str, index: int | None, machine: Machine) -> Pod: ...
    def on_machine(self, machine: Machine) -> list[Pod]: ...
    def snapshot_seen(self, snapshot: Snapshot) -> None: ...
    def appointed(self, epoch: int) -> None: ...


@dataclass
class ApiServer:
    site: Site
    slow_start_s: float  # at most, for a pod's images
    changed: Callable[[], None] = lambda: None
    objects: dict[str, PodObject] = field(default_factory=dict)

    def evict(self) -> None:
        """Act as the node controller, which works even if the operator is down."""
        now = self.site.training.world.now
        for entry in self.objects.values():
            since = entry.pod.machine.not_ready_since
            if entry.deleting_since is None and since is not None and now - since >= NOT_READY_S + EVICTION_S:
                entry.deleting_since = now
                self.changed()

    def create(self, manifest: Mapping[str, Any], avoid: list[str], now: float) -> None:
        metadata = manifest["metadata"]
        spare = metadata["labels"][names.LABEL_ROLE] == names.ROLE_SPARE
        index = None if spare else int(metadata["annotations"][names.ANNOTATION_GROUP_RANK])
        machine = self._schedule(avoid, now)
        pod = self.site.new_pod("spare" if spare else "active", index, machine)
        entry = PodObject(pod, machine.name, spare, index, dict(metadata["labels"]), dict(metadata["annotations"]), now)
        self.objects[pod.name] = entry
        pod.changed = lambda: self._schedule_kubelet_report(entry)
        world = self.site.training.world
        world.log("operator", f"creates {pod.name} on {machine.name}")
        delay = world.between(*POD_CREATION_S) + world.between(0.0, self.slow_start_s)
        world.after(delay, lambda: machine.post(pod.start) if entry.deleting_since is None else None)

    def _schedule(self, avoid: list[str], now: float) -> Machine:
        """The ready machine with the fewest pods; one that died a moment ago still counts as ready."""
        load = dict.fromkeys((machine.name for machine in self.site.machines), 0)
        for entry in self.objects.values():
            load[entry.node] += entry.phase not in ("Succeeded", "Failed")
        ready = [machine for machine in self.site.machines if is_ready(machine, now) and machine.name not in avoid]
        return min(ready or self.site.machines, key=lambda machine: load[machine.name])

    def delete(self, entry: PodObject, grace_s: float | None, reason: str, now: float) -> None:
        self.site.training.world.log("operator", f"deletes {entry.pod.name}: {reason}")
        if grace_s == 0 or entry.phase in ("Succeeded", "Failed"):
            self.objects.pop(entry.pod.name, None)
            if entry.phase not in ("Succeeded", "Failed") and not is_ready(entry.pod.machine, now):
                entry.pod.was_abandoned = True
        self.delete_by_user(entry)

    def delete_by_user(self, entry: PodObject) -> None:
        """kubectl delete pod: the kubelet ends the pod as soon as it gets the deletion."""
        if entry.deleting_since is None:
            entry.deleting_since = self.site.training.world.now
            if entry.pod.machine.is_responding:
                entry.pod.delete()
            self._schedule_kubelet_report(entry)

    def machine_answers(self, machine: Machine) -> None:
        """A kubelet responds again: it gets deletions, and reports the state of its pods."""
        for entry in list(self.objects.values()):
            if entry.pod.machine is machine:
                self._schedule_kubelet_report(entry)
        for pod in self.site.on_machine(machine):
            if pod.name not in self.objects:
                pod.delete()  # its object was removed while the machine did not respond

    def _schedule_kubelet_report(self, entry: PodObject) -> None:
        world = self.site.training.world
        world.after(world.between(0.05, 0.4), lambda: self._report_pod(entry))

    def _report_pod(self, entry: PodObject) -> None:
        pod = entry.pod
        if not pod.machine.is_responding:
            return
        entry.ip_is_known = entry.ip_is_known or pod.sidecar_ran
        entry.sidecar_ran = pod.sidecar_ran
        entry.sidecar_started = pod.sidecar is not None and pod.sidecar.alive
        if pod.ended:
            entry.phase = "Succeeded" if pod.exit_code == 0 else "Failed"
        elif pod.sidecar_ran:
            entry.phase = "Running"
        if entry.deleting_since is not None and not pod.asked_to_end:
            pod.delete()
        if pod.ended and entry.deleting_since is not None:
            self.objects.pop(pod.name, None)
        self.changed()


def is_ready(machine: Machine, now: float) -> bool:
    return machine.not_ready_since is None or now - machine.not_ready_since < NOT_READY_S


def patch(target: dict[str, str], changes: Mapping[str, str | None]) -> None:
    for name, value in changes.items():
        if value is None:
            target.pop(name, None)
        else:
            target[name] = value

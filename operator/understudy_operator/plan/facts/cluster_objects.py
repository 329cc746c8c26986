"""Objects of the cluster as the operator sees them: frozen, read from raw objects by observe/read*.py."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from understudy_operator.plan.verdicts.findings import Finding, find_verdict
from understudy_protocol.addresses import with_port
from understudy_protocol.membership import Close
from understudy_protocol.pod import COORDINATOR_PORT

#: Phases of a pod.
ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Controller:
    """An object's controller from its ownerReferences; empty if it has none."""

    kind: str = ""
    name: str = ""
    uid: str = ""


@dataclass(frozen=True)
class Pod:
    uid: str
    name: str
    node: str  # "" until it is scheduled
    ip: str
    phase: str
    spare: bool  # created as a spare
    index: int | None  # completion index (over all Jobs) it was created for; None for a spare
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    created_at: float
    deleting_since: float | None
    grace_s: float
    sidecar_started: bool  # and still runs
    sidecar_ran: bool  # at any time
    close: Close | None  # from the sidecar's termination message
    trouble: str  # why it does not start, from the scheduler or the kubelet; "" if nothing is wrong
    exit_code: int | None = None  # of the trainer container
    out_of_memory: str = ""  # message that the kernel killed the trainer container for lack of memory; "" if not
    attempt: int = 0  # of the world, in which it was created
    version: str = ""  # of the observed object
    gates: tuple[str, ...] = ()  # its scheduling gates
    finalizers: tuple[str, ...] = ()
    disruption: str = ""  # why it was evicted or preempted, in the message of the cause; "" if it was not
    is_preempted: bool = False  # by the scheduler or by Kueue, for a pod of higher priority
    blocking_finalizers: tuple[str, ...] = ()  # finalizers, if only they keep the object of a deleted pod
    waiting_since: float = 0.0  # when it got its node, if it has no container yet; else 0
    failure: str = ""  # why it has failed, from the kubelet; "" if it has not
    could_start: bool = True  # whether all of its containers could be started; known for a failed pod
    ready: bool = False  # according to its probes
    unready_since: float = 0.0  # since when its probes fail; 0 if they do not
    nominated_node: str = ""  # the node on which the scheduler preempts others for it
    owner: str = ""  # uid of the job or the pool that it belongs to, confirmed by its ownerReferences
    controller: Controller = Controller()
    secrets: frozenset[str] = frozenset()  # names of the operator's Secrets that it mounts
    port: int = COORDINATOR_PORT  # that its sidecar listens on; with hostNetwork one of its own
    lacks_port_since: float = 0.0  # since when no node with room has its ports free; 0 if that is not why it waits
    volumes_mounted: bool = False  # all volumes: its kubelet reports a network, which it sets up after them
    devices: int = 0  # GPUs, or other devices that count as such, that its trainer container requests
    trainer_started_at: float = 0.0  # when its trainer container started; 0 if it does not run

    @cached_property
    def address(self) -> str:
        """Of its sidecar (understudy_protocol/addresses.py); "" while it has none."""
        return with_port(self.ip, self.port)

    @property
    def ended(self) -> bool:
        return self.phase in ENDED

    @property
    def is_done(self) -> bool:
        """Whether at most its object remains: finalizers may keep that of a pod that ended or was never scheduled."""
        return self.ended or bool(self.blocking_finalizers) or (self.deleting_since is not None and not self.node)

    @property
    def alive(self) -> bool:
        return self.deleting_since is None and self.phase not in ENDED


@dataclass(frozen=True)
class ChildJob:
    """A Job of batch/v1 that was created from a replicatedJob."""

    uid: str
    name: str
    group: str  # its replicatedJob
    index: int
    attempt: int  # restarts of the whole job at its creation
    job_attempt: int  # restarts of this Job alone, at its creation
    desired_pods: int  # pods that make it ready
    deleting: bool = False
    suspended: bool = False
    created_at: float = 0.0
    started_at: float = 0.0  # by the Job controller; 0 before
    active: int = 0  # pods
    failed: int = 0
    terminating: int = 0
    ready: int = 0
    succeeded: int = 0
    is_failing: bool = False  # it fails as soon as its pods have ended
    ended: bool = False
    is_complete: bool = False  # and not failed
    reason: str = ""  # of its failure
    message: str = ""
    ended_at: float = 0.0
    fingerprint: str = ""
    template_hash: str = ""  # ReplicatedJob.template_hash at its creation
    written_fields: str = ""  # the fields of its template that this operator has written, from its annotation
    queue: str = ""  # Kueue's; then Kueue decides when it runs
    template: Mapping[str, Any] = field(default_factory=dict)  # of its pods
    backoff_limit: int | None = None
    replaces_ended_pods_only: bool = False  # podReplacementPolicy Failed: not while they terminate


@dataclass(frozen=True)
class Node:
    name: str
    ready: bool
    since: float = 0.0  # when it last became ready or not ready; 0 if the node does not record it
    labels: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()  # of the fault sources, the one that counts most first
    out_of_service: bool = False  # an administrator has confirmed by a taint that nothing runs on it
    created_at: float = 0.0
    forgiven_at: float | None = None  # the memory ignores offenses before it; None: no such time

    def verdict_at(self, now: float) -> Finding | None:
        """The verdict about it; None if no finding counts."""
        return find_verdict(self.findings, now) if self.findings else None


class NodeMap(dict[str, Node]):
    """All nodes at one moment, by name. The reconciles of all jobs share it, so it must not be changed."""

    @cached_property
    def with_findings(self) -> tuple[Node, ...]:
        """The few nodes with findings."""
        return tuple(node for node in self.values() if node.findings)


def with_findings(nodes: Mapping[str, Node]) -> tuple[Node, ...]:
    return nodes.with_findings if isinstance(nodes, NodeMap) else NodeMap(nodes).with_findings


@dataclass(frozen=True)
class Stay:
    """A pod on its node."""

    pod: str  # its name
    uid: str
    node: str
    since: float  # the creation of the pod
    until: float | None = None  # when its object was gone; None: it exists

"""The facts about a pool: frozen, read from raw objects by observe/read_pool.py.

A pool's pod has the label of the pool's uid. A job that claims it writes its own uid and a finalizer to it, in one
write. All state of a claim is on that pod, and on the job's pod that replaces it: so every reconcile, also of another
operator, finds the claim as it is.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from understudy_operator.plan.facts.cluster_objects import Node, Pod
from understudy_operator.plan.facts.keyring import Keyring
from understudy_operator.plan.facts.pods import NO_PODS, Pods
from understudy_operator.plan.facts.refusals import Refusal
from understudy_operator.plan.facts.secret_writes import NO_WRITES, SecretWrites
from understudy_operator.plan.facts.sidecar_settings import DEFAULT_SIDECAR_SETTINGS, SidecarSettings
from understudy_operator.plan.facts.spec import SharedMemory
from understudy_operator.plan.facts.status import PoolStatus
from understudy_operator.plan.verdicts.fault_sources import time_in
from understudy_protocol import pod as names

DEFAULT_FAILURES_PER_NODE_DAY = 1.2e-3


@dataclass(frozen=True)
class PoolLauncher:
    """The launcher of a pool's spares, as in the jobs that will claim them."""

    container: str = ""  # name of the trainer; "": the first
    nproc_per_node: int = 1
    zygote: bool = True
    preload: tuple[str, ...] | None = None  # None: the launcher's default
    warmup: tuple[str, ...] = ()
    shared_memory: SharedMemory | None = None


@dataclass(frozen=True)
class Adoption:
    """The results of this operator's attempts to send a claimed spare its job."""

    since: float  # the first attempt
    adopted: bool = False
    failure: str = ""  # of the newest attempt


@dataclass(frozen=True)
class AutoSize:
    nodes: int | None = None  # None: counted
    failures_per_node_day: float | None = None  # None: the default, then history
    least: int = 1
    most: int = 16


@dataclass(frozen=True)
class Pool:
    namespace: str
    name: str
    uid: str
    generation: int
    resource_version: str
    deleting: bool
    replicas: int  # of a pool without autoSize
    template: Mapping[str, Any]  # of its pods: metadata and spec
    auto_size: AutoSize | None = None
    topology_key: str = ""  # of a node's label; "" if pods are not spread
    launcher: PoolLauncher | None = None  # of warm spares; None: the spares only reserve places
    status: PoolStatus = field(default_factory=PoolStatus)
    sidecar_settings: SidecarSettings = DEFAULT_SIDECAR_SETTINGS  # of its warm spares


@dataclass(frozen=True)
class PoolView:
    """The HotSparePool that a job names, as the job sees it."""

    name: str
    exists: bool
    desired: int = 0
    template: str = ""  # fingerprint of the newest one
    pods: Pods = NO_PODS
    definition: Pool | None = None  # of its newest spares
    secret: str = ""  # name of the Secret with the pool's key


@dataclass(frozen=True)
class Client:
    """A TrainingJob that names the pool, for its size."""

    nodes: frozenset[str]  # that its pods run on
    node_failures: tuple[tuple[str, float], ...] = ()  # that its coordinator reported: node ("": unknown), and time


@dataclass(frozen=True)
class ObservedPool:
    pool: Pool
    pods: Pods  # its own
    replacement_pods: Pods  # pods of jobs that have replaced pods of the pool
    orphaned_claims: tuple[Pod, ...] = field(
        default=(), kw_only=True
    )  # claimed pods of a deleted pool of the same name
    nodes: Mapping[str, Node]
    active_claimants: frozenset[str]  # uids of the jobs that may still need their claims
    entropy: str  # random text of this reconcile, for names
    keyring: Keyring = field(compare=False, repr=False)
    clients: tuple[Client, ...] = ()
    refusals: tuple[Refusal, ...] | None = None  # by the API server, of the last reconcile; None: no write was tried
    paused: Mapping[str, float] = field(default_factory=dict)  # as in Observed
    sidecar_image: str = ""  # of warm spares
    secret: str = ""  # name of the Secret with the pool's key; "" if its spares need none
    secret_writes: SecretWrites = NO_WRITES
    offenders: frozenset[str] = frozenset()  # nodes that have failed jobs before


def claimant(pod: Pod) -> str:
    """The uid of the job that has claimed this pod; "" if none has."""
    return pod.labels.get(names.LABEL_CLAIMED_BY_UID, "")


def claimed_at(pod: Pod) -> float:
    """0 if the annotation has no time."""
    return time_in(pod.annotations.get(names.ANNOTATION_CLAIMED_AT, "")) or 0.0


def pool_of(pod: Pod) -> str:
    """The name of the pool of a pool's pod."""
    return pod.labels.get(names.LABEL_POOL, "")


def template_of(pod: Pod) -> str:
    return pod.labels.get(names.LABEL_TEMPLATE_HASH, "")


def unclaimed(pods: Iterable[Pod]) -> list[Pod]:
    """Pods that are alive and not claimed."""
    return [pod for pod in pods if pod.alive and not claimant(pod)]


def node_is_well(nodes: Mapping[str, Node], name: str, now: float) -> bool:
    """False also before maintenance: the next pod there would soon be lost, or find the node cordoned."""
    node = nodes.get(name)
    return node is not None and node.ready and node.verdict_at(now) is None


def taken_by(pods: Pods) -> frozenset[str]:
    """Uids of the pool's pods that these pods have replaced."""
    replacements = pods.with_annotation(names.ANNOTATION_CLAIMED_POD_UID)
    return frozenset(filter(None, (pod.annotations[names.ANNOTATION_CLAIMED_POD_UID] for pod in replacements)))


def available(pods: Iterable[Pod], nodes: Mapping[str, Node], now: float) -> list[Pod]:
    """The pods that a job could claim now."""
    return [pod for pod in unclaimed(pods) if pod.ready and node_is_well(nodes, pod.node, now)]

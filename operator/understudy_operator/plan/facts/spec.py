"""A TrainingJob's spec as frozen facts, with the API's defaults in place; observe/read_spec.py reads it.

Two halves: the fields of a JobSet, under JobSet's names; and the world, which a job with a launcher has: the pods that
train as one, their program, and how they recover. The operator creates the pods of the world's replicatedJobs. Every
other replicatedJob becomes Jobs, and the Job controller creates their pods.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

from understudy_operator.plan.facts.launcher_choice import LauncherChoice
from understudy_protocol.enums import OnFailedUpdate

Raw = Mapping[str, Any]
DEFAULT_GROUP = "default"
#: In place within the window, if neither the job nor its torchrun sets it.
MAX_RESTARTS = 10


class DependencyStatus(Enum):
    """The state of another replicatedJob that a replicatedJob waits for."""

    READY = "Ready"
    COMPLETE = "Complete"


class SuccessOperator(Enum):
    ALL = "All"
    ANY = "Any"


class RestartStrategy(Enum):
    RECREATE = "Recreate"
    BLOCKING_RECREATE = "BlockingRecreate"
    IN_PLACE_RESTART = "InPlaceRestart"


class Action(Enum):
    """The consequence of a failed Job."""

    FAIL = "FailJobSet"
    RESTART = "RestartJobSet"
    RESTART_UNCOUNTED = "RestartJobSetAndIgnoreMaxRestarts"
    RESTART_JOB = "RestartJob"
    RESTART_JOB_UNCOUNTED = "RestartJobAndIgnoreMaxRestarts"


def _hashed(written: object) -> str:
    return hashlib.sha256(json.dumps(written, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Dependency:
    name: str  # of a replicatedJob
    status: DependencyStatus


@dataclass(frozen=True)
class Exclusive:
    """Each Job has a topology domain, such as a rack, of its own."""

    topology_key: str  # of a node's label
    node_selector: bool = False  # an administrator labels nodes for their Job; else pods have anti-affinity


@dataclass(frozen=True)
class ReplicatedJob:
    name: str
    template: Raw  # of a Job: metadata and spec, as written
    replicas: int = 1  # Jobs
    group: str = DEFAULT_GROUP
    depends_on: tuple[Dependency, ...] = ()
    exclusive: Exclusive | None = None

    @cached_property
    def template_hash(self) -> str:
        """The hash of the template of its Jobs, as the user wrote it."""
        return _hashed(self.template)

    @property
    def job_spec(self) -> Raw:
        spec: Raw = self.template["spec"]
        return spec

    @property
    def job_metadata(self) -> Raw:
        metadata: Raw = self.template.get("metadata", {})
        return metadata

    @property
    def pod_template(self) -> Raw:
        template: Raw = self.job_spec["template"]
        return template

    @property
    def parallelism(self) -> int:
        """The number of pods of each Job."""
        return int(self.job_spec.get("parallelism", 1))

    @property
    def concurrent_pods(self) -> int:
        """The number of pods of each Job that run at a time."""
        return min(self.parallelism, int(self.job_spec.get("completions", self.parallelism)))

    @property
    def pods(self) -> int:
        return self.replicas * self.parallelism


@dataclass(frozen=True)
class Network:
    hostnames: bool = True
    subdomain: str = ""  # "": the job's name
    publish_not_ready: bool = True


@dataclass(frozen=True)
class SuccessPolicy:
    operator: SuccessOperator = SuccessOperator.ALL
    targets: tuple[str, ...] = ()  # replicatedJobs; empty: all


@dataclass(frozen=True)
class FailureRule:
    name: str
    action: Action
    reasons: tuple[str, ...] = ()  # of a Job's failure; empty: any
    patterns: tuple[str, ...] = ()  # RE2, of its message; empty: any
    targets: tuple[str, ...] = ()  # replicatedJobs; empty: all


@dataclass(frozen=True)
class FailurePolicy:
    max_restarts: int = 0
    strategy: RestartStrategy = RestartStrategy.RECREATE
    rules: tuple[FailureRule, ...] = ()


@dataclass(frozen=True)
class CoordinatorPod:
    """JobSet's coordinator: all pods get the hostname of this pod. It is not Understudy's coordinator."""

    replicated_job: str
    job_index: int = 0
    pod_index: int = 0


@dataclass(frozen=True)
class VolumeClaim:
    """A claim that the job's pods share."""

    name: str  # of the volume, and the first part of the claim's name
    template: Raw  # metadata and spec
    retained: bool = False  # when the job is deleted


@dataclass(frozen=True)
class PodPosition:
    """The position of the pod for a group rank of the world."""

    group: ReplicatedJob
    job_index: int
    pod_index: int


@dataclass(frozen=True)
class SharedMemory:
    """A volume at /dev/shm of the trainer container."""

    size: str  # a quantity, such as 16Gi
    on_disk: bool = False


@dataclass(frozen=True)
class World:
    """The pods that train as one, their program, and how they recover."""

    groups: tuple[ReplicatedJob, ...]  # in the order of replicatedJobs
    nproc_per_node: int = 1
    container: str = ""  # name of the trainer; "": the first
    spares: int = 0
    spare_template: str = ""  # the replicatedJob whose template spares have; "": the first of the world
    spare_priority_class: str = ""  # of the spares' pods; "": the template's
    in_place_max_restarts: int = MAX_RESTARTS
    in_place_window_s: float = 3600.0
    in_place_max_per_pod: int = 1  # restarts in place that one pod's workers may cause within the window
    min_actives: int = 0  # members that an elastic job may shrink to; 0: it is not elastic
    spare_timeout_s: float = 30.0
    fence_s: float = 30.0  # 0: Off
    launcher_timeout_s: float = 15.0
    backoff_max_delay_s: float = 30.0  # 0: no pause after a round that failed at its start
    topology_key: str = ""  # of a node's label; "" if the location of spares does not matter
    pool: str = ""  # the HotSparePool from which the job claims more spares; "" if none
    mode: str = "Auto"  # or Wrap, Torchrun
    zygote: bool = True
    preload: tuple[str, ...] | None = None  # None: the launcher's default
    on_sigterm: str = "Auto"
    python: str = ""  # runs the launcher; "": the entry script finds one
    log_prefix: bool = True
    slow_rank_percent: int = 150  # as in JobShape; 0: not checked
    warmup: tuple[str, ...] = ()  # command that a spare runs once while it waits; empty: none
    host_network: bool = False  # whether its pods have hostNetwork
    nologin_path: str = ""  # a file whose existence marks a node as faulty; "" if none
    replica_groups: tuple[tuple[int, ...], ...] = ()  # group ranks with the same shards
    proactive_replacement: str = (
        "Off"  # or NextCheckpoint, Now: whether a member on a bad node is swapped before it fails
    )
    avoid_nodes: str = "Prefer"  # or Require, Off: how strictly new pods avoid nodes with findings
    worker_grace_period_s: float | None = (
        None  # of workers that a round replaces; None: the default of their environment
    )
    step_timeout_s: float = 0.0  # a worker without a step() for so long hangs; 0: no limit
    start_timeout_s: float = 0.0  # a round without a step() for so long after its start hangs; 0: no limit
    history_limit: int = 200  # Recovery objects that are kept
    snapshot_bytes: int = 0  # memory for the state of one rank; 0: no snapshots
    snapshot_every: int = 1  # snapshot.save() stores one of this many calls
    wanted_copies: int | None = None  # other pods that keep a copy of each snapshot; None: one, if there is one
    snapshot_path: str = ""  # a folder of the trainer container for snapshots; "": none is written to storage
    snapshot_path_every: int = 1000  # of so many steps, one is written there
    snapshot_path_keep: int = 2  # complete snapshots that are kept there
    script_fault_rounds: int = 0  # so many rounds whose ranks all fail alike before a step end the job; 0: no limit
    shared_memory: SharedMemory | None = None
    #: Fields besides replicatedJobs that can change only while the job is suspended, as the user wrote them.
    suspended_only: Raw = field(default_factory=dict)

    @cached_property
    def template_hash(self) -> str:
        """The hash of the fields that can change only while the job is suspended, as the user wrote them."""
        return _hashed([*([group.name, group.replicas, group.template] for group in self.groups), self.suspended_only])

    @property
    def actives(self) -> int:
        return sum(group.pods for group in self.groups)

    @property
    def has_several_members(self) -> bool:
        """Whether it can have more than one member at the same time."""
        return self.actives + self.spares > 1 or bool(self.pool)

    @property
    def snapshot_copies(self) -> int:
        """Other pods that keep a copy of each snapshot."""
        if not self.snapshot_bytes:
            return 0
        return min(1, self.actives - 1) if self.wanted_copies is None else self.wanted_copies

    @property
    def spare_group(self) -> ReplicatedJob:
        return next((group for group in self.groups if group.name == self.spare_template), self.groups[0])

    def position(self, index: int) -> PodPosition:
        """The position of a group rank: ranks count through the groups, their Jobs, and the pods of each."""
        remaining = index
        for group in self.groups:
            if remaining < group.pods:
                return PodPosition(group, *divmod(remaining, group.parallelism))
            remaining -= group.pods
        raise IndexError(f"group rank {index} of {self.actives}")


@dataclass(frozen=True)
class RolloutGateway:
    """The gateway in front of each rollout server, in its pod."""

    engine_port: int
    port: int = 8080
    waits_for_requests: bool = False  # whether an update waits for the requests in flight; else the gateway aborts them
    initial_version: str = ""  # of the weights at the start of servers, if clients may use these


@dataclass(frozen=True)
class RolloutsSpec:
    """The servers whose weights the workers update, in RL."""

    groups: tuple[str, ...]  # replicatedJobs
    on_failed_update: OnFailedUpdate = OnFailedUpdate.RESTART_JOB
    max_retries: int = 0
    gateway: RolloutGateway | None = None


@dataclass(frozen=True)
class JobSpec:
    replicated_jobs: tuple[ReplicatedJob, ...]
    world: World | None = None  # None without a launcher
    launcher: LauncherChoice = field(default_factory=LauncherChoice)
    network: Network = field(default_factory=Network)
    success: SuccessPolicy = field(default_factory=SuccessPolicy)
    failure: FailurePolicy | None = None
    in_order: bool = False  # a replicatedJob starts once the previous one is ready
    suspend: bool = False
    coordinator: CoordinatorPod | None = None
    managed_by: str = ""
    ttl_s: float | None = None  # seconds from the end of the job to its deletion
    claims: tuple[VolumeClaim, ...] = ()
    rollouts: RolloutsSpec | None = None
    drills_allowed: bool = False  # users may break it on purpose

    @property
    def children(self) -> tuple[ReplicatedJob, ...]:
        """The replicatedJobs that become Jobs."""
        world_names = () if self.world is None else tuple(group.name for group in self.world.groups)
        return tuple(group for group in self.replicated_jobs if group.name not in world_names)

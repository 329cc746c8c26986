"""A TrainingJob's spec as frozen facts, with the API's defaults in place; observe/read_spec.py reads it.

Two halves: what a JobSet has too, under JobSet's names, and the world, which a job has when it has a launcher: the pods
that train as one, what they run, and how they recover. The pods of the world's replicatedJobs are ours; every other
replicatedJob becomes Jobs, whose pods are the Job controller's.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

from understudy_protocol.enums import OnFailedUpdate

Raw = Mapping[str, Any]
DEFAULT_GROUP = "default"


class DependencyStatus(Enum):
    """What a replicatedJob waits for in another one."""

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
    """What a failed Job leads to."""

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
    """Each Job has a topology domain, such as a rack, to itself."""

    topology_key: str  # of a node's label
    node_selector: bool = False  # nodes are labelled for their Job by somebody; else pods repel each other


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
        """What its Jobs are made of, as the user wrote it, hashed."""
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
        """Pods of each Job."""
        return int(self.job_spec.get("parallelism", 1))

    @property
    def concurrent_pods(self) -> int:
        """Pods of each Job that run at a time."""
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
    """JobSet's coordinator: a pod whose hostname all pods are told. It has nothing to do with ours."""

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
    """Where a group rank of the world has its pod."""

    group: ReplicatedJob
    job_index: int
    pod_index: int


@dataclass(frozen=True)
class World:
    """The pods that train as one, what runs in them, and how they recover."""

    groups: tuple[ReplicatedJob, ...]  # in the order of replicatedJobs
    nproc_per_node: int = 1
    container: str = ""  # of the trainer; "": the first
    spares: int = 0
    spare_template: str = ""  # the replicatedJob whose template spares have; "": the first of the world
    spare_priority_class: str = ""  # of the spares' pods; "": the template's
    in_place_max_restarts: int = 10
    in_place_window_s: float = 3600.0
    in_place_max_per_pod: int = 1  # restarts in place that one pod's workers may cost within the window
    min_actives: int = 0  # members that an elastic job may shrink to; 0: it is not elastic
    spare_timeout_s: float = 30.0
    fence_s: float = 30.0  # 0: Off
    launcher_timeout_s: float = 15.0
    backoff_max_s: float = 30.0  # 0: rounds that fail at their start follow each other at once
    topology_key: str = ""  # of a node's label; "" if spares are taken wherever they are
    pool: str = ""  # the HotSparePool that more spares are claimed of; "" if of none
    mode: str = "Wrap"  # or Torchrun
    zygote: bool = True
    preload: tuple[str, ...] | None = None  # None: the launcher's own
    on_sigterm: str = "Auto"
    log_prefix: bool = True
    warmup: tuple[str, ...] = ()  # what a spare runs once before it may be needed; empty: nothing
    nologin_path: str = ""  # a file on the nodes that makes them faulty; "" if none does
    replica_groups: tuple[tuple[int, ...], ...] = ()  # group ranks that hold the same shards
    proactive: str = "Off"  # or NextCheckpoint, Now: whether a member on a bad node is swapped before it fails
    avoid_nodes: str = "Prefer"  # or Require, Off: how new pods are kept off nodes that something is held against
    worker_grace_s: float | None = None  # of workers that a round replaces; None: as their environment needs it
    step_timeout_s: float = 0.0  # without a step() for so long a worker hangs; 0: never
    start_timeout_s: float = 0.0  # a round that makes no step() for so long after its start hangs; 0: none does
    script_fault_rounds: int = 0  # so many rounds in which all ranks fail alike before a step end the job; 0: none do

    @cached_property
    def template_hash(self) -> str:
        """What its pods are made of, as the user wrote it, hashed."""
        return _hashed([[group.name, group.replicas, group.template] for group in self.groups])

    @property
    def actives(self) -> int:
        return sum(group.pods for group in self.groups)

    @property
    def spare_group(self) -> ReplicatedJob:
        return next((group for group in self.groups if group.name == self.spare_template), self.groups[0])

    def position(self, index: int) -> PodPosition:
        """Of a group rank: ranks count through the groups, their Jobs, and the pods of each."""
        remaining = index
        for group in self.groups:
            if remaining < group.pods:
                return PodPosition(group, *divmod(remaining, group.parallelism))
            remaining -= group.pods
        raise IndexError(f"group rank {index} of {self.actives}")


@dataclass(frozen=True)
class RolloutGateway:
    """In front of each rollout server, in its pod."""

    engine_port: int
    port: int = 8080
    awaits: bool = False  # requests under way when an update begins; else they are ended
    initial_version: str = ""  # of the weights that servers start with, if these may be asked


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
    network: Network = field(default_factory=Network)
    success: SuccessPolicy = field(default_factory=SuccessPolicy)
    failure: FailurePolicy | None = None
    in_order: bool = False  # a replicatedJob starts once the one before is ready
    suspend: bool = False
    coordinator: CoordinatorPod | None = None
    managed_by: str = ""
    ttl_s: float | None = None  # after its end the job is deleted
    claims: tuple[VolumeClaim, ...] = ()
    rollouts: RolloutsSpec | None = None

    @property
    def children(self) -> tuple[ReplicatedJob, ...]:
        """Those that become Jobs."""
        world_names = () if self.world is None else tuple(group.name for group in self.world.groups)
        return tuple(group for group in self.replicated_jobs if group.name not in world_names)

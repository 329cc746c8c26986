"""Jobs, pods, nodes and pools as the views need them. Pure. `reading` gets them from objects of the API."""

from collections.abc import Mapping
from dataclasses import dataclass

from understudy_protocol import pod as names
from understudy_protocol.goodput import Part

TRAINING_JOB, INJECTED_JOB = "TrainingJob", "InjectedJob"


@dataclass(frozen=True)
class Condition:
    type: str
    status: str
    reason: str
    message: str
    at: float | None

    @property
    def is_true(self) -> bool:
        return self.status == "True"


@dataclass(frozen=True)
class Cause:
    rank: int | None = None
    pod: str = ""
    node: str = ""
    exit_code: int | None = None
    signal: str = ""
    message: str = ""


@dataclass(frozen=True)
class Recovery:
    """A fault and the recovery from it: an object of kind Recovery, or an entry of a job's status.

    Times in Unix seconds. pause_s: how long training paused; None while it is not known. Only the object has traceback
    (lines), consequences (failures that followed), outcome, the losses, and owners (uids of its ownerReferences: unlike
    a label, users cannot copy them).
    """

    fault: str
    strategy: str = ""
    reason: str = ""
    round: int | None = None
    cause: Cause = Cause()
    detected_at: float | None = None
    running_at: float | None = None
    resumed_at: float | None = None
    pause_s: float | None = None
    outcome: str = ""
    traceback: tuple[str, ...] = ()
    consequences: tuple[Cause, ...] = ()
    consequence_count: int = 0
    restored_from: str = ""
    restore_reason: str = ""
    lost_steps: int | None = None
    gpu_seconds_lost: float | None = None
    rank_seconds_lost: float | None = None
    owners: tuple[str, ...] = ()

    @property
    def ended_at(self) -> float | None:
        return self.resumed_at if self.resumed_at is not None else self.running_at

    @property
    def is_open(self) -> bool:
        return self.ended_at is None and not self.outcome


@dataclass(frozen=True)
class AvoidedNode:
    node: str
    source: str
    fault_class: str
    reason: str
    until: float | None


@dataclass(frozen=True)
class LostTime:
    fault: str
    node: str
    seconds: float
    gpu_seconds: float | None
    rank_seconds: float | None


@dataclass(frozen=True)
class Goodput:
    """The parts of the time of a job. seconds: of each part until `since`, by field. part: None after the job's end.

    is_repeated_unknown: productive time may contain repeated steps.
    """

    since: float
    part: Part | None
    seconds: Mapping[str, float]
    is_repeated_unknown: bool
    lost: tuple[LostTime, ...]


@dataclass(frozen=True)
class DrillRecord:
    """The operator's record of a drill. request: the annotation that asked for it. refusal: "" if it began."""

    request: str
    at: float | None
    pods: tuple[str, ...]
    node: str
    refusal: str


@dataclass(frozen=True)
class SavedSnapshot:
    step: int
    at: float  # when it was saved


@dataclass(frozen=True)
class Job:
    """A TrainingJob or an InjectedJob. recoveries: those of its status, the oldest first."""

    kind: str
    namespace: str
    name: str
    uid: str
    created_at: float | None
    target: str
    phase: str
    conditions: tuple[Condition, ...]
    started_at: float | None
    completed_at: float | None
    members_desired: int
    members_active: int
    members_ready: int
    spares_desired: int
    spares_ready: int
    spares_claimed: int
    round: int | None
    coordinator: str
    recoveries_by_strategy: tuple[int, ...]
    last_recovery: Recovery | None
    recoveries: tuple[Recovery, ...]
    step: int | None
    is_step_counted: bool  # from the start of the round
    total_steps: int | None
    stepped_at: float | None
    snapshot: SavedSnapshot | None  # in the memory of the pod of rank 0
    copied_snapshot: SavedSnapshot | None  # that other pods have got from it
    goodput: Goodput | None
    avoided_nodes: tuple[AvoidedNode, ...]
    pool: str
    restarts: int
    allows_drills: bool
    drill: DrillRecord | None

    def condition(self, kind: str) -> Condition | None:
        return next((condition for condition in self.conditions if condition.type == kind), None)

    def is_true(self, kind: str) -> bool:
        found = self.condition(kind)
        return found is not None and found.is_true

    @property
    def has_ended(self) -> bool:
        return self.is_true("Completed") or self.is_true("Failed")

    @property
    def is_training(self) -> bool:
        """Whether its pods have started, and have not ended."""
        return self.phase in ("Running", "Recovering")

    @property
    def pod_selector(self) -> str:
        if self.kind == TRAINING_JOB:
            return f"{names.LABEL_JOB_UID}={self.uid}"
        return f"{names.LABEL_JOB}={self.name}"

    @property
    def recovery_selector(self) -> str:
        return f"{names.LABEL_JOB_UID}={self.uid}"


@dataclass(frozen=True)
class Pod:
    """state: one word, as kubectl's STATUS. nproc: workers of the pod; 0: not known."""

    namespace: str
    name: str
    uid: str
    job: str
    job_uid: str  # a pool's pod has the uid of the pool
    role: str
    group_rank: int | None
    nproc: int
    node: str
    state: str
    message: str
    is_ready: bool
    has_ended: bool
    is_coordinator: bool
    created_at: float | None
    pool: str
    claimed_by: str
    trainer: str  # the name of the trainer container

    @property
    def ranks(self) -> range | None:
        if self.group_rank is None or not self.nproc:
            return None
        return range(self.group_rank * self.nproc, (self.group_rank + 1) * self.nproc)


@dataclass(frozen=True)
class Event:
    """An Event about an object of ours. at: when it was reported last. times: how often."""

    about_uid: str
    at: float | None
    reason: str
    message: str
    times: int
    is_warning: bool


@dataclass(frozen=True)
class Node:
    name: str
    is_ready: bool
    is_unschedulable: bool
    faulty: str
    maintenance: str
    expires: str


@dataclass(frozen=True)
class Pool:
    namespace: str
    name: str
    uid: str
    desired: int
    ready: int
    claimed: int
    available: int
    conditions: tuple[Condition, ...]
    created_at: float | None


@dataclass(frozen=True)
class Fleet:
    """All that a dashboard shows, at one moment.

    recoveries: objects of kind Recovery. nodes: None if not readable. is_complete: everything was listed. warnings: why
    something is missing or old.
    """

    jobs: tuple[Job, ...] = ()
    pods: tuple[Pod, ...] = ()
    recoveries: tuple[Recovery, ...] = ()
    pools: tuple[Pool, ...] = ()
    events: tuple[Event, ...] = ()
    nodes: tuple[Node, ...] | None = None
    is_complete: bool = True
    warnings: tuple[str, ...] = ()

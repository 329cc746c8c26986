"""Jobs, pods, nodes and pools as the views need them. Pure. `reading` gets them from objects of the API."""

from dataclasses import dataclass

from understudy_cli import fields
from understudy_cli.fields import Raw
from understudy_protocol import pod as names

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
    (lines), consequences (failures that followed), outcome, and the losses.
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
class Drill:
    """The operator's record of a drill. request: the annotation that asked for it. refusal: "" if it began."""

    request: str
    at: float | None
    pods: tuple[str, ...]
    node: str
    refusal: str


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
    total_steps: int | None
    stepped_at: float | None
    avoided_nodes: tuple[AvoidedNode, ...]
    pool: str
    restarts: int
    allows_drills: bool
    drill: Drill | None

    def condition(self, kind: str) -> Condition | None:
        return next((condition for condition in self.conditions if condition.type == kind), None)

    def is_true(self, kind: str) -> bool:
        found = self.condition(kind)
        return found is not None and found.is_true

    def owns(self, raw: Raw) -> bool:
        """Whether the object belongs to this job, as its ownerReferences say: labels and names can be copied."""
        owners = fields.entries(raw, "metadata", "ownerReferences")
        return any(fields.text(owner, "uid") == self.uid for owner in owners)

    @property
    def has_ended(self) -> bool:
        return self.is_true("Completed") or self.is_true("Failed")

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

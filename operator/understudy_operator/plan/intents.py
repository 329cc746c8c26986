"""The operator's intents: values, so that a plan can be read, compared and tested. apply/ executes them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never

from understudy_operator.plan.facts.recovery_objects import RecoveryFields
from understudy_operator.plan.facts.status import JobStatus, PoolStatus
from understudy_protocol.enums import Term
from understudy_protocol.launcher import TakeOver
from understudy_protocol.observer import Appoint, DrainRequest, DrillOrder, End, NodeFact, Observe
from understudy_protocol.pod import JobShape

Manifest = Mapping[str, Any]
#: A pod's message may have so many bytes, and POD_BYTES more for each pod of the job: a snapshot lists all of them.
MESSAGE_BYTES, POD_BYTES = 1 << 20, 1 << 10


@dataclass(frozen=True)
class Create:
    """Create an object. If it exists already, that is no error."""

    manifest: Manifest


@dataclass(frozen=True, eq=False, match_args=False)
class _Creation:
    """build: the manifest, or a function that makes it whenever it is used.

    The manifests of thousands of objects take seconds, in which the operator would do nothing for other jobs, and more
    memory than it has: the template in one TrainingJob may have a megabyte.
    """

    __match_args__ = ("manifest", "reason")
    build: Manifest | Callable[[], Manifest] = field(repr=False)
    reason: str

    @property
    def manifest(self) -> Manifest:
        return self.build() if callable(self.build) else self.build

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and (self.manifest, self.reason) == (other.manifest, other.reason)


class CreatePod(_Creation):
    """Create a pod."""


@dataclass(frozen=True)
class DeletePod:
    name: str
    uid: str
    grace_s: int | None  # None: the pod's own; 0: remove the object at once
    reason: str
    version: str  # as observed: the API server rejects the deletion of a pod that has changed since


@dataclass(frozen=True)
class PatchPod:
    """Labels and annotations to set; None removes one."""

    name: str
    labels: Mapping[str, str | None] = field(default_factory=dict)
    annotations: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class ReleasePod:
    """Remove a finalizer from a pod that is being deleted, unless the pod has changed since it was read: the patch
    writes the complete list.
    """

    name: str
    uid: str
    finalizers: tuple[str, ...]  # the remaining ones
    reason: str
    version: str


PodIntent = CreatePod | DeletePod | PatchPod | ReleasePod


class CreateJob(_Creation):
    """Create a child Job. If the job's Job of that name exists already, that is no error."""


@dataclass(frozen=True)
class DeleteJob:
    """Delete a child Job after its pods."""

    name: str
    uid: str
    reason: str


@dataclass(frozen=True)
class PatchJob:
    name: str
    patch: Manifest  # a merge patch
    reason: str
    restarts_clock: bool = False  # its startTime has to be removed first, or the API server keeps its template


JobIntent = CreateJob | DeleteJob | PatchJob


@dataclass(frozen=True)
class Callee:
    """A pod whose sidecar may be the leader, or know it."""

    pod_uid: str
    address: str
    appoint: Appoint | None = None  # makes it the leader
    end: End | None = None  # informs it that the job is closed; without both it is asked for the leader

    @property
    def epoch(self) -> int:
        """The epoch of its appointment; 0 without one."""
        return 0 if self.appoint is None else self.appoint.epoch

    @property
    def greeting(self) -> Appoint | End | Observe:
        """The first message on its connection."""
        return self.appoint or self.end or Observe()


@dataclass(frozen=True)
class Follow:
    """Find the leader, and stay connected to it. plan/leadership/search.py has the rules."""

    term: Term  # the newest in status: an older leader does not count
    first: tuple[Callee, ...]  # to connect to first, and to stay connected to until a leader is found
    others: tuple[Callee, ...] = ()  # to connect to in turns, with the remaining connections
    nodes: tuple[NodeFact, ...] = ()  # for the coordinator, as are the drains
    drains: tuple[DrainRequest, ...] = ()
    #: Of all pods that have not ended: their addresses, as the API server reports them, by pod uid.
    running: Mapping[str, str] = field(default_factory=dict)
    message_bytes: int = MESSAGE_BYTES  # the largest accepted message of a pod
    drill: DrillOrder | None = None  # for the coordinator
    ended_pods: tuple[str, ...] = ()  # for the coordinator: uids


@dataclass(frozen=True)
class Unfollow:
    """The job needs no coordinator any more. end: the final message to the leader."""

    end: End | None = None


@dataclass(frozen=True)
class Event:
    """A Kubernetes Event on the TrainingJob. `reason` is CamelCase."""

    type: str  # Normal | Warning
    reason: str
    message: str
    key: str = ""  # identifies the recorded fact: the event is written once under its name; "": nothing is recorded


@dataclass(frozen=True)
class RecoveryHistory:
    """The Recovery objects that the faults in status should have, by name; and how many of the job's are kept."""

    objects: Mapping[str, RecoveryFields]
    limit: int


@dataclass(frozen=True)
class ClaimPod:
    """Claim this pod of a pool for the job, unless the pod has changed since it was read."""

    name: str
    uid: str
    version: str
    finalizers: tuple[str, ...]  # the present ones
    job_uid: str
    job_name: str
    at: float
    reason: str


@dataclass(frozen=True)
class ReleaseClaim:
    """Remove the claim and its finalizer, unless the pod has changed since it was read."""

    name: str
    uid: str
    version: str
    finalizers: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class ClaimWarm:
    """Make this pod of a pool one of the job's, in one write, unless the pod has changed since it was read."""

    name: str
    uid: str
    version: str
    job_uid: str
    labels: Mapping[str, str | None]
    annotations: Mapping[str, str | None]
    owner: Manifest  # the job, in place of the pool
    reason: str


ClaimIntent = ClaimPod | ClaimWarm | ReleaseClaim


@dataclass(frozen=True)
class AdoptSpare:
    """Send a pod that the job has claimed Warm its job, until the pod has received it."""

    pod_uid: str
    address: str
    pool_uid: str
    shape: JobShape
    coordinator: str
    take_over: TakeOver


@dataclass(frozen=True)
class DeleteSecret:
    """Delete a Secret that no pod of the job mounts any more. If it does not exist, that is no error."""

    name: str


@dataclass(frozen=True)
class DryRun:
    """Send Plan.dry_runs to the API server as dry runs."""


@dataclass(frozen=True)
class Remove:
    """Delete the TrainingJob itself."""


#: Requests that the API server may reject, except those for status, which reports the rejection, and for events.
Intent = Create | DeleteSecret | DryRun | JobIntent | ClaimIntent | PodIntent | Remove


CREATE_POD, DELETE_SECRET = "create Pod", "delete Secret"


def intent_key(intent: Intent) -> str:
    """The key under which a rejection pauses the intent. All new pods of a job have one key, and so have new Jobs."""
    match intent:
        case Create(manifest):
            return f"create {manifest['kind']} {manifest['metadata']['name']}"
        case CreatePod():
            return CREATE_POD
        case CreateJob():
            return "create Job"
        case DryRun():
            return "check"
        case Remove():
            return "delete the job"
        case PatchJob(name):
            return f"patch Job {name}"
        case DeleteSecret(name):
            return f"{DELETE_SECRET} {name}"
        case DeleteJob(name) | DeletePod(name):
            return f"delete {type(intent).__name__.removeprefix('Delete')} {name}"
        case PatchPod(name):
            return f"patch Pod {name}"
        case ClaimPod(name) | ClaimWarm(name):
            return claim_key(name)
        case ReleasePod(name) | ReleaseClaim(name):
            return f"release Pod {name}"
        case _:
            assert_never(intent)


def claim_key(pod: str) -> str:
    return f"claim Pod {pod}"


@dataclass(frozen=True)
class PoolPlan:
    """The changes for a pool, in this order; events follow once status is written."""

    objects: tuple[Create, ...] = ()
    status: PoolStatus | None = None  # the whole status, if it changes
    releases: tuple[ReleaseClaim, ...] = ()
    pods: tuple[CreatePod | DeletePod, ...] = ()
    events: tuple[Event, ...] = ()
    requeue_after_s: float | None = None
    paused_writes: frozenset[str] = frozenset()  # wanted, but rejected too short a time ago: intent_key()

    @property
    def writes(self) -> tuple[Intent, ...]:
        return (*self.objects, *self.releases, *self.pods)


@dataclass(frozen=True)
class Plan:
    """Executed in this order: adoptions first, because they wait for no write; status before the appointment that it
    records. Events and Recovery objects are sent once status is written, even if a later write fails.
    """

    adopt: tuple[AdoptSpare, ...] = ()
    dry_runs: tuple[Manifest, ...] = ()  # to check with the API server, and not to create
    objects: tuple[Create | DeleteSecret, ...] = ()
    status: JobStatus | None = None  # the whole status, if it changes
    jobs: tuple[JobIntent, ...] = ()
    claims: tuple[ClaimIntent, ...] = ()
    pods: tuple[PodIntent, ...] = ()
    link: Follow | Unfollow | None = None
    events: tuple[Event, ...] = ()
    recoveries: RecoveryHistory | None = None  # None: no Recovery object may miss a write
    remove: str = ""  # why to delete the TrainingJob itself; "": keep it
    requeue_after_s: float | None = None  # look again, although nothing may have changed
    paused_writes: frozenset[str] = frozenset()  # wanted, but rejected too short a time ago: intent_key()

    @property
    def writes(self) -> tuple[Intent, ...]:
        dry_runs, remove = (DryRun(),) * bool(self.dry_runs), (Remove(),) * bool(self.remove)
        return (*dry_runs, *self.objects, *self.jobs, *self.claims, *self.pods, *remove)

"""What the operator means to do: values, so that a plan can be read, compared and tested. apply/ executes them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never

from understudy_protocol.enums import Term
from understudy_protocol.launcher import TakeOver
from understudy_protocol.observer import Appoint, End, NodeFact, Observe
from understudy_protocol.pod import JobShape

Manifest = Mapping[str, Any]
#: A message of a pod may have so many bytes, and POD_BYTES more for each pod of the job: a snapshot lists all of them.
MESSAGE_BYTES, POD_BYTES = 1 << 20, 1 << 10


@dataclass(frozen=True)
class Create:
    """Create an object; that it already exists is fine."""

    manifest: Manifest


@dataclass(frozen=True)
class CreatePod:
    manifest: Manifest
    reason: str


@dataclass(frozen=True)
class DeletePod:
    name: str
    uid: str
    grace_s: int | None  # None: the pod's own; 0: remove the object at once
    reason: str
    version: str  # as it was seen: the API server refuses the deletion of a pod that has changed since


@dataclass(frozen=True)
class PatchPod:
    """Labels and annotations to set; None removes one."""

    name: str
    labels: Mapping[str, str | None] = field(default_factory=dict)
    annotations: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class ReleasePod:
    """Take a finalizer from a pod that is being deleted, unless anything about it has changed since it was read: a
    patch writes all that stay.
    """

    name: str
    uid: str
    finalizers: tuple[str, ...]  # that stay
    reason: str
    version: str


PodIntent = CreatePod | DeletePod | PatchPod | ReleasePod


@dataclass(frozen=True)
class CreateJob:
    """A child Job. That one of its name exists is fine if it is the job's."""

    manifest: Manifest
    reason: str


@dataclass(frozen=True)
class DeleteJob:
    """A child Job, and its pods before it."""

    name: str
    uid: str
    reason: str


@dataclass(frozen=True)
class PatchJob:
    name: str
    patch: Manifest  # to merge
    reason: str
    restarts_clock: bool = False  # its startTime has to go first, or the API server keeps its template


JobIntent = CreateJob | DeleteJob | PatchJob


@dataclass(frozen=True)
class Callee:
    """A pod whose sidecar may be in office, or know who is."""

    pod_uid: str
    ip: str
    appoint: Appoint | None = None  # to take office with
    end: End | None = None  # the job is closed, and it may not know; without either it is asked who is in office

    @property
    def epoch(self) -> int:
        """That it is appointed in; 0 if in none."""
        return 0 if self.appoint is None else self.appoint.epoch

    @property
    def greeting(self) -> Appoint | End | Observe:
        """The first words on its line."""
        return self.appoint or self.end or Observe()


@dataclass(frozen=True)
class Follow:
    """Find who is in office, and stay on the line. plan/search.py says how."""

    term: Term  # the newest that status tells: an older one does not count
    first: tuple[Callee, ...]  # whom to call first, and to keep on the line until somebody is found
    others: tuple[Callee, ...] = ()  # whom to call in turns, as far as there are lines left
    nodes: tuple[NodeFact, ...] = ()  # for the coordinator
    #: Of all pods that have not ended: their addresses, as the API server reports them, by pod uid.
    running: Mapping[str, str] = field(default_factory=dict)
    message_bytes: int = MESSAGE_BYTES  # the most that a message of a pod may have


@dataclass(frozen=True)
class Unfollow:
    """The job needs no coordinator any more. end: what the one in office is told as a farewell."""

    end: End | None = None


@dataclass(frozen=True)
class Event:
    """A Kubernetes Event on the TrainingJob. `reason` is CamelCase."""

    type: str  # Normal | Warning
    reason: str
    message: str
    key: str = ""  # what status records of it: the event is written once under a name of this; "" if status has nothing


@dataclass(frozen=True)
class ClaimPod:
    """Make this pod of a pool the job's, unless anything about the pod has changed since it was read."""

    name: str
    uid: str
    version: str
    finalizers: tuple[str, ...]  # that it has
    job_uid: str
    job_name: str
    at: float
    reason: str


@dataclass(frozen=True)
class ReleaseClaim:
    """Take the claim and its finalizer off, unless anything about the pod has changed since it was read."""

    name: str
    uid: str
    version: str
    finalizers: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class ClaimWarm:
    """Make this pod of a pool one of the job's, in one write; not if anything of it has changed since it was read."""

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
    """Tell a pod that the job has claimed Warm whose it is, until it has heard."""

    pod_uid: str
    ip: str
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
    """Ask what the API server would say to Plan.checks."""


@dataclass(frozen=True)
class Remove:
    """Delete the TrainingJob itself."""


#: What the API server may refuse, but for status, which tells of it, and for events.
Intent = Create | DeleteSecret | DryRun | JobIntent | ClaimIntent | PodIntent | Remove


CREATE_POD, DELETE_SECRET = "create Pod", "delete Secret"


def intent_key(intent: Intent) -> str:
    """What a refusal of it holds up. New pods have a new name each time, and one quota; so have Jobs."""
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
    """What is to be done about a pool, in this order; the events once status is written."""

    objects: tuple[Create, ...] = ()
    status: Manifest | None = None  # the whole status, if it changes
    releases: tuple[ReleaseClaim, ...] = ()
    pods: tuple[CreatePod | DeletePod, ...] = ()
    events: tuple[Event, ...] = ()
    requeue_after_s: float | None = None
    paused_writes: frozenset[str] = frozenset()  # what is wanted, and was refused too short a time ago: intent_key()

    @property
    def writes(self) -> tuple[Intent, ...]:
        return (*self.objects, *self.releases, *self.pods)


@dataclass(frozen=True)
class Plan:
    """Executed in this order: who is adopted first, for that waits for no write; status before the appointment that it
    records. Events are sent from the moment that status is written, whatever fails after it.
    """

    adopt: tuple[AdoptSpare, ...] = ()
    dry_runs: tuple[Manifest, ...] = ()  # what the API server would say to creating these; nothing is made of them
    objects: tuple[Create | DeleteSecret, ...] = ()
    status: Manifest | None = None  # the whole status, if it changes
    jobs: tuple[JobIntent, ...] = ()
    claims: tuple[ClaimIntent, ...] = ()
    pods: tuple[PodIntent, ...] = ()
    link: Follow | Unfollow | None = None
    events: tuple[Event, ...] = ()
    remove: str = ""  # why the TrainingJob itself is to be deleted; "" if it is not
    requeue_after_s: float | None = None  # look again, although nothing may have changed
    paused_writes: frozenset[str] = frozenset()  # what is wanted, and was refused too short a time ago: intent_key()

    @property
    def writes(self) -> tuple[Intent, ...]:
        dry_runs, remove = (DryRun(),) * bool(self.dry_runs), (Remove(),) * bool(self.remove)
        return (*dry_runs, *self.objects, *self.jobs, *self.claims, *self.pods, *remove)

"""The status of a TrainingJob, an InjectedJob and a HotSparePool: its fields, its reader, and its writer `written`.

The operator writes status, and continues from it after a restart. Users with the rights and operators of other versions
may write it, too. So the reader checks each field. It ignores a field of another type, as if it had never been written.
In a list, it ignores single entries. The next reconcile writes the whole status again.

A field without a value is not written. Fields with `default_factory` are always written, also with that default.
"""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar, get_args, get_origin

import msgspec

from understudy_operator.plan.times.rfc3339 import Time, parse_time
from understudy_protocol.enums import Drill, Fault, Strategy, Tier
from understudy_protocol.goodput import Part

S = TypeVar("S", bound="Record")
#: The strategy of a recovery by a restart of the whole job, which no coordinator survives.
JOB_RESTART = "JobRestart"
#: The largest integer that every JSON reader represents exactly.
_MOST = 2**53
#: The largest int32, which counts have in the CRD.
MAX_COUNT = 2**31 - 1
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
Number = Annotated[int, msgspec.Meta(ge=-1, le=_MOST)]
Signed = Annotated[int, msgspec.Meta(ge=-_MOST, le=_MOST)]
Seconds = Annotated[float, msgspec.Meta(ge=-_MOST, le=_MOST)]
StrategyName = Annotated[str, msgspec.Meta(pattern=f"^({'|'.join((*Strategy, JOB_RESTART))})$")]
TierName = Annotated[str, msgspec.Meta(pattern=f"^({'|'.join(Tier)})$")]
#: The end of a job, in JobSet's spelling; "" before it has ended.
End = Annotated[str, msgspec.Meta(pattern="^(Completed|Failed)?$")]
#: A number as text, such as 0.125.
Decimal = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,12}(\.[0-9]{1,12})?$")]


class Record(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An object in a status. The names in the API are in camel case."""


class Condition(Record, frozen=True):
    type: str
    status: str
    reason: str
    message: str
    last_transition_time: Time
    observed_generation: Number | None = None

    @property
    def is_true(self) -> bool:
        return self.status == "True"


class ReplicatedJobStatus(Record, frozen=True):
    name: str
    ready: Count = msgspec.field(default_factory=int)
    succeeded: Count = msgspec.field(default_factory=int)
    failed: Count = msgspec.field(default_factory=int)
    active: Count = msgspec.field(default_factory=int)
    suspended: Count = msgspec.field(default_factory=int)
    job_restarts: tuple[Count, ...] = ()  # by index
    job_restarts_count_towards_max: tuple[Count, ...] = ()


class Members(Record, frozen=True):
    desired: Count = msgspec.field(default_factory=int)
    active: Count = msgspec.field(default_factory=int)
    ready: Count = msgspec.field(default_factory=int)


class Spares(Record, frozen=True):
    desired: Count = msgspec.field(default_factory=int)
    ready: Count = msgspec.field(default_factory=int)
    claimed: Count = msgspec.field(default_factory=int)


class PromotedSpare(Record, frozen=True):
    pod: str
    group_rank: Count


class CoordinatorStatus(Record, frozen=True):
    epoch: Number = 0
    term: Number = 0
    pod_name: str = ""
    pod_uid: str = msgspec.field(default="", name="podUID")
    former_epoch: Number = 0  # the name of the world's attempt: the newest epoch before it
    previous_attempt: Number | None = None
    address: str = ""  # host:port of the coordinator's Service, which the newest pods have


class UpdateFailureStatus(Record, frozen=True):
    update: str
    version: str = msgspec.field(default_factory=str)
    message: str = msgspec.field(default_factory=str)
    consecutive_failures: Count = msgspec.field(default_factory=int)
    at: Time | None = None


class RolloutsStatus(Record, frozen=True):
    fresh: Count = msgspec.field(default_factory=int)
    updating: Count = msgspec.field(default_factory=int)
    uncertain: Count = msgspec.field(default_factory=int)
    version: str = ""
    failure: UpdateFailureStatus | None = None
    restarted_for_update: str = ""  # the failed update for which rollouts were recreated


class StrategyCounts(Record, frozen=True):
    in_place: Count | None = None
    spare_swap: Count | None = None
    pod_recreate: Count | None = None
    job_restart: Count | None = None  # counted by the operator, because no coordinator outlives it


class CauseStatus(Record, frozen=True):
    rank: Signed | None = None
    pod: str = msgspec.field(default_factory=str)
    node: str = msgspec.field(default_factory=str)
    exit_code: Signed | None = None
    signal: str | None = None
    message: str = msgspec.field(default_factory=str)


class RecoveryStatus(Record, frozen=True):
    fault: Fault
    detected_at: Time
    strategy: StrategyName | None = None
    reason: str = ""
    round: Number = msgspec.field(default_factory=lambda: -1)
    cause: CauseStatus = msgspec.field(default_factory=CauseStatus)
    running_at: Time | None = None
    resumed_at: Time | None = None
    pause_seconds: Seconds | None = None
    restored_from: TierName | None = None
    restore_reason: str = ""
    lost_steps: Count | None = None

    @property
    def is_open(self) -> bool:
        """Whether the recovery has not ended."""
        return self.resumed_at is None and self.running_at is None


class SnapshotStatus(Record, frozen=True):
    step: Signed
    at: Time


class ProgressStatus(Record, frozen=True):
    step: Signed = msgspec.field(default_factory=int)
    total: Signed | None = None
    at: Time | None = None
    is_counted: bool = msgspec.field(default=False, name="counted")  # from the start of the round
    snapshot: SnapshotStatus | None = None
    copied_snapshot: SnapshotStatus | None = None


class PartSeconds(Record, frozen=True):
    """The parts of a job's time: see understudy_protocol/goodput.py."""

    productive: Seconds = 0.0
    repeated: Seconds = 0.0
    detection: Seconds = 0.0
    restart: Seconds = 0.0
    capacity: Seconds = 0.0
    starting: Seconds = 0.0
    suspended: Seconds = 0.0
    ending: Seconds = 0.0
    without_steps: Seconds = 0.0
    unknown: Seconds = 0.0

    @classmethod
    def of(cls, seconds: Mapping[Part, float]) -> "PartSeconds":
        return cls(**{_ATTRIBUTES[part]: round(value, 6) for part, value in seconds.items() if value})

    def by_part(self) -> dict[Part, float]:
        return {part: getattr(self, name) for part, name in _ATTRIBUTES.items()}


_ATTRIBUTES = {part: part.name.lower() for part in Part}


class LostTime(Record, frozen=True):
    fault: Fault
    node: str = ""
    seconds: Seconds = msgspec.field(default_factory=float)
    gpu_seconds: Seconds | None = None
    rank_seconds: Seconds | None = None


class Goodput(Record, frozen=True, kw_only=True):
    """plan/status/goodput.py continues it."""

    start_time: Time
    since: Time  # the seconds count until then
    part: Part | None = None  # since then; None: the job has ended
    seconds: PartSeconds = msgspec.field(default_factory=PartSeconds)
    ettr: Seconds | None = None  # until the newest step in status
    gpus: Count = 0  # of all pods with ranks
    ranks: Count = 0
    fault: Fault | None = None  # the cause of the part
    node: str = ""
    newest_step: Signed | None = None  # before the newest pause; None: not known
    is_repeated_unknown: bool = msgspec.field(default=False, name="repeatedUnknown")
    lost: tuple[LostTime, ...] = ()

    @property
    def seconds_by_field(self) -> dict[str, float]:
        return {part.field: value for part, value in self.seconds.by_part().items()}


class AvoidedNode(Record, frozen=True, kw_only=True):
    node: str
    source: str
    fault_class: str = msgspec.field(default="", name="class")
    reason: str
    until: Time | None = None
    usable_as_last_resort: bool = False
    pods: tuple[str, ...] = ()


class DrillStatus(Record, frozen=True):
    request: str  # the annotation that asked for it
    fault: Drill | None = None
    at: Time | None = None  # when the operator decided
    pods: tuple[str, ...] = ()
    node: str = ""
    round: Number = -1
    refusal: str = ""  # why nothing was broken


class JobStatus(Record, frozen=True):
    """In the order of the CRD."""

    observed_generation: Number | None = None
    target: str = ""  # of an InjectedJob: kind/name
    conditions: tuple[Condition, ...] = ()
    phase: str = ""
    terminal_state: End = ""
    start_time: Time | None = None
    attempt_start_time: Time | None = None
    completion_time: Time | None = None
    restarts: Count = msgspec.field(default_factory=int)
    restarts_count_towards_max: Count = msgspec.field(default_factory=int)
    replicated_jobs_status: tuple[ReplicatedJobStatus, ...] = ()
    ready: str = ""  # of members, such as 3/4, for a column of kubectl
    members: Members = msgspec.field(default_factory=Members)
    spares: Spares = msgspec.field(default_factory=Spares)
    promoted_spares: tuple[PromotedSpare, ...] = ()
    round: Number = -1  # the newest; -1 before the first
    coordinator: CoordinatorStatus = CoordinatorStatus()
    rollouts: RolloutsStatus | None = None  # None until a coordinator has reported any
    recoveries_by_strategy: StrategyCounts = StrategyCounts()
    recovery_count: Count = msgspec.field(default_factory=int)  # the sum of these
    last_recovery: RecoveryStatus | None = None
    recoveries: tuple[RecoveryStatus, ...] = ()  # the oldest first
    drill: DrillStatus | None = None  # the newest
    progress: ProgressStatus | None = None
    goodput: Goodput | None = None  # None before the first reconcile, and without a launcher
    avoided_nodes: tuple[AvoidedNode, ...] = ()

    @property
    def failed_update(self) -> UpdateFailureStatus | None:
        return None if self.rollouts is None else self.rollouts.failure

    def new_update_failure(self, before: "JobStatus") -> UpdateFailureStatus | None:
        """The failed update that status had not recorded before."""
        known, failure = before.failed_update, self.failed_update
        return None if failure is None or (known is not None and known.update == failure.update) else failure

    def replicated_job(self, name: str) -> ReplicatedJobStatus | None:
        return next((entry for entry in self.replicated_jobs_status if entry.name == name), None)


class AutoSizeStatus(Record, frozen=True):
    nodes: Count | None = None
    failures_per_node_day: Decimal | None = None
    source: str | None = None
    node_days: Decimal | None = None
    failures: Decimal | None = None
    counted_until: Time | None = None
    surplus_since: Time | None = None


class PoolStatus(Record, frozen=True):
    """In the order of the CRD."""

    observed_generation: Number | None = None
    conditions: tuple[Condition, ...] = ()
    desired: Count | None = None
    replicas: Count = msgspec.field(default_factory=int)
    ready: Count = msgspec.field(default_factory=int)
    claimed: Count = msgspec.field(default_factory=int)
    available: Count = msgspec.field(default_factory=int)
    updated: Count = msgspec.field(default_factory=int)
    oldest_pod_time: Time | None = None
    selector: str = ""
    auto_size: AutoSizeStatus | None = None


def read_job_status(raw: Mapping[str, Any]) -> tuple[JobStatus, str]:
    """For a raw TrainingJob or InjectedJob: the status, and the error of an invalid field, or ""."""
    return read_record(raw.get("status", {}), JobStatus)


def read_pool_status(raw: Mapping[str, Any]) -> tuple[PoolStatus, str]:
    """The same for a HotSparePool."""
    return read_record(raw.get("status", {}), PoolStatus)


def written(status: Record) -> dict[str, Any]:
    """The status as a JSON object of the API."""
    fields: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(status, enc_hook=str))  # the hook is for Time
    return fields


def read_record(status: Any, record: type[S]) -> tuple[S, str]:
    """The record without its invalid fields, and the error of the first of them, or ""."""
    try:
        return _converted(status, record), ""
    except msgspec.ValidationError:
        pass
    if not isinstance(status, Mapping):
        return record(), "status: expected an object"
    read, wrong = dict[str, Any](), list[str]()
    for field in msgspec.structs.fields(record):
        name = field.encode_name
        if name not in status:
            continue
        try:
            read[field.name] = _converted(status[name], field.type)
        except msgspec.ValidationError as error:
            wrong.append(f"status.{name}: {error}")
            if isinstance(status[name], list) and get_origin(field.type) is tuple:
                read[field.name] = _valid_entries(status[name], get_args(field.type)[0])
    return record(**read), f"{wrong[0]}. The operator ignores the field" if wrong else ""


def _valid_entries(entries: list[Any], record: Any) -> tuple[Any, ...]:
    found = []
    for entry in entries:
        try:
            found.append(_converted(entry, record))
        except msgspec.ValidationError:
            continue
    return tuple(found)


def _converted(value: Any, kind: Any) -> Any:
    return msgspec.convert(value, kind, dec_hook=_time)


def _time(kind: type[Any], value: Any) -> Any:
    if kind is not Time:
        raise NotImplementedError(kind)
    parse_time(value)  # msgspec reports the ValueError with the field
    return Time(value)

"""The status of a TrainingJob, an InjectedJob and a HotSparePool: reads its valid fields.

The operator writes status, and continues from it after a restart. Users with the rights and operators of other versions
may write it, too. So each field has a type here. A field of another type is ignored, as if it had never been written.
In a list, single entries are ignored. The next reconcile writes the whole status again. Fields of a recovery that the
operator always writes, and the CRD does not require, get defaults.
"""

from collections.abc import Mapping
from typing import Annotated, Any, NotRequired, TypedDict, get_args, get_origin, get_type_hints

import msgspec

from understudy_operator.plan.facts.observed import TERMINAL_STATES
from understudy_operator.plan.jobset.restart import JOB_RESTART
from understudy_operator.plan.times.rfc3339 import parse_time
from understudy_protocol.enums import Fault, Strategy

Raw = Mapping[str, Any]
#: The largest integer that every JSON reader represents exactly.
_MOST = 2**53
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Number = Annotated[int, msgspec.Meta(ge=-1, le=_MOST)]
Signed = Annotated[int, msgspec.Meta(ge=-_MOST, le=_MOST)]
Seconds = Annotated[float, msgspec.Meta(ge=-_MOST, le=_MOST)]
FaultName = Annotated[str, msgspec.Meta(pattern=f"^({'|'.join(fault.value for fault in Fault)})$")]
StrategyName = Annotated[str, msgspec.Meta(pattern=f"^({'|'.join((*Strategy, JOB_RESTART))})$")]
#: The end of a job, in JobSet's spelling.
End = Annotated[str, msgspec.Meta(pattern=f"^({'|'.join(TERMINAL_STATES.values())})?$")]
#: A number as text, such as 0.125.
Decimal = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,12}(\.[0-9]{1,12})?$")]


class Time(str):
    """RFC 3339."""

    __slots__ = ()


class _Condition(TypedDict):
    type: str
    status: str
    reason: str
    message: str
    lastTransitionTime: Time
    observedGeneration: NotRequired[Number]


class _ReplicatedJob(TypedDict):
    name: str
    ready: NotRequired[Count]
    succeeded: NotRequired[Count]
    failed: NotRequired[Count]
    active: NotRequired[Count]
    suspended: NotRequired[Count]
    jobRestarts: NotRequired[list[Count]]
    jobRestartsCountTowardsMax: NotRequired[list[Count]]


class _Members(TypedDict, total=False):
    desired: Count
    active: Count
    ready: Count


class _Spares(TypedDict, total=False):
    desired: Count
    ready: Count
    claimed: Count


class _Promoted(TypedDict):
    pod: str
    groupRank: Count


class _Coordinator(TypedDict, total=False):
    epoch: Number
    term: Number
    formerEpoch: Number
    previousAttempt: Number
    podName: str
    podUID: str
    address: str


class _UpdateFailure(TypedDict):
    update: str
    version: NotRequired[str]
    message: NotRequired[str]
    consecutiveFailures: NotRequired[Count]
    at: NotRequired[Time]


class _Rollouts(TypedDict, total=False):
    fresh: Count
    updating: Count
    uncertain: Count
    version: str
    failure: _UpdateFailure
    restartedForUpdate: str


class _ByStrategy(TypedDict, total=False):
    inPlace: Count
    spareSwap: Count
    podRecreate: Count
    jobRestart: Count


class _Cause(TypedDict, total=False):
    rank: Signed
    pod: str
    node: str
    exitCode: Signed
    signal: str
    message: str


class _Recovery(TypedDict):
    fault: FaultName
    strategy: NotRequired[StrategyName]
    reason: NotRequired[str]
    round: NotRequired[Number]
    cause: NotRequired[_Cause]
    detectedAt: Time
    runningAt: NotRequired[Time]
    resumedAt: NotRequired[Time]
    pauseSeconds: NotRequired[Seconds]


class _Progress(TypedDict, total=False):
    step: Signed
    total: Signed
    at: Time


_AvoidedNode = TypedDict(
    "_AvoidedNode",
    {
        "node": str,
        "source": str,
        "class": NotRequired[str],
        "reason": str,
        "until": NotRequired[Time],
        "usableAsLastResort": NotRequired[bool],
        "pods": NotRequired[list[str]],
    },
)


class JobStatus(TypedDict, total=False):
    """In the order of the CRD."""

    observedGeneration: Number
    target: str
    conditions: list[_Condition]
    phase: str
    terminalState: End
    startTime: Time
    attemptStartTime: Time
    completionTime: Time
    restarts: Count
    restartsCountTowardsMax: Count
    replicatedJobsStatus: list[_ReplicatedJob]
    members: _Members
    spares: _Spares
    promotedSpares: list[_Promoted]
    round: Number
    coordinator: _Coordinator
    rollouts: _Rollouts
    recoveriesByStrategy: _ByStrategy
    lastRecovery: _Recovery
    recoveries: list[_Recovery]
    progress: _Progress
    avoidedNodes: list[_AvoidedNode]


class _AutoSize(TypedDict, total=False):
    nodes: Count
    failuresPerNodeDay: Decimal
    source: str
    nodeDays: Decimal
    failures: Decimal
    countedUntil: Time
    surplusSince: Time


class PoolStatus(TypedDict, total=False):
    """In the order of the CRD."""

    observedGeneration: Number
    conditions: list[_Condition]
    desired: Count
    replicas: Count
    ready: Count
    claimed: Count
    available: Count
    updated: Count
    oldestPodTime: Time
    selector: str
    autoSize: _AutoSize


def read_job_status(raw: Raw) -> tuple[dict[str, Any], str]:
    """For a TrainingJob or InjectedJob: the valid fields, and the error of an invalid one, or ""."""
    status, wrong = _read(raw.get("status", {}), JobStatus)
    for entry in (*status.get("recoveries", ()), *filter(None, [status.get("lastRecovery")])):
        entry.setdefault("round", -1)
        entry["cause"] = {"pod": "", "node": "", "message": "", **entry.get("cause", {})}
    return status, wrong


def read_pool_status(raw: Raw) -> tuple[dict[str, Any], str]:
    """The same for a HotSparePool."""
    return _read(raw.get("status", {}), PoolStatus)


def _read(status: Any, shape: type[Any]) -> tuple[dict[str, Any], str]:
    try:
        return _converted(status, shape), ""
    except msgspec.ValidationError:
        pass
    if not isinstance(status, Mapping):
        return {}, "status: expected an object"
    read, wrong = dict[str, Any](), list[str]()
    for name, field in get_type_hints(shape, include_extras=True).items():
        if name in status:
            _read_field(name, status[name], field, read, wrong)
    return read, f"{wrong[0]}. The operator ignores the field" if wrong else ""


def _read_field(name: str, value: Any, field: Any, read: dict[str, Any], wrong: list[str]) -> None:
    try:
        read[name] = _converted(value, field)
    except msgspec.ValidationError as error:
        wrong.append(f"status.{name}: {error}")
        if isinstance(value, list) and get_origin(field) is list:
            (entry,) = get_args(field)
            read[name] = [kept for item in value for kept in _entries(item, entry)]


def _entries(item: Any, entry: Any) -> list[Any]:
    """The entry of a list, if it is valid."""
    try:
        return [_converted(item, entry)]
    except msgspec.ValidationError:
        return []


def _converted(value: Any, shape: Any) -> Any:
    return msgspec.convert(value, shape, dec_hook=_time)


def _time(kind: type[Any], value: Any) -> Any:
    if kind is not Time:
        raise NotImplementedError(kind)
    parse_time(value)  # msgspec reports the ValueError with the field
    return Time(value)

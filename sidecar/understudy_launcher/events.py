"""The supervisor's inputs (events) and outputs (effects). Data only, no decisions.

The orders of `understudy_protocol.launcher`, such as StartWorkers, are events too. Times named `at` are wall-clock
times for messages; the supervisor's own timers use the `now` of `handle`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Optional, Union

from understudy_protocol.enums import RoundToken
from understudy_protocol.launcher import (
    BreakWorker,
    CheckReadiness,
    DrainWorkers,
    ExitLauncher,
    Ping,
    Preload,
    RenewStore,
    Restore,
    SnapshotsStored,
    StartWorkers,
    StopWorkers,
    TakeOver,
    WriteStacks,
)
from understudy_protocol.snapshots import RestoreChoice, SavedStep


@dataclass(frozen=True)
class LauncherStarted:
    """The launcher itself runs: the first event. worker_grace_period_s: how long replaced workers may still run."""

    worker_grace_period_s: float = 0.0


@dataclass(frozen=True)
class CommandReplaced:
    """The launcher has applied a TakeOver."""

    worker_grace_period_s: float


@dataclass(frozen=True)
class Connected:
    """The sidecar's socket accepted a connection, the first or a later one."""


@dataclass(frozen=True)
class PortReserved:
    port: int


@dataclass(frozen=True)
class WorkerEnded:
    """A worker was reaped. Its children may remain in its group until GroupEmptied."""

    local_rank: int
    exit_code: Optional[int]  # None: a signal ended it
    signal: Optional[str]
    shell_code: int  # as in a shell: 128 + n for signal n
    message: str
    at: float
    traceback: str = ""


@dataclass(frozen=True)
class WorkerRaised:
    """The error file of a worker has an exception, and the worker has neither ended nor got a signal. Once a worker."""

    local_rank: int
    message: str
    age_s: float  # seconds since the exception
    traceback: str = ""


@dataclass(frozen=True)
class GroupEmptied:
    """No process of a worker's group remains."""

    local_rank: int


@dataclass(frozen=True)
class LeftoversFound:
    """Processes that had left their worker's group got SIGKILL. Each is reported once."""

    processes: tuple[str, ...]


@dataclass(frozen=True)
class Survivor:
    """A process that SIGKILL has not ended yet. local_rank: None for a leftover. state: as in /proc, such as D."""

    local_rank: Optional[int]
    pid: int
    state: str
    name: str


@dataclass(frozen=True)
class SurvivorsFound:
    processes: tuple[Survivor, ...]


@dataclass(frozen=True)
class StepsRead:
    """A worker reported `reports` steps since the last event; the newest is `step`."""

    local_rank: int
    step: int
    total: Optional[int]
    reports: int
    at: float
    stepped_at: float  # the same time, by the clock of `handle`
    first_at: Optional[float] = None  # when the worker made its first step, by that clock; None: this is the first
    is_counted: bool = False  # see Stepped


@dataclass(frozen=True)
class CollectivesRead:
    """A worker reported when it entered collectives: see CollectiveTimes."""

    local_rank: int
    window: int
    step_ns: int
    collectives: tuple[int, ...]
    delays_ns: tuple[int, ...]


@dataclass(frozen=True)
class ZygoteReady:
    """Workers can be forked from now on. missing: module -> why it could not be imported.

    cuda: the module whose import initialized CUDA, so that each fork has to become a fresh process; "": none did.
    """

    seconds: float
    missing: Mapping[str, str]
    cuda: str = ""


@dataclass(frozen=True)
class ZygoteLost:
    """No zygote runs. is_final: another one would end in the same way."""

    reason: str
    is_final: bool


@dataclass(frozen=True)
class ZygoteEnded:
    """The launcher ended it, because it cannot run the job's command. was_wanted: the new command may be forked.

    calls_torchrun: the new command calls torchrun.
    """

    was_wanted: bool
    calls_torchrun: bool = False


@dataclass(frozen=True)
class TorchrunCalled:
    """The container's command has called torchrun, which has passed its job. may_fork: a zygote can run its workers."""

    may_fork: bool


@dataclass(frozen=True)
class ContainerCommandFailed:
    """The launcher cannot run the container's command, or it has ended without a call of torchrun."""

    code: int
    reason: str


@dataclass(frozen=True)
class TorchrunEnded:
    """The torchrun that has passed its job has ended, or the command that called it."""


@dataclass(frozen=True)
class StoreReady:
    """A store for a later round listens."""

    port: int


@dataclass(frozen=True)
class StoreGone:
    port: int


@dataclass(frozen=True)
class StoreFailed:
    reason: str


@dataclass(frozen=True)
class ZygoteChecked:
    """The fork for the readiness check of that number, which does nothing, has run."""

    number: int


@dataclass(frozen=True)
class ModulesLearned:
    """The fork server has imported these modules too, and forks the workers of later rounds."""

    modules: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class ModuleRefused:
    """A process that has imported this module cannot be forked safely. learned: the modules that it had imported
    before.
    """

    module: str
    reason: str
    learned: tuple[str, ...]


@dataclass(frozen=True)
class LearningEnded:
    """The process that imported the learned modules has ended."""


@dataclass(frozen=True)
class SecondZygoteLost:
    """The zygote that has imported the learned modules has ended before it forked a worker. The first zygote forks."""

    reason: str


@dataclass(frozen=True)
class DevicesChecked:
    """The device check has ended. reason: why devices are missing; "": all answer."""

    reason: str
    is_certain: bool = True  # False: the check has no result, for the same reason


@dataclass(frozen=True)
class StorageReported:
    """The process that writes snapshots to storage has reported its counts."""

    stored: SnapshotsStored


@dataclass(frozen=True)
class SnapshotsRead:
    """The answer to ReadSnapshots: the snapshots that each rank of the pod can restore in this round, oldest first."""

    token: RoundToken
    whole: tuple[SavedStep, ...]


@dataclass(frozen=True)
class AskedToEnd:
    """The launcher got SIGTERM, SIGINT or SIGHUP. hardware_finding: the fault of its node; "" if none is known.

    grace_s: how long the node remains; None: at least the pod's grace period.
    """

    signal: str
    hardware_finding: str = ""
    grace_s: Optional[float] = None


@dataclass(frozen=True)
class Tick:
    """`deadline()` has passed."""


Event = Union[
    LauncherStarted,
    CommandReplaced,
    Connected,
    PortReserved,
    WorkerEnded,
    WorkerRaised,
    GroupEmptied,
    LeftoversFound,
    SurvivorsFound,
    StepsRead,
    CollectivesRead,
    ZygoteReady,
    ZygoteLost,
    ZygoteEnded,
    TorchrunCalled,
    ContainerCommandFailed,
    TorchrunEnded,
    StoreReady,
    StoreGone,
    StoreFailed,
    ZygoteChecked,
    ModulesLearned,
    ModuleRefused,
    LearningEnded,
    SecondZygoteLost,
    DevicesChecked,
    StorageReported,
    SnapshotsRead,
    AskedToEnd,
    Tick,
    StartWorkers,
    DrainWorkers,
    WriteStacks,
    BreakWorker,
    StopWorkers,
    ExitLauncher,
    Restore,
    RenewStore,
    CheckReadiness,
    Ping,
    Preload,
    TakeOver,
]


class Aim(Enum):
    """A signal and its target."""

    TERM_WORKER = "SIGTERM to the worker"
    TERM_HANDLER = "SIGTERM to the worker, if it handles or ignores that"
    TERM_GROUP = "SIGTERM to the worker's group"
    KILL_GROUP = "SIGKILL to the worker's group"
    STOP_GROUP = "SIGSTOP to the worker's group"


@dataclass(frozen=True)
class Spawn:
    """Start all workers of this member for the round. is_warmup_done: let the zygote fork them. records_imports: the
    first one records its imports.
    """

    start: StartWorkers
    is_warmup_done: bool = False
    records_imports: bool = False


@dataclass(frozen=True)
class SpawnWarmup:
    """Start the warm-up, under the local rank WARMUP."""


@dataclass(frozen=True)
class Signal:
    local_rank: int
    aim: Aim


@dataclass(frozen=True)
class FindSurvivors:
    """Find the processes that have outlived their SIGKILL; answered by SurvivorsFound."""


@dataclass(frozen=True)
class Report:
    """Send a message to the sidecar. Dropped while disconnected, because the next hello repeats the state."""

    message: Any


@dataclass(frozen=True)
class ReservePort:
    """Reserve a free port for a later round's store; answered by PortReserved."""


@dataclass(frozen=True)
class ReleasePort:
    """Release the reserved port: rank 0 is about to bind it."""


@dataclass(frozen=True)
class StartCommand:
    """Run the container's command as it is; answered by TorchrunCalled or ContainerCommandFailed."""


@dataclass(frozen=True)
class StartZygote:
    """Answered by ZygoteReady or ZygoteLost."""


@dataclass(frozen=True)
class EndZygote:
    """Kill a zygote that takes too long."""


@dataclass(frozen=True)
class MakeStore:
    """Create a store for a later round; answered by StoreReady or StoreFailed. Only the stores at `keep` survive."""

    keep: tuple[int, ...] = ()  # ports


@dataclass(frozen=True)
class CheckZygote:
    """Let the zygote fork a process that does nothing; answered by ZygoteChecked."""

    number: int


@dataclass(frozen=True)
class Learn:
    """Let a fork of the zygote import more modules, and become the zygote. modules: these; None: those that the first
    worker has imported. Answered by ModulesLearned, ModuleRefused or LearningEnded.
    """

    modules: Optional[tuple[str, ...]]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class EndLearning:
    """Kill a fork of the zygote that imports for too long."""


@dataclass(frozen=True)
class CheckDevices:
    """Start a device check; answered by DevicesChecked."""


@dataclass(frozen=True)
class EndDeviceCheck:
    """Kill a device check that takes too long. DevicesChecked follows when it has ended."""


@dataclass(frozen=True)
class ReplaceCommand:
    """Run the command of this TakeOver from now on. Answered by CommandReplaced, and by ZygoteEnded if the zygote
    cannot run it.
    """

    order: TakeOver


@dataclass(frozen=True)
class ReadSnapshots:
    """Look which snapshots the ranks of the round can restore, before its workers run. Answered by SnapshotsRead."""

    start: StartWorkers


@dataclass(frozen=True)
class ChooseSnapshot:
    """Let load() in the round's workers return this."""

    choice: RestoreChoice


@dataclass(frozen=True)
class ReadSteps:
    """Answered by a StepsRead for each worker that has reported a step since the last one, and by CollectivesRead."""


@dataclass(frozen=True)
class ReadExceptions:
    """Read the error files of the running workers. Answered by WorkerRaised."""


@dataclass(frozen=True)
class DumpStacks:
    """Make a worker write its Python stacks to its stderr."""

    local_rank: int


@dataclass(frozen=True)
class WriteCollectives:
    """Make a worker write its newest collectives to its stderr, if it can. Its stacks must be complete: while Python's
    faulthandler writes those, it ignores another signal.
    """

    local_rank: int


@dataclass(frozen=True)
class Log:
    text: str


@dataclass(frozen=True)
class Exit:
    code: int
    reason: str


Effect = Union[
    Spawn,
    SpawnWarmup,
    Signal,
    FindSurvivors,
    Report,
    ReservePort,
    ReleasePort,
    StartCommand,
    StartZygote,
    EndZygote,
    MakeStore,
    CheckZygote,
    Learn,
    EndLearning,
    CheckDevices,
    EndDeviceCheck,
    ReplaceCommand,
    ReadSnapshots,
    ChooseSnapshot,
    ReadSteps,
    ReadExceptions,
    DumpStacks,
    WriteCollectives,
    Log,
    Exit,
]

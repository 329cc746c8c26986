"""What the supervisor hears (events) and asks for (effects). Facts only: nothing here decides or acts.

Orders of `understudy_protocol.launcher`, as StartWorkers, are events too.
Times named `at` are wall-clock times for the messages; the supervisor's own timers run on the `now` of `handle`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Optional, Union

from understudy_protocol.launcher import (
    CheckReadiness,
    DrainWorkers,
    ExitLauncher,
    Ping,
    RenewStore,
    StartWorkers,
    StopWorkers,
    TakeOver,
    WriteStacks,
)


@dataclass(frozen=True)
class Started:
    """The launcher itself runs: the first event. worker_grace_s: how long a new round lets replaced workers run on."""

    worker_grace_s: float = 0.0


@dataclass(frozen=True)
class CommandReplaced:
    """The launcher runs what a TakeOver said."""

    worker_grace_s: float


@dataclass(frozen=True)
class Connected:
    """The sidecar's socket took the connection, for the first time or again."""


@dataclass(frozen=True)
class PortReserved:
    port: int


@dataclass(frozen=True)
class WorkerEnded:
    """A worker was reaped. Its group may still hold its children, until GroupEmptied."""

    local_rank: int
    exit_code: Optional[int]  # None: a signal ended it
    signal: Optional[str]
    shell_code: int  # as a shell tells it: 128 + n for signal n
    message: str
    at: float


@dataclass(frozen=True)
class GroupEmptied:
    """Nothing is left of a worker and its children."""

    local_rank: int


@dataclass(frozen=True)
class LeftoversFound:
    """Processes that had left their worker's group have got SIGKILL; each is told once."""

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
    stepped_at: float  # the same moment, by the clock of `handle`
    first_at: Optional[float] = None  # when the worker made its first step, by that clock; None: with this one


@dataclass(frozen=True)
class ZygoteReady:
    """Workers can be forked from now on. missing: module -> why it could not be imported.

    cuda: the module whose import has touched CUDA, so that each fork has to become a fresh process; "": none has.
    """

    seconds: float
    missing: Mapping[str, str]
    cuda: str = ""


@dataclass(frozen=True)
class ZygoteLost:
    """There is no zygote (any more). final: another one would end the same way."""

    reason: str
    is_final: bool


@dataclass(frozen=True)
class ZygoteEnded:
    """It was ended, because what a job runs is not what it was started for. wanted: the command may be forked."""

    was_wanted: bool


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
    """A fork that does nothing has run, for the check of that number."""

    number: int


@dataclass(frozen=True)
class DevicesChecked:
    """The process that looks for the container's devices has ended. reason: they are not all there; "": they are."""

    reason: str


@dataclass(frozen=True)
class AskedToEnd:
    """The launcher got SIGTERM (or SIGINT, or SIGHUP). faulty: what is wrong with its node; "" if nothing is known.

    grace_s: how long the node stays; None: as long as the pod may take.
    """

    signal: str
    hardware_finding: str = ""
    grace_s: Optional[float] = None


@dataclass(frozen=True)
class Tick:
    """`deadline()` has passed."""


Event = Union[
    Started,
    CommandReplaced,
    Connected,
    PortReserved,
    WorkerEnded,
    GroupEmptied,
    LeftoversFound,
    SurvivorsFound,
    StepsRead,
    ZygoteReady,
    ZygoteLost,
    ZygoteEnded,
    StoreReady,
    StoreGone,
    StoreFailed,
    ZygoteChecked,
    DevicesChecked,
    AskedToEnd,
    Tick,
    StartWorkers,
    DrainWorkers,
    WriteStacks,
    StopWorkers,
    ExitLauncher,
    RenewStore,
    CheckReadiness,
    Ping,
    TakeOver,
]


class Aim(Enum):
    """What a signal is and whom it is for."""

    TERM_WORKER = "SIGTERM to the worker"
    TERM_HANDLER = "SIGTERM to the worker, if it handles or ignores that"
    TERM_GROUP = "SIGTERM to the worker's group"
    KILL_GROUP = "SIGKILL to the worker's group"


@dataclass(frozen=True)
class Spawn:
    """Start all workers of this member for the round. warm: forked by the zygote."""

    start: StartWorkers
    is_warmup_done: bool = False


@dataclass(frozen=True)
class SpawnWarmup:
    """Start the warm-up, under the local rank WARMUP."""


@dataclass(frozen=True)
class Signal:
    local_rank: int
    aim: Aim


@dataclass(frozen=True)
class FindSurvivors:
    """Find the processes that outlive their SIGKILL; answered by SurvivorsFound."""


@dataclass(frozen=True)
class Report:
    """Tell the sidecar; dropped while it is not connected, for the next hello says it all."""

    message: Any


@dataclass(frozen=True)
class ReservePort:
    """Keep a free port for a later round's store; answered by PortReserved."""


@dataclass(frozen=True)
class ReleasePort:
    """Let go of the reserved port: rank 0 is about to bind it."""


@dataclass(frozen=True)
class StartZygote:
    """Answered by ZygoteReady or ZygoteLost."""


@dataclass(frozen=True)
class EndZygote:
    """It takes too long."""


@dataclass(frozen=True)
class MakeStore:
    """Have a store held for a later round, answered by StoreReady or StoreFailed. Others end, but for those at
    `keep`.
    """

    keep: tuple[int, ...] = ()  # ports


@dataclass(frozen=True)
class CheckZygote:
    """Have it fork a process that does nothing, answered by ZygoteChecked."""

    number: int


@dataclass(frozen=True)
class CheckDevices:
    """Have a process look for the container's devices, answered by DevicesChecked."""


@dataclass(frozen=True)
class EndDeviceCheck:
    """It takes too long. That it has ended is told as DevicesChecked."""


@dataclass(frozen=True)
class ReplaceCommand:
    """From now on workers run what this says. Answered by Became, and by ZygoteEnded where the zygote is of no use."""

    order: TakeOver


@dataclass(frozen=True)
class ReadSteps:
    """Answered by a StepsRead of each worker that has reported since."""


@dataclass(frozen=True)
class DumpStacks:
    """Have a worker write its Python stacks to its stderr."""

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
    StartZygote,
    EndZygote,
    MakeStore,
    CheckZygote,
    CheckDevices,
    EndDeviceCheck,
    ReplaceCommand,
    ReadSteps,
    DumpStacks,
    Log,
    Exit,
]

"""Messages between a pod's sidecar and its launcher: JSON lines over the unix socket in the shared emptyDir.

A launcher's first message on each connection is its LauncherHello; a sidecar's are orders. TO_SIDECAR and TO_LAUNCHER
say who sends what. HoldSocket is the one message that is more than its line: a socket goes with it (SCM_RIGHTS). What
an order does in each state of the launcher is in understudy_launcher/supervise.py.

An order and its answer carry the round's token; an answer of an older round than the sidecar's newest means nothing
any more. Fields with a default are newer than version 1 of the protocol, whose senders leave them out.
"""

from dataclasses import dataclass
from typing import Optional

from understudy_protocol.words import NO_ROUND, RoundToken, Verdict, WorkersState


@dataclass(frozen=True)
class LauncherHello:
    """Sent on every connect, so that a restarted sidecar learns what runs; and after StopWorkers, when nothing does.

    On a connect the round's WorkerExited, WorkersDrained and Terminating follow it, as far as there were any.
    """

    pid: int
    token: RoundToken  # of the newest StartWorkers, or NO_ROUND
    group_rank: Optional[int]
    workers: WorkersState
    master_port: int
    draining: bool = False  # a DrainWorkers was heard, and its WorkersDrained is still to come
    store_port: int = 0  # see NextPort
    stepped: RoundToken = NO_ROUND  # the newest round whose workers have reported a step here


@dataclass(frozen=True)
class NextPort:
    """The port that is reserved for the store of a later round.

    store_port: of a store that listens already, for one later round; 0: there is none.
    """

    master_port: int
    store_port: int = 0


@dataclass(frozen=True)
class WorkersStarted:
    """All workers of the round are spawned, and nothing is left of older ones."""

    token: RoundToken


@dataclass(frozen=True)
class WorkerExited:
    """A worker failed: it exited with another code than 0, or a signal ended it."""

    token: RoundToken
    local_rank: int
    exit_code: Optional[int]
    signal: Optional[str]
    message: str
    at: float


@dataclass(frozen=True)
class WorkersFinished:
    """All workers of the round exited 0, unasked."""

    token: RoundToken


@dataclass(frozen=True)
class WorkersDrained:
    """The answer to DrainWorkers: nothing of that round runs, however its workers ended.

    A round that was told as finished stays finished. Exit 0 after a DrainWorkers means saved, not finished.
    """

    token: RoundToken


@dataclass(frozen=True)
class Unkillable:
    """A process of an earlier round is alive so long after its SIGKILL, and delays the next one. Sent every 5 s.

    Most often it sleeps uninterruptibly in the kernel (state D), in a driver or a file system that does not answer.
    """

    token: RoundToken  # of the newest StartWorkers
    local_rank: Optional[int]  # None: it has left its worker's process group
    pid: int  # in the launcher's PID namespace
    seconds: float
    state: str  # the kernel's letter, as in /proc/PID/stat


@dataclass(frozen=True)
class Stepped:
    """A completed step: the first of a round, then the newest at most twice a second.

    pause_s: seconds from the last step of the earlier rounds on this pod to the first step of this round, by the pod's
    own clock. None if no earlier round made a step here.
    """

    token: RoundToken
    step: int
    total: Optional[int]
    median_step_s: float
    at: float
    pause_s: Optional[float] = None


@dataclass(frozen=True)
class Hung:
    """Workers make no steps any more, and their stacks are in the log: the slowest of them. Told repeatedly.

    Also the answer to WriteStacks, once, where no worker here has made a step in this round.
    """

    token: RoundToken
    local_rank: int
    step: int  # its newest; -1: none in this round
    at: float  # when it made that; 0.0: it made none
    silent_s: float  # how long ago that was, or the start of the workers


@dataclass(frozen=True)
class Terminating:
    """The launcher got SIGTERM: its workers may save for so long. Faulty: they are dead already."""

    grace_s: float
    verdict: Verdict = Verdict.UNKNOWN


@dataclass(frozen=True)
class Readiness:
    """Of a pool's spare: whether a round's workers would start at once. The answer to CheckReadiness, and told unasked
    when it is ready no more.
    """

    number: int  # of the newest check
    ready: bool
    reason: str = ""  # why it is not
    final: bool = False  # nor will it ever be


@dataclass(frozen=True)
class Pong:
    """The answer to Ping."""

    number: int


@dataclass(frozen=True)
class FreshWorkers:
    """Workers start as fresh processes, although they were to be forked: the module or thread at fault, and the fix.

    Sent when the reason changes, and on each connect where there is one.
    """

    reason: str  # "": they are forked again


@dataclass(frozen=True)
class StartWorkers:
    """Kill what runs, then start nprocPerNode workers of this round."""

    token: RoundToken
    group_rank: int
    group_world_size: int
    rank_offset: int
    world_size: int
    master_addr: str
    master_port: int
    agent_store: bool = False  # a store listens there already: no worker serves it


@dataclass(frozen=True)
class StopWorkers:
    """Kill what runs, and wait for the next StartWorkers."""

    reason: str


@dataclass(frozen=True)
class DrainWorkers:
    """SIGTERM to the round's workers, which may save for so long; then what is left of them is killed.

    The launcher stays, and takes the next StartWorkers; how these workers end is no fault and is not told.
    """

    token: RoundToken
    grace_s: float


@dataclass(frozen=True)
class WriteStacks:
    """No worker of the round has made a step in time: the stacks of all workers go to the log, and Hung follows."""

    token: RoundToken


@dataclass(frozen=True)
class ExitLauncher:
    """The job is closed, or has given the pod up: the launcher ends its workers, and exits with this code.

    Without a grace it kills them at once, and another code than 0 gives way to that of a worker that had failed. With
    one they get SIGTERM and may save for so long, and the code is this one.
    """

    code: int
    reason: str
    grace_s: float = 0.0


@dataclass(frozen=True)
class RenewStore:
    """Offer another store: the one that listens may have been named by a coordinator that is not in office any more."""


@dataclass(frozen=True)
class CheckReadiness:
    """Find out whether workers would start at once, by forking one that does nothing, and looking for the devices."""

    number: int


@dataclass(frozen=True)
class Ping:
    """Whether the launcher responds: it answers at once, in every state."""

    number: int


@dataclass(frozen=True)
class TakeOver:
    """To a pool's spare that a job has claimed, on each connect: what its workers run. Before the first round only."""

    command: tuple[str, ...]
    env: dict[str, str]  # the plain variables of the job's trainer container, in place of those of the pool's template


@dataclass(frozen=True)
class HoldSocket:
    """Keep the socket that comes with this line open, in place of the one that is kept.

    It is the sidecar's connection to its coordinator, which the kernel then ends only when both processes are dead: a
    sidecar that crashes and comes back has lost no membership. Nobody reads from the copy, and no worker inherits it.
    """


@dataclass(frozen=True)
class DropSocket:
    """Close the socket that is kept: the sidecar hangs up."""


TO_SIDECAR = (
    LauncherHello,
    NextPort,
    WorkersStarted,
    WorkerExited,
    WorkersFinished,
    WorkersDrained,
    Unkillable,
    Stepped,
    Hung,
    Terminating,
    Readiness,
    Pong,
    FreshWorkers,
)
TO_LAUNCHER = (
    StartWorkers,
    DrainWorkers,
    StopWorkers,
    WriteStacks,
    ExitLauncher,
    RenewStore,
    CheckReadiness,
    Ping,
    TakeOver,
    HoldSocket,
    DropSocket,
)

"""Messages between a pod's sidecar and its launcher: JSON lines over the unix socket in the shared emptyDir.

A launcher's first message on each connection is its LauncherHello; a sidecar sends orders. The tuples TO_SIDECAR and
TO_LAUNCHER have the direction of each message. A HoldSocket comes together with a socket (SCM_RIGHTS).
understudy_launcher/supervise.py has the effect of each order in each state of the launcher.

An order and its answer have the round's token. The sidecar ignores an answer of an older round than its newest. A field
with a default may be missing.
"""

from dataclasses import dataclass
from typing import Optional

from understudy_protocol.enums import NO_ROUND, Drill, RoundToken, Verdict, WorkersState
from understudy_protocol.snapshots import RestoreChoice, SavedSteps, SnapshotAge


@dataclass(frozen=True)
class LauncherHello:
    """Sent on every connect, so that a restarted sidecar gets the launcher's state; and when StopWorkers is done.

    On a connect the WorkerExited, WorkersDrained and Terminating of the round follow it, if there were any.
    """

    pid: int
    token: RoundToken  # of the newest StartWorkers, or NO_ROUND
    group_rank: Optional[int]
    workers: WorkersState
    master_port: int
    is_draining: bool = False  # a DrainWorkers was received, and its WorkersDrained is not sent yet
    store_port: int = 0  # see NextPort
    stepped: RoundToken = NO_ROUND  # the newest round whose workers have reported a step here
    saved: Optional[SavedSteps] = None  # see WorkersStarted
    fetched_since: RoundToken = NO_ROUND  # see WorkersStarted
    has_devices: bool = False  # the container was given devices, and a CheckReadiness looks for them


@dataclass(frozen=True)
class NextPort:
    """The port that is reserved for the store of a later round.

    store_port: the port of a store that listens already, for one later round; 0: there is none.
    """

    master_port: int
    store_port: int = 0


@dataclass(frozen=True)
class WorkersStarted:
    """All workers of the round have been started, and no process of an older round is left.

    saved: None if the launcher has no memory for snapshots, and no worker has made a step. fetched_since: the oldest
    round that has started here since the last round with a choice; NO_ROUND: there is none. Snapshots that were fetched
    for this round or a later one count, too.
    """

    token: RoundToken
    saved: Optional[SavedSteps] = None
    fetched_since: RoundToken = NO_ROUND


@dataclass(frozen=True)
class WorkerExited:
    """A worker failed: it exited with a nonzero code, or a signal ended it."""

    token: RoundToken
    local_rank: int
    exit_code: Optional[int]
    signal: Optional[str]
    message: str
    at: float
    traceback: str = ""  # the end of its Python traceback; "" if it left none


@dataclass(frozen=True)
class WorkerRaised:
    """An exception has ended the script of a worker, whose process still runs. Sent once. WorkerExited follows, unless
    a newer round replaces the worker before. So the round may be older than the newest one.
    """

    token: RoundToken
    local_rank: int
    message: str
    age_s: float  # seconds since the exception, by the pod's own clock
    traceback: str = ""  # see WorkerExited


@dataclass(frozen=True)
class WorkersFinished:
    """All workers of the round exited 0 by themselves."""

    token: RoundToken


@dataclass(frozen=True)
class WorkersDrained:
    """The answer to DrainWorkers: no process of that round runs any more. Exit codes do not matter.

    A round that was reported as finished stays finished. Exit 0 after a DrainWorkers means saved, not finished.
    """

    token: RoundToken


@dataclass(frozen=True)
class Unkillable:
    """A process of an earlier round is still alive after its SIGKILL, and delays the next round. Sent every 5 s.

    Most often it sleeps uninterruptibly in the kernel (state D), in a driver or a file system that does not answer.
    """

    token: RoundToken  # of the newest StartWorkers
    local_rank: Optional[int]  # None: the process has left its worker's process group
    pid: int  # in the launcher's PID namespace
    seconds: float
    state: str  # the kernel's letter, as in /proc/PID/stat


@dataclass(frozen=True)
class Stepped:
    """A completed step: the first of a round, then the newest at most four times a second.

    pause_s: seconds from the last step of the earlier rounds on this pod to the first step of this round, by the pod's
    own clock. None if no earlier round made a step here. is_counted: the script does not call step(), so `step` is the
    number of steps in this round. since_first_s: seconds from the first step of this round on this pod to this message,
    because a launcher without CPU time reads its workers' steps late. snapshot: the newest one in this pod's memory
    that a next round could restore; None: there is none.
    """

    token: RoundToken
    step: int
    total: Optional[int]
    median_step_s: float
    at: float
    pause_s: Optional[float] = None
    is_counted: bool = False
    since_first_s: float = 0.0
    snapshot: Optional[SnapshotAge] = None


@dataclass(frozen=True)
class Hung:
    """Workers make no more steps, and their stacks are in the log. The fields are about the slowest one. Repeated.

    Also the answer to WriteStacks, once, if no worker here has made a step in this round.
    """

    token: RoundToken
    local_rank: int
    step: int  # its newest; -1: none in this round
    at: float  # when it made that step; 0.0: it made none
    silent_s: float  # seconds since that step, or since the start of the workers


@dataclass(frozen=True)
class CollectiveTimes:
    """When a rank entered the first and the last collective of each of ten steps in a row.

    The tuples have these two collectives of each step. delays_ns: the time from the end of the rank's step before to
    the entry, by one clock. So no clock of another machine is needed to compare ranks.
    """

    token: RoundToken
    local_rank: int
    window: int  # the steps that the rank has made in this round, at the end of the ten
    step_ns: int  # the median duration of the ten
    collectives: tuple[int, ...]  # a hash of group and sequence number: the same on all ranks of the group
    delays_ns: tuple[int, ...]


@dataclass(frozen=True)
class Terminating:
    """The launcher got SIGTERM: its workers may save for grace_s. Verdict Faulty: they were killed already."""

    grace_s: float
    verdict: Verdict = Verdict.UNKNOWN


@dataclass(frozen=True)
class Readiness:
    """Of a spare: whether a round's workers would start at once. The answer to CheckReadiness. Also sent when a ready
    spare of a pool is no longer ready.
    """

    number: int  # of the newest check
    is_ready: bool
    reason: str = ""  # why it is not ready
    is_final: bool = False  # it will never be ready
    lacks_devices: bool = False  # the device check has finished: some devices do not answer


@dataclass(frozen=True)
class Pong:
    """The answer to Ping."""

    number: int


@dataclass(frozen=True)
class ForkFallback:
    """Workers start as new processes instead of forks. The reason names the module or thread, and the fix.

    Sent when the reason changes, and on each connect if there is one.
    """

    reason: str  # "": workers are forked again


@dataclass(frozen=True)
class Learned:
    """The modules that the fork server has learned, from workers or a Preload. Sent once, and on each connect."""

    modules: tuple[str, ...]


@dataclass(frozen=True)
class SnapshotsStored:
    """The snapshots that this pod has written to storage since its launcher's start. Sent after changes, and on each
    connect if there are any.
    """

    written: int  # of its ranks
    failed: int
    step: Optional[int] = None  # the newest one that has the files of all ranks, if rank 0 was in this pod
    at: float = 0.0  # when that was found, in seconds since 1970


@dataclass(frozen=True)
class StartWorkers:
    """Kill all running workers, then start nprocPerNode workers of this round."""

    token: RoundToken
    group_rank: int
    group_world_size: int
    rank_offset: int
    world_size: int
    master_addr: str
    master_port: int
    agent_store: bool = False  # a store listens there already, so no worker serves one


@dataclass(frozen=True)
class StopWorkers:
    """Kill all running workers, and wait for the next StartWorkers."""

    reason: str


@dataclass(frozen=True)
class DrainWorkers:
    """Send SIGTERM to the round's workers, which may save for grace_s. Then kill the processes that are left.

    The launcher stays, and accepts the next StartWorkers. The exits of these workers are not faults, and not reported.
    """

    token: RoundToken
    grace_s: float


@dataclass(frozen=True)
class WriteStacks:
    """No worker of the round has made a step in time: log the stacks of all workers, and answer with Hung."""

    token: RoundToken


@dataclass(frozen=True)
class BreakWorker:
    """A drill: break one worker of the round, as a fault would. Process: SIGKILL to its group. Hang: SIGSTOP to it."""

    token: RoundToken
    drill: Drill


@dataclass(frozen=True)
class ExitLauncher:
    """The job is closed, or the member is evicted: end the workers, and exit with this code.

    If grace_s is 0, the launcher kills the workers at once. If a worker had failed before, it exits with the worker's
    code in place of a nonzero code. If grace_s is set, workers get SIGTERM and may save for grace_s, and the launcher
    exits with exactly this code.
    """

    code: int
    reason: str
    grace_s: float = 0.0


@dataclass(frozen=True)
class Restore:
    """The snapshot that all ranks of the round restore: snapshot.load() of the workers waits for it."""

    token: RoundToken
    choice: RestoreChoice


@dataclass(frozen=True)
class RenewStore:
    """Offer another store: a previous coordinator may have assigned the one that listens to a round."""


@dataclass(frozen=True)
class CheckReadiness:
    """Check whether workers would start at once: fork one that does nothing, and look for the devices.

    devices_only: only look for the devices.
    """

    number: int
    devices_only: bool = False


@dataclass(frozen=True)
class Preload:
    """Modules that the workers of another pod have imported: the fork server of a spare imports them too."""

    modules: tuple[str, ...]


@dataclass(frozen=True)
class Ping:
    """Check whether the launcher responds: it answers with Pong at once, in every state."""

    number: int


@dataclass(frozen=True)
class TakeOver:
    """To a claimed spare of a pool: the command of its workers. Sent on each connect before the first round."""

    command: tuple[str, ...]
    env: dict[str, str]  # plain variables of the job's trainer container; they replace those of the pool's template


@dataclass(frozen=True)
class HoldSocket:
    """Keep the socket that comes with this line open, and close the one that was kept before.

    It is a duplicate of the sidecar's connection to its coordinator. So the kernel ends the connection only when both
    processes are dead, and a sidecar that crashes and restarts is still a member. The launcher never reads from the
    duplicate, and no worker inherits it.
    """


@dataclass(frozen=True)
class DropSocket:
    """Close the socket that is kept: the sidecar ends its connection."""


TO_SIDECAR = (
    LauncherHello,
    NextPort,
    WorkersStarted,
    WorkerExited,
    WorkerRaised,
    WorkersFinished,
    WorkersDrained,
    Unkillable,
    Stepped,
    Hung,
    CollectiveTimes,
    Terminating,
    Readiness,
    Pong,
    ForkFallback,
    Learned,
    SnapshotsStored,
)
TO_LAUNCHER = (
    StartWorkers,
    DrainWorkers,
    StopWorkers,
    WriteStacks,
    BreakWorker,
    ExitLauncher,
    Restore,
    RenewStore,
    CheckReadiness,
    Preload,
    Ping,
    TakeOver,
    HoldSocket,
    DropSocket,
)

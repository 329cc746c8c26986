"""Events and effects of the state machines: coordinator, candidate, member.

A link is one authenticated connection; the caller assigns its number and never uses it again.
"""

from dataclasses import dataclass

from understudy_protocol import launcher, membership, observer
from understudy_protocol.enums import RoundToken, Term, Verdict
from understudy_protocol.hard_state import HardState
from understudy_protocol.snapshots import CopyHolder, CopyPlan, FetchedStep, KeptSteps, SavedStep


@dataclass(frozen=True)
class Tick:
    """The time of `deadline()` has come (an early or late Tick does no harm)."""


# Coordinator ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Received:
    """A member's message. The first one of a link is its Join."""

    link: int
    message: object


@dataclass(frozen=True)
class Dropped:
    """A link has ended. silent: no kernel closed it; the peer's machine stopped responding."""

    link: int
    silent: bool


@dataclass(frozen=True)
class ObserversChanged:
    """The number of connected observers (the operator, usually) has changed."""

    observers: int


@dataclass(frozen=True)
class FromOperator:
    """A message of the operator."""

    message: observer.Nodes | observer.End | observer.Superseded


@dataclass(frozen=True)
class Unreachable:
    """The machines of these links acknowledge no packet any more: see WatchMachines."""

    links: frozenset[int]


CoordinatorEvent = Received | Dropped | ObserversChanged | FromOperator | Unreachable | Tick


@dataclass(frozen=True)
class Send:
    link: int
    message: object


@dataclass(frozen=True)
class Broadcast:
    """One message to many links: encoded once."""

    links: tuple[int, ...]
    message: object


@dataclass(frozen=True)
class Hangup:
    """Close the link after everything that was sent."""

    link: int
    reason: str


@dataclass(frozen=True)
class WatchMachines:
    """Each of these links has just got a message. Report those whose machines do not acknowledge it (Unreachable).

    It replaces the previous WatchMachines, and ends after `for_s` seconds.
    """

    links: tuple[int, ...]
    for_s: float


@dataclass(frozen=True)
class Log:
    """A decision for the log."""

    text: str


@dataclass(frozen=True)
class CompleteShutdown:
    """The job is closed and every member knows: this coordinator ends."""


@dataclass(frozen=True)
class StepDown:
    """End the term. The core closes all links, so that members look for the next coordinator."""

    reason: str


CoordinatorEffect = Send | Broadcast | Hangup | WatchMachines | Log | CompleteShutdown | StepDown


# Candidate --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JoinReceived:
    """A member's Join at a sidecar that is not the coordinator."""

    link: int
    join: membership.Join


@dataclass(frozen=True)
class RecordHardState:
    """Store the hard state before the effects that follow: they rely on it."""

    hard_state: HardState


@dataclass(frozen=True)
class AssumeLeadership:
    """A majority has granted its votes. The callers in the candidate pool join the new coordinator."""

    term: Term
    leader_snapshot: membership.LeaderSnapshot | None


CandidateEvent = JoinReceived | Received | Dropped | FromOperator | Tick
CandidateEffect = Send | Hangup | RecordHardState | Log | AssumeLeadership


#: Among the hosts of a Dial: the coordinator's Service.
SERVICE = ""


# Member -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LauncherUp:
    hello: launcher.LauncherHello


@dataclass(frozen=True)
class FromLauncher:
    message: object


@dataclass(frozen=True)
class FromWorker:
    """A worker of this pod reports the rollout servers that it updates."""

    replicas: membership.Replicas


@dataclass(frozen=True)
class LauncherDown:
    pass


@dataclass(frozen=True)
class LinkUp:
    """A connection to a sidecar of the job is up; both sides are authenticated. host: the host of the Dial that
    answered.
    """

    host: str


@dataclass(frozen=True)
class FromCoordinator:
    message: object


@dataclass(frozen=True)
class LinkDown:
    silent: bool = False  # no kernel has closed the connection: the coordinator's machine does not respond


@dataclass(frozen=True)
class LeaveRequested:
    """The pod is asked to end (preStop, or SIGTERM to the sidecar)."""

    reason: str
    grace_s: float
    verdict: Verdict = Verdict.UNKNOWN


@dataclass(frozen=True)
class Unfit:
    """The sidecar can take no part in the job any more."""

    reason: str


@dataclass(frozen=True)
class CoordinatorUnreachable:
    """The coordinator's machine acknowledges no packet any more: see WatchCoordinator."""


@dataclass(frozen=True)
class CalledBy:
    """A member without a coordinator has called this sidecar, which is not the coordinator either. silent_term: of the
    coordinator whose machine stopped responding to the caller; None: a kernel closed the caller's connection.
    """

    ip: str
    silent_term: Term | None = None


@dataclass(frozen=True)
class LeadershipAssumed:
    """This sidecar has become the coordinator, and its member joins it. elected: its callers stay connected."""

    elected: bool = False


@dataclass(frozen=True)
class VerdictAnnotated:
    """The pod's annotation has a node health verdict."""

    verdict: membership.NodeVerdict


@dataclass(frozen=True)
class CopiesPlanned:
    """The answer to PlanCopies: the copies that this pod keeps. None of an older round arrives any more, and no fetch
    of an older round goes on. overwritten: the pod's own snapshots that fetches have replaced; None: perhaps all.
    fetched: the fetched snapshots in the memory of the pod's own ranks.
    """

    token: RoundToken
    kept: tuple[KeptSteps, ...]
    overwritten: tuple[SavedStep, ...] | None = ()
    fetched: tuple[FetchedStep, ...] = ()


@dataclass(frozen=True)
class CopyOverwrites:
    """A fetch begins to overwrite this snapshot of the pod's own. The coordinator may be lost before the fetch ends."""

    saved: SavedStep


@dataclass(frozen=True)
class CopyFetched:
    """The answer to FetchCopy. error: why this pod has no such snapshot; "": it has. overwritten: as above."""

    token: RoundToken
    saved: SavedStep
    error: str = ""
    overwritten: tuple[SavedStep, ...] | None = ()


@dataclass(frozen=True)
class CopiesFlushed:
    """The answer to FlushCopies. The newest snapshots are copied, or no pod that keeps the copies can be reached."""

    token: RoundToken


@dataclass(frozen=True)
class ClosedByOperator:
    """The operator reports that the job is closed, because no coordinator is there to do it."""

    close: membership.Close


@dataclass(frozen=True)
class CopyStrideNeeded:
    """Of this pod's copies: see copy_stride.py."""

    stride: int


@dataclass(frozen=True)
class SnapshotCopied:
    """The newest snapshot that was copied from all ranks of this pod to the holders of its plan; of NO_ROUND: none was.

    saved_at: by the clock of this pod.
    """

    saved: SavedStep
    saved_at: float


CopyEvent = CopiesPlanned | CopyOverwrites | CopyFetched | CopiesFlushed | CopyStrideNeeded | SnapshotCopied
MemberEvent = (
    LauncherUp
    | FromLauncher
    | FromWorker
    | LauncherDown
    | LinkUp
    | FromCoordinator
    | LinkDown
    | CoordinatorUnreachable
    | LeaveRequested
    | CalledBy
    | LeadershipAssumed
    | Unfit
    | VerdictAnnotated
    | CopyEvent
    | ClosedByOperator
    | Tick
)


@dataclass(frozen=True)
class ToCoordinator:
    message: object


@dataclass(frozen=True)
class ToLauncher:
    message: object


@dataclass(frozen=True)
class Dial:
    """Connect to one of these hosts, in this order; retry until one answers or a Hangup comes."""

    hosts: tuple[str, ...]  # SERVICE stands for the coordinator's Service
    delay_s: float = 0.0


@dataclass(frozen=True)
class HangupCoordinator:
    reason: str


@dataclass(frozen=True)
class WatchCoordinator:
    """For half a second, watch whether the coordinator's machine acknowledges packets. Report if it acknowledges none
    (CoordinatorUnreachable). It costs the coordinator nothing while its machine responds.
    """


@dataclass(frozen=True)
class KeepLink:
    """Have the launcher keep a duplicate of this link's socket instead of its current one: it leads to the
    coordinator.
    """


@dataclass(frozen=True)
class PlanCopies:
    """From now on send copies of the round's snapshots to these pods, and accept them from those; answered by
    CopiesPlanned. group_rank: of this pod; None if it has no ranks.
    """

    token: RoundToken
    group_rank: int | None
    plan: CopyPlan


@dataclass(frozen=True)
class FetchCopy:
    """Fetch a copy of this pod's snapshot from one of these pods into its own memory; answered by CopyFetched."""

    token: RoundToken
    group_rank: int
    saved: SavedStep
    holders: tuple[CopyHolder, ...]


@dataclass(frozen=True)
class FlushCopies:
    """No worker of this round saves any more: copy the snapshots of this pod's ranks; answered by CopiesFlushed."""

    token: RoundToken


@dataclass(frozen=True)
class RecordLauncher:
    """The launcher has connected, or disconnected: record it for a later process of this sidecar."""

    connected: bool


@dataclass(frozen=True)
class RecordVerdict:
    """Store it where the launcher finds it when it gets SIGTERM."""

    verdict: membership.NodeVerdict


@dataclass(frozen=True)
class RecordClose:
    """Store the close where a restarted sidecar and the kubelet find it."""

    close: membership.Close


@dataclass(frozen=True)
class Finish:
    """This pod has nothing left to do: the sidecar may end."""


MemberEffect = (
    ToCoordinator
    | ToLauncher
    | Dial
    | HangupCoordinator
    | WatchCoordinator
    | KeepLink
    | PlanCopies
    | FetchCopy
    | FlushCopies
    | RecordVerdict
    | RecordLauncher
    | RecordClose
    | RecordHardState
    | Finish
    | Log
)

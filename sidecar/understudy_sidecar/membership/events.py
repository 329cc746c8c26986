"""What goes into the state machines (coordinator, heir, member), and what comes out.

A link is one authenticated connection; its number is the shell's, and is never used again.
"""

from dataclasses import dataclass

from understudy_protocol import launcher, membership, observer
from understudy_protocol.enums import Term, Verdict
from understudy_protocol.hard_state import HardState


@dataclass(frozen=True)
class Tick:
    """The time that `deadline()` asked for has come (an early or late one does no harm)."""


# Coordinator ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Received:
    """A member's message. The first one of a link is its Join."""

    link: int
    message: object


@dataclass(frozen=True)
class Dropped:
    """A link has ended. silent: nobody said so, the peer's machine just stopped answering."""

    link: int
    silent: bool


@dataclass(frozen=True)
class ObserversChanged:
    """So many observers (the operator, usually) are linked now."""

    observers: int


@dataclass(frozen=True)
class FromOperator:
    """The operator tells something."""

    message: observer.Nodes | observer.End | observer.Superseded


CoordinatorEvent = Received | Dropped | ObserversChanged | FromOperator | Tick


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
    """Close after what was sent."""

    link: int
    reason: str


@dataclass(frozen=True)
class Log:
    """A decision worth a log line."""

    text: str


@dataclass(frozen=True)
class CompleteShutdown:
    """The job is closed and every member knows: this coordinator has nothing left to do."""


@dataclass(frozen=True)
class StepDown:
    """Leave office. Links are hung up, so that their members look for who comes after."""

    reason: str


CoordinatorEffect = Send | Broadcast | Hangup | Log | CompleteShutdown | StepDown


# Heir -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JoinReceived:
    """A member's Join at a sidecar that is not in office."""

    link: int
    join: membership.Join


@dataclass(frozen=True)
class RecordHardState:
    """Store it before the effects that follow: they rely on it."""

    hard_state: HardState


@dataclass(frozen=True)
class AssumeLeadership:
    """A majority has granted it. Who waits in the hall belongs to the new coordinator."""

    term: Term
    leader_snapshot: membership.LeaderSnapshot | None


CandidateEvent = JoinReceived | Received | Dropped | Tick
CandidateEffect = Send | Hangup | RecordHardState | Log | AssumeLeadership


#: Among the hosts of a Dial: whoever the coordinator's Service leads to.
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
    """A worker of this pod tells of the rollout servers that it updates."""

    replicas: membership.Replicas


@dataclass(frozen=True)
class LauncherDown:
    pass


@dataclass(frozen=True)
class LinkUp:
    """A connection to a sidecar of the job, both sides authenticated. host: the one of Dial's that answered."""

    host: str


@dataclass(frozen=True)
class FromCoordinator:
    message: object


@dataclass(frozen=True)
class LinkDown:
    silent: bool = False  # no kernel has closed the connection: the coordinator's machine does not respond


@dataclass(frozen=True)
class LeaveRequested:
    """The pod is to end (preStop, or SIGTERM to the sidecar)."""

    reason: str
    grace_s: float
    verdict: Verdict = Verdict.UNKNOWN


@dataclass(frozen=True)
class Unfit:
    """The sidecar can take part in nothing any more, for this reason."""

    reason: str


@dataclass(frozen=True)
class CalledBy:
    """A member without a coordinator has called this sidecar, which is no coordinator either."""

    ip: str


@dataclass(frozen=True)
class LeadershipAssumed:
    """This very sidecar has come into office: its member belongs to it. elected: its callers stay connected."""

    elected: bool = False


@dataclass(frozen=True)
class VerdictAnnotated:
    """The pod's annotation has a verdict about its node."""

    verdict: membership.NodeVerdict


@dataclass(frozen=True)
class ClosedByOperator:
    """The operator says that the job is closed, and no coordinator is there to say it."""

    close: membership.Close


MemberEvent = (
    LauncherUp
    | FromLauncher
    | FromWorker
    | LauncherDown
    | LinkUp
    | FromCoordinator
    | LinkDown
    | LeaveRequested
    | CalledBy
    | LeadershipAssumed
    | Unfit
    | VerdictAnnotated
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
    """Connect to one of these hosts, in this order; again and again until it works or a Hangup comes."""

    hosts: tuple[str, ...]  # SERVICE stands for the coordinator's Service
    delay_s: float = 0.0


@dataclass(frozen=True)
class HangupCoordinator:
    reason: str


@dataclass(frozen=True)
class KeepLink:
    """The launcher is to keep a duplicate of the link's socket, in place of the one it keeps: it leads into office."""


@dataclass(frozen=True)
class RecordLauncher:
    """The launcher has connected, or its connection has ended: for a later process of this sidecar."""

    connected: bool


@dataclass(frozen=True)
class RecordVerdict:
    """Keep it where the launcher finds it when it is asked to end."""

    verdict: membership.NodeVerdict


@dataclass(frozen=True)
class RecordClose:
    """Keep the close where a restarted sidecar and the kubelet find it."""

    close: membership.Close


@dataclass(frozen=True)
class Finish:
    """Nothing is left to do for this pod: the sidecar may end."""


MemberEffect = (
    ToCoordinator
    | ToLauncher
    | Dial
    | HangupCoordinator
    | KeepLink
    | RecordVerdict
    | RecordLauncher
    | RecordClose
    | RecordHardState
    | Finish
    | Log
)

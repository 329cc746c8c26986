"""Messages between the operator and a job's coordinator: the operator observes and appoints, the coordinator reports.

The tuples TO_SIDECAR and TO_OPERATOR have the direction of each message. A snapshot is complete, and not a difference
to the one before: so an operator that connects late, or again, gets the whole state.
"""

from dataclasses import dataclass
from typing import Optional

from understudy_protocol.enums import CloseReason, Drill, Fault, FaultClass, RoundToken, Term, WorkersState
from understudy_protocol.membership import Close, RankHolder
from understudy_protocol.recovery import Cause as Cause
from understudy_protocol.recovery import Consequence as Consequence
from understudy_protocol.recovery import Recovery as Recovery
from understudy_protocol.rollouts import Rollouts


@dataclass(frozen=True)
class Observe:
    """Asks for the state of the job: a coordinator answers with a Snapshot, another sidecar with Refused."""


@dataclass(frozen=True)
class Appoint:
    """Become the coordinator in this epoch; the answer is a Snapshot. An epoch that is not newer changes nothing."""

    epoch: int
    at_least_round: int  # the newest round in status: the new coordinator starts above it
    recoveries_by_strategy: dict[str, int]  # from status, so that the counts continue
    running_pods: tuple[str, ...] = ()  # uids of the running pods: it waits for no others; empty: not known
    rank_holders: tuple[
        RankHolder, ...
    ] = ()  # pods that had ranks in that round, at most 100; pods that may be lost come first
    coordinator_uid: str = ""  # uid of the pod that coordinated that round; "" if the operator does not know it
    coordinator_lost_s: Optional[float] = None  # seconds since the operator lost the last coordinator; None: not known


@dataclass(frozen=True)
class End:
    """Close the rendezvous, because the job was suspended or deleted."""

    reason: CloseReason
    message: str


@dataclass(frozen=True)
class Superseded:
    """The operator has found a newer coordinator. To the coordinator that it replaces, and to pods that may wait for an
    election: step down, and redirect all callers to that pod.
    """

    term: Term
    pod_uid: str  # "": that coordinator is lost
    ip: str


@dataclass(frozen=True)
class NodeFact:
    """The verdict and the topology domain of one node."""

    node: str
    domain: str = ""  # topology domain; "" if the job does not use domains
    hardware_finding: str = ""  # why no member on it may get ranks; "" if there is no such finding
    until: Optional[float] = None  # when the verdict expires; None: it does not expire
    fault_class: Optional[FaultClass] = None  # of the verdict; None: no finding, or a sender that does not know classes
    leaving_reason: str = ""  # why the node will leave soon, with healthy hardware; "" if it stays
    grace_s: Optional[float] = None  # seconds until it leaves; None: it waits for the grace periods of its pods


@dataclass(frozen=True)
class DrainRequest:
    """A user wants this pod to give its ranks to a spare, while it still trains."""

    pod_uid: str
    reason: str  # the user's; may be any text


@dataclass(frozen=True)
class DrillOrder:
    """Break a worker of this pod in this round, on purpose. A later round is not affected."""

    token: RoundToken
    pod_uid: str
    drill: Drill  # Process or Hang: the operator does the others by itself
    within_s: float  # the fault is detected within this time


@dataclass(frozen=True)
class Nodes:
    """The verdicts of all nodes of the job's pods, drains, a drill, and pods that have ended. They replace those of the
    previous message.
    """

    facts: tuple[NodeFact, ...]
    at: float = 0.0  # when they were valid; 0: not known
    drains: tuple[DrainRequest, ...] = ()
    drill: Optional[DrillOrder] = None
    ended_pods: tuple[str, ...] = ()  # uids of voters that have ended: a new coordinator does not wait for them


@dataclass(frozen=True)
class MemberView:
    """One member, as the coordinator sees it."""

    pod_uid: str
    pod_name: str
    node: str
    index: Optional[int]
    group_rank: Optional[int]  # None: a spare
    workers: WorkersState


@dataclass(frozen=True)
class Lost:
    """A member that counts as lost. The operator replaces its pod."""

    pod_uid: str
    pod_name: str
    node: str
    fault: Fault
    reason: str
    at: float


@dataclass(frozen=True)
class SnapshotTime:
    """A part of StepProgress: a snapshot of the training."""

    step: int
    at: float  # when it was saved


@dataclass(frozen=True)
class StepProgress:
    """The newest step that rank 0 has reported. is_counted: as in the launcher's Stepped.

    snapshot, copied: the newest snapshots of the pod that has reported it, as in the members' Progress.
    """

    step: int
    total: Optional[int]
    at: float
    is_counted: bool = False
    snapshot: Optional[SnapshotTime] = None
    copied: Optional[SnapshotTime] = None


@dataclass(frozen=True)
class ForkFallbacks:
    """Pods whose workers start as new processes instead of forks."""

    pods: int
    pod_name: str  # of one of them
    reason: str  # why its workers are not forked, and the fix


@dataclass(frozen=True)
class SlowRank:
    """A rank that the others wait for in each step."""

    rank: int
    pod_name: str
    node: str
    percent: int  # the duration of a step, in percent of its duration without this rank
    late_s: float  # how much later than the others it enters the collectives
    since: float  # when it was found


@dataclass(frozen=True)
class Snapshot:
    """The whole state of the job: the answer to Observe and Appoint, and sent after changes, at most five a second."""

    token: RoundToken
    pod_uid: str  # the coordinator's own
    members: tuple[MemberView, ...]
    lost: tuple[Lost, ...]
    recoveries: tuple[Recovery, ...]  # the newest 10, oldest first
    recoveries_by_strategy: dict[str, int]
    progress: Optional[StepProgress]
    waiting_for: str  # the reason why the next round waits; empty while a round runs
    closed: Optional[Close]
    actives: int = 0  # members of the running round: fewer than declared while an elastic job has shrunk; 0: unknown
    standby_coordinators: tuple[str, ...] = ()  # pod uids of the standby coordinators, in order
    voters: tuple[str, ...] = ()  # pod uids of the voters; empty until the first configuration is committed
    rollouts: Optional[Rollouts] = None  # None: no worker has reported any
    fork_fallbacks: Optional[ForkFallbacks] = None  # None: all workers that should be forked are forked
    lacks_quorum: bool = False  # no majority of the voters is connected, so it cannot replace a member or form a round
    restarts_left: Optional[int] = None  # restarts that the budget allows now; None: not known
    stepping_since: Optional[float] = None  # the first step of the running round; None: none, or in an earlier term
    slow_rank: Optional[SlowRank] = None  # of the running round; None: none was found


@dataclass(frozen=True)
class Stepping:
    """Only the progress has changed since the last Snapshot."""

    progress: StepProgress


@dataclass(frozen=True)
class Refused:
    """This sidecar is not the coordinator. It names the coordinator's pod if it knows it, or else ""."""

    reason: str
    pod_uid: str = ""
    ip: str = ""
    config_epoch: int = 0  # newest epoch with voters that it acknowledged: members elect within it
    replacement_reason: str = (
        ""  # why this pod takes no part in the job any more, so that it must be replaced; "": it takes part
    )
    lacks_launcher: bool = False  # no launcher has connected yet, or the last one has ended


TO_SIDECAR = (Observe, Appoint, Superseded, End, Nodes)
TO_OPERATOR = (Snapshot, Stepping, Refused)

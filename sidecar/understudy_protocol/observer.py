"""Messages between the operator and a job's coordinator: the operator follows and appoints, the coordinator tells.

TO_SIDECAR and TO_OPERATOR say who sends what. A snapshot is whole, never a difference: the operator may come late, or
come back, and still knows everything.
"""

from dataclasses import dataclass
from typing import Optional

from understudy_protocol.membership import Close, Seat
from understudy_protocol.recovery import Cause as Cause
from understudy_protocol.recovery import Recovery as Recovery
from understudy_protocol.rollouts import Rollouts
from understudy_protocol.words import CloseReason, Fault, FaultClass, Office, RoundToken, WorkersState


@dataclass(frozen=True)
class Observe:
    """Tell who is in office: the answer is a Snapshot, or Refused."""


@dataclass(frozen=True)
class Appoint:
    """Take office in this epoch (a lower or equal one than the office held is a no-op); the answer is a Snapshot."""

    epoch: int
    at_least_round: int  # the newest round that status tells: the new office starts above it
    recoveries_by_strategy: dict[str, int]  # what status tells, so that the counts go on
    may_come: tuple[str, ...] = ()  # uids of the pods that run: nobody else is waited for; empty: not known
    seats: tuple[Seat, ...] = ()  # pods that held ranks of that round, those that may be lost first; at most 100
    holder: str = ""  # uid of the pod that coordinated that round; "" if the operator does not know


@dataclass(frozen=True)
class End:
    """Close the rendezvous for a reason of the operator's: Suspended or Deleted."""

    reason: CloseReason
    message: str


@dataclass(frozen=True)
class Superseded:
    """To who believes to be in office, and was replaced by the operator's appointment: all are to call that pod."""

    office: Office
    pod_uid: str
    ip: str


@dataclass(frozen=True)
class NodeFact:
    """What the operator holds about one node."""

    node: str
    domain: str = ""  # topology domain; "" if the job asks for none
    faulty: str = ""  # why no member on it may be given ranks; "" if nothing is held against it
    until: Optional[float] = None  # when the verdict expires; None: not by itself
    fault_class: Optional[FaultClass] = None  # of the verdict; None: nothing is held, or a sender that knows of none
    going: str = ""  # why the node goes soon, with hardware that is well; "" if it stays
    grace_s: Optional[float] = None  # how long it stays then; None: as long as its pods may take


@dataclass(frozen=True)
class Nodes:
    """What the operator holds about the nodes of the job's pods: whole, in place of what it told before."""

    facts: tuple[NodeFact, ...]
    at: float = 0.0  # when that was so; 0: not known


@dataclass(frozen=True)
class MemberView:
    """One member, as the coordinator sees it."""

    pod_uid: str
    pod_name: str
    node: str
    index: Optional[int]
    group_rank: Optional[int]  # None: waits as a spare
    workers: WorkersState


@dataclass(frozen=True)
class Lost:
    """A member that counts as lost: its pod is to be replaced."""

    pod_uid: str
    pod_name: str
    node: str
    fault: Fault
    reason: str
    at: float


@dataclass(frozen=True)
class StepProgress:
    """The newest step that rank 0 has told of."""

    step: int
    total: Optional[int]
    at: float


@dataclass(frozen=True)
class FreshStarts:
    """Pods whose workers start as new processes, although they were to be forked."""

    pods: int
    pod_name: str  # of one of them
    reason: str  # what keeps its workers from being forked, and what to do


@dataclass(frozen=True)
class Snapshot:
    """In answer to the operator, and after changes, at most five a second: all that is known, never a difference."""

    token: RoundToken
    pod_uid: str  # the coordinator's own
    members: tuple[MemberView, ...]
    lost: tuple[Lost, ...]
    recoveries: tuple[Recovery, ...]  # the newest 10, oldest first
    recoveries_by_strategy: dict[str, int]
    progress: Optional[StepProgress]
    waiting_for: str  # what the next round waits for; empty while one runs
    closed: Optional[Close]
    actives: int = 0  # members of the running round: fewer than declared while an elastic job has shrunk; 0: unknown
    heirs: tuple[str, ...] = ()  # pod uids of the succession
    electorate: tuple[str, ...] = ()  # pod uids; empty until the first electorate has been acknowledged
    rollouts: Optional[Rollouts] = None  # None: no worker has told of any
    fresh_starts: Optional[FreshStarts] = None  # None: all workers are forked that are to be


@dataclass(frozen=True)
class Stepping:
    """The progress alone has changed since the last Snapshot: not worth a whole one."""

    progress: StepProgress


@dataclass(frozen=True)
class Refused:
    """This sidecar holds no office. It may know who does; "" if not."""

    reason: str
    pod_uid: str = ""
    ip: str = ""
    electorate_epoch: int = 0  # the newest of which it has acknowledged an electorate: within it members may elect


TO_SIDECAR = (Observe, Appoint, Superseded, End, Nodes)
TO_OPERATOR = (Snapshot, Stepping, Refused)

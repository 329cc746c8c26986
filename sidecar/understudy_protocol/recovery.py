"""Faults, recoveries, and the history that the ladder uses: parts of messages of several kinds.

Times are Unix seconds; ranks are global. A field with a default may be missing.
"""

from dataclasses import dataclass
from typing import Optional

from understudy_protocol.enums import Fault, Strategy, Term, Tier

#: Limits of a recovery's texts and of its list of consequences.
MAX_MESSAGE_CHARS = 500
MAX_TRACEBACK_CHARS = 2000
MAX_CONSEQUENCES = 16
MAX_CONSEQUENCE_CHARS = 200
#: Recovery.reason of a member that was swapped because of its node's verdict, and not because of a fault.
SWAP_REASON = "it is swapped before it fails"
#: Recovery.reason of a member that was swapped because a user drained its pod.
DRAIN_REASON = "a user drains its pod"
#: Recovery.reason of a fault that a drill has caused begins with this.
DRILL_REASON = "a drill"


@dataclass(frozen=True)
class Cause:
    """The worker or pod that failed first, as far as known. The message is the worker's own if it left one."""

    rank: Optional[int]
    pod: str
    node: str
    exit_code: Optional[int]
    signal: Optional[str]
    message: str
    traceback: str = ""  # the end of the worker's Python traceback; "" if it left none


@dataclass(frozen=True)
class Consequence:
    """A worker's failure that was reported after the first one of its round, and before the next round."""

    rank: int
    pod: str
    exit_code: Optional[int]
    signal: Optional[str]
    message: str


@dataclass(frozen=True)
class Recovery:
    """From a fault to the first step of the next round. Times are Unix seconds.

    A recovery is open until it has resumed_at, or running_at. running_at is set only while no worker of the job has
    ever reported a step: then the start of the round's workers is the last thing that the coordinator sees.
    """

    round: int  # the round that the recovery formed
    fault: Fault
    strategy: Optional[Strategy]  # None until a member can take the lost ranks
    cause: Cause
    detected_at: float
    resumed_at: Optional[float]
    reason: str = ""  # why the ladder chose this strategy; "" while that is not known
    running_at: Optional[float] = None  # when all workers of the round had started
    pause_s: Optional[float] = None  # from the last step before the fault to the first one after it, on one pod
    consequences: tuple[Consequence, ...] = ()  # the first ones, at most MAX_CONSEQUENCES
    consequence_count: int = 0  # all that were reported
    tier: Optional[Tier] = None  # where its round restores from; None: the job has no snapshots, or it is not known yet
    tier_reason: str = ""  # why not from a snapshot
    lost_steps: Optional[int] = None  # steps that the round has to make again; None: not known
    vacant_until: Optional[float] = None  # when a pod for its last vacant rank joined; None: the pods were there
    caught_up_at: Optional[float] = None  # when its round had made the lost steps again; None: not yet, or none is lost


@dataclass(frozen=True)
class CountedFault:
    """A worker's fault that counts against the budget of restarts, its pod, or its rank."""

    at: float
    pod_uid: str  # "" if the first failed pod is not known
    rank: Optional[int]  # the worker's, or its pod's first rank if the worker is not known
    is_charged: bool = True  # to the budget
    caused_eviction: bool = False  # its member was evicted because of it
    is_repeated: bool = False  # it was repeated before the next round had started everywhere


@dataclass(frozen=True)
class DrilledRound:
    """A drill breaks a worker of this round. Until that time, a worker's fault in this round counts as the drill's."""

    round: int
    until: float


@dataclass(frozen=True)
class History:
    """The history that the ladder uses. Histories are ordered by term, then by number."""

    term: Term
    number: int
    counted_faults: tuple[CountedFault, ...]  # the newest, within the budget's window
    evicted: dict[str, str]  # pod uid -> reason of the eviction
    open: tuple[Recovery, ...]  # recoveries that have not ended
    failed_starts: int  # consecutive rounds that failed at their start
    drilled: Optional[DrilledRound] = None  # the newest one
    ended: tuple[Recovery, ...] = ()  # recoveries that have just ended: observers may not know that yet

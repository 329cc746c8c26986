"""What broke, what was done about it, and what of that counts later: parts of messages of several kinds.

Times are Unix seconds; ranks are global. Fields with a default are newer than version 1 of the protocol.
"""

from dataclasses import dataclass
from typing import Optional

from understudy_protocol.words import Fault, Office, Strategy

#: Recovery.reason of a member that was swapped for what was held against its node, and not for what it did.
SWAPPED = "it is swapped before it fails"


@dataclass(frozen=True)
class Cause:
    """Who broke first, as far as is known; the message is the worker's own where it left one."""

    rank: Optional[int]
    pod: str
    node: str
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
    strategy: Optional[Strategy]  # None while nobody is there to take the lost ranks
    cause: Cause
    detected_at: float
    resumed_at: Optional[float]
    reason: str = ""  # why it was this rung of the ladder; "" while that is not known
    running_at: Optional[float] = None  # when all workers of the round had been started
    pause_s: Optional[float] = None  # from the last step before to the first after, as a pod measured that made both


@dataclass(frozen=True)
class Offence:
    """A worker's fault that counts: against the budget of restarts, its pod, or its rank."""

    at: float
    pod_uid: str  # "" where nobody knows who was first
    rank: Optional[int]  # the worker's; its pod's first where nobody saw which it was
    charged: bool = True  # to the budget
    given_up: bool = False  # its pod gave its ranks away for it
    again: bool = False  # it happened once more before the next round had started everywhere


@dataclass(frozen=True)
class History:
    """What the ladder of recoveries goes by; the newer of two is that of the newer office, or the higher number."""

    office: Office
    number: int
    offences: tuple[Offence, ...]  # the newest, within the budget's window
    given_up: dict[str, str]  # pod uid -> why
    open: tuple[Recovery, ...]  # recoveries that still last
    failed_starts: int  # rounds in a row that have failed right at their start

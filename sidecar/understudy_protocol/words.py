"""The closed sets and the ordered token that every program uses; docs/design.md explains each word.

Values are what users read in `status` and in events, so they are spelled as the API spells them.
"""

from dataclasses import dataclass
from enum import Enum


class Fault(str, Enum):
    """What broke."""

    PROCESS = "Process"
    POD = "Pod"
    NODE = "Node"
    HANG = "Hang"
    WEIGHT_UPDATE = "WeightUpdate"


class Strategy(str, Enum):
    """How a recovery was done: a rung of the ladder."""

    IN_PLACE = "InPlace"
    SPARE_SWAP = "SpareSwap"
    POD_RECREATE = "PodRecreate"


class OnFailedUpdate(str, Enum):
    """What follows when weights could not be updated, and no retry is left."""

    RESTART_JOB = "RestartJob"
    RESTART_ROLLOUTS = "RestartRollouts"


class CloseReason(str, Enum):
    """Why the rendezvous ended for good."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SUSPENDED = "Suspended"
    DELETED = "Deleted"


class Verdict(str, Enum):
    """What is held about a node's hardware."""

    HEALTHY = "Healthy"
    FAULTY = "Faulty"
    UNKNOWN = "Unknown"


class FaultClass(str, Enum):
    """Why a node cannot be relied on any more."""

    HARDWARE = "Hardware"  # nothing is saved there: a save may hang, or break what it writes
    MAINTENANCE = "Maintenance"  # it goes soon, and works until then
    PREEMPTION = "Preemption"  # the same, in a moment


class Proactive(str, Enum):
    """Whether a member gives its ranks to a spare while it still trains, because its node has turned bad."""

    OFF = "Off"
    NEXT_CHECKPOINT = "NextCheckpoint"  # once everybody has saved; from broken hardware at once
    NOW = "Now"  # at once


class WorkersState(str, Enum):
    """What a member's workers do, in the round that the member was last assigned to."""

    IDLE = "Idle"
    STARTING = "Starting"
    RUNNING = "Running"
    FAILED = "Failed"
    FINISHED = "Finished"


#: Exit code of a launcher whose own workers say nothing better, by the reason of the close. Zero means success only.
CLOSE_EXIT_CODES = {
    CloseReason.SUCCEEDED: 0,
    CloseReason.FAILED: 81,
    CloseReason.SUSPENDED: 82,
    CloseReason.DELETED: 83,
}

#: Of the launcher of a pod that the job has given up, whose workers say nothing better.
GIVEN_UP_EXIT_CODE = 84


#: Of the launcher of a pool's spare that has failed its self-check.
UNFIT_EXIT_CODE = 85


@dataclass(frozen=True, order=True)
class RoundToken:
    """(epoch, term, round): the order of everything, and the fencing token that workers get as UNDERSTUDY_ROUND.

    epoch grows with each appointment by the operator, term with each election, round with each rendezvous.
    """

    epoch: int
    term: int
    round: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.term}.{self.round}"

    def next_round(self) -> "RoundToken":
        return RoundToken(self.epoch, self.term, self.round + 1)


@dataclass(frozen=True, order=True)
class Office:
    """One coordinator's time in office: (epoch, term). A message of an older one is dropped."""

    epoch: int
    term: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.term}"


@dataclass(frozen=True, order=True)
class ElectorateVersion:
    """The order of all lists of voters of a job: the office that proposed it, and the number of it within that."""

    epoch: int
    term: int
    serial: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.term}.{self.serial}"


NO_OFFICE = Office(0, 0)
NO_ELECTORATE = ElectorateVersion(0, 0, 0)

#: What a member knows before it has heard of any round.
NO_ROUND = RoundToken(0, 0, -1)

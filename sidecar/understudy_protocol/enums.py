"""The closed sets and the ordered token that every program uses; docs/contributors/design.md defines the words.

Users read these values in `status` and in events, so they are spelled as in the API.
"""

from dataclasses import dataclass
from enum import Enum


class Fault(str, Enum):
    """The kind of a fault."""

    PROCESS = "Process"
    POD = "Pod"
    NODE = "Node"
    HANG = "Hang"
    WEIGHT_UPDATE = "WeightUpdate"


class Strategy(str, Enum):
    """How a recovery was done: a step of the ladder."""

    IN_PLACE = "InPlace"
    SPARE_SWAP = "SpareSwap"
    POD_RECREATE = "PodRecreate"


class Drill(str, Enum):
    """What a drill breaks on purpose."""

    PROCESS = "Process"  # SIGKILL to a worker and its children
    POD = "Pod"  # the deletion of a pod without a grace period
    COORDINATOR = "Coordinator"  # the same for the pod of the coordinator
    HANG = "Hang"  # SIGSTOP to a worker and its children
    NODE = "Node"  # the same deletion for all pods of the job on a node


class Tier(str, Enum):
    """Where the workers of a round restore the training from."""

    MEMORY = "Memory"  # snapshots in the memory of the pods
    PEER = "Peer"  # the same, and at least one pod has fetched a copy that another pod kept
    STORAGE = "Storage"  # the script's own checkpoint


class OnFailedUpdate(str, Enum):
    """The reaction to a failed weight update without a retry left."""

    RESTART_JOB = "RestartJob"
    RESTART_ROLLOUTS = "RestartRollouts"


class CloseReason(str, Enum):
    """The reason of a rendezvous close."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SUSPENDED = "Suspended"
    DELETED = "Deleted"


class Verdict(str, Enum):
    """The result for a node's hardware."""

    HEALTHY = "Healthy"
    FAULTY = "Faulty"
    UNKNOWN = "Unknown"


class FaultClass(str, Enum):
    """Why a node is not reliable."""

    HARDWARE = "Hardware"  # no worker saves there: a save may hang, or write broken data
    MAINTENANCE = "Maintenance"  # the node will leave soon, and works until then
    PREEMPTION = "Preemption"  # the same, within seconds or minutes


class Proactive(str, Enum):
    """Whether a member whose node gets a bad verdict gives its ranks to a spare while it still trains."""

    OFF = "Off"
    NEXT_CHECKPOINT = "NextCheckpoint"  # once all members have saved; at once if the hardware is broken
    NOW = "Now"  # at once


class WorkersState(str, Enum):
    """The state of a member's workers, in the round that the member was last assigned to."""

    IDLE = "Idle"
    STARTING = "Starting"
    RUNNING = "Running"
    FAILED = "Failed"
    FINISHED = "Finished"


#: Exit code of a launcher by the reason of the close, unless one of its workers failed. Only success is zero.
CLOSE_EXIT_CODES = {
    CloseReason.SUCCEEDED: 0,
    CloseReason.FAILED: 81,
    CloseReason.SUSPENDED: 82,
    CloseReason.DELETED: 83,
}

#: Of the launcher of an evicted member, unless one of its workers failed.
EVICTED_EXIT_CODE = 84


#: Of the launcher of a pool's spare that has failed its self-check.
UNFIT_EXIT_CODE = 85


@dataclass(frozen=True, order=True)
class RoundToken:
    """(epoch, term, round): the order of all rounds, and the fencing token that workers get as UNDERSTUDY_ROUND.

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
class Term:
    """The leadership of one coordinator: (epoch, term number). Receivers drop messages of an older one."""

    epoch: int
    number: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.number}"


@dataclass(frozen=True, order=True)
class ConfigVersion:
    """The version of a voter configuration: the term that proposed it, and its number within that term."""

    epoch: int
    term: int
    serial: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.term}.{self.serial}"


NO_TERM = Term(0, 0)
NO_CONFIG = ConfigVersion(0, 0, 0)

#: The round token of a member that knows of no round.
NO_ROUND = RoundToken(0, 0, -1)

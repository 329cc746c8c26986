"""What is known of a job's rollout servers: parts of messages of several kinds.

A worker that updates them tells its sidecar, after each beginning and each end of an update (understudy_rollout/job.py
says how), the sidecar its coordinator, and that the operator.
"""

from dataclasses import dataclass
from typing import Optional

from understudy_protocol.recovery import Cause


@dataclass(frozen=True)
class UpdateFailure:
    """A weight update that failed, and how many in a row have."""

    update: str  # its id
    version: str  # of the weights that it was to bring
    message: str
    in_a_row: int  # failed updates of this worker since the last whole one, this one included
    at: float
    blocked: tuple[str, ...] = ()  # replicas that do not even leave its process group: nothing but their end frees them


@dataclass(frozen=True)
class Rollouts:
    """The replicas of all workers that have told of any, by the state of their weights."""

    fresh: int
    updating: int
    uncertain: int
    version: str  # of the newest whole update; "" before
    failure: Optional[UpdateFailure] = None  # of an update after which none was begun
    cause: Optional[Cause] = None  # whose update it was

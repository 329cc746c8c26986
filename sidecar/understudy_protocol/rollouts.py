"""The state of a job's rollout servers: parts of messages of several kinds.

A worker that updates them reports to its sidecar at the beginning and at the end of each update
(understudy_rollout/update_reports.py). The sidecar forwards the report to the coordinator, and the coordinator forwards
it to the operator.
"""

from dataclasses import dataclass
from typing import Optional

from understudy_protocol.recovery import Cause


@dataclass(frozen=True)
class UpdateFailure:
    """A failed weight update, and the number of consecutive failures."""

    update: str  # its id
    version: str  # of the weights that the update should have installed
    message: str
    in_a_row: int  # failed updates of this worker since its last complete one, including this one
    at: float
    blocked: tuple[str, ...] = ()  # replicas that do not leave its process group: only their end frees them


@dataclass(frozen=True)
class Rollouts:
    """The number of rollout replicas by the state of their weights, over all workers that have reported any."""

    fresh: int
    updating: int
    uncertain: int
    version: str  # of the newest complete update; "" before the first
    failure: Optional[UpdateFailure] = None  # of the newest update, if it failed
    cause: Optional[Cause] = None  # the worker of that update

"""A job's order to a spare of a pool that it has claimed. Only the spare's sidecar keeps it: it has the job's key."""

from dataclasses import dataclass

from understudy_protocol.launcher import TakeOver
from understudy_protocol.pod import JobShape


@dataclass(frozen=True)
class Order:
    """Everything that a claimed spare needs to be a member of its job."""

    shape: JobShape
    coordinator: str  # host:port of the coordinator's Service
    key: str  # the job's membership key, 64 hexadecimal digits
    take_over: TakeOver  # for the launcher

"""A job's order to a spare claimed from a pool. Only the spare's sidecar stores it: it has the job's key."""

from dataclasses import dataclass

from understudy_protocol.launcher import TakeOver
from understudy_protocol.pod import JobShape


@dataclass(frozen=True)
class Order:
    """All that a claimed spare needs to become a member of its job."""

    shape: JobShape
    coordinator: str  # host:port of the coordinator's Service
    key: str  # the job's membership key, 64 hexadecimal digits
    take_over: TakeOver  # for the launcher

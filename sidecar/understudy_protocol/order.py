"""What a claimed spare has to know to be a member of its job. Its sidecar alone keeps it: the job's key is in it."""

from dataclasses import dataclass

from understudy_protocol.launcher import TakeOver
from understudy_protocol.pod import JobShape


@dataclass(frozen=True)
class Order:
    shape: JobShape
    coordinator: str  # host:port of the coordinator's Service
    key: str  # the job's
    take_over: TakeOver  # for the launcher

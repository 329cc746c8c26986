"""What a claimed spare has to know to be a member of its job: sealed on its way, and kept by its sidecar alone."""

from dataclasses import dataclass

from understudy_protocol.launcher import TakeOver
from understudy_protocol.pod import JobShape


@dataclass(frozen=True)
class Order:
    shape: JobShape
    coordinator: str  # host:port of the coordinator's Service
    key: str  # the job's
    take_over: TakeOver  # for the launcher

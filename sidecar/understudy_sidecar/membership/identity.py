"""A member's identity: facts that its pod knows from its start, and that never change."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Identity:
    pod_uid: str
    pod_name: str
    node: str
    ip: str
    index: int | None  # completion index; None for a spare
    grace_s: float = 30.0  # the pod's termination grace period
    fence_s: float = 30.0  # see JobShape
    launcher_timeout_s: float = 15.0  # see JobShape
    warm: bool = False  # it waited in a pool as a spare before it belonged to this job

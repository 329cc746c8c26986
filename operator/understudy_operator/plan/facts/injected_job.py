"""The facts of an InjectedJob beyond those of a job with a world."""

from dataclasses import dataclass

from understudy_protocol.pod import PodGroup


@dataclass(frozen=True)
class InjectedJob:
    uid: str  # of the InjectedJob itself
    groups: tuple[PodGroup, ...]
    grace_s: int
    target_kind: str
    target_name: str

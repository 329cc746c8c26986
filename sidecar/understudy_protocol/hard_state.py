"""The hard state of a member, as it is stored: a restarted sidecar process continues with it."""

from dataclasses import dataclass
from typing import Optional

from understudy_protocol.enums import NO_CONFIG, NO_TERM, ConfigVersion, Term
from understudy_protocol.membership import LeaderSnapshot, StandbyCoordinator


@dataclass(frozen=True)
class HardState:
    term: Term = NO_TERM  # the newest term in which it voted, followed or led
    voted_for: str = ""  # pod uid of the candidate that got its vote in that term; "" if it followed or led
    config_version: ConfigVersion = NO_CONFIG  # the newest version that it acknowledged
    standby_coordinators: tuple[StandbyCoordinator, ...] = ()
    leader_snapshot: Optional[LeaderSnapshot] = None  # of a standby coordinator: the newest leader snapshot
    previous_standby_coordinators: tuple[
        StandbyCoordinator, ...
    ] = ()  # standby coordinators of earlier lists, the newest first

"""The hard state of a member, as it is stored: a restarted sidecar process continues with it."""

from dataclasses import dataclass
from typing import Optional

from understudy_protocol.membership import Estate, Heir
from understudy_protocol.words import NO_ELECTORATE, NO_OFFICE, ElectorateVersion, Office


@dataclass(frozen=True)
class Vow:
    office: Office = NO_OFFICE  # the newest in which it voted, which it followed, or in which it led
    granted_to: str = ""  # pod uid of the candidate that got its vote in that term; "" if it followed or led
    electorate: ElectorateVersion = NO_ELECTORATE  # the newest version that it acknowledged
    heirs: tuple[Heir, ...] = ()
    estate: Optional[Estate] = None  # of a standby coordinator: the newest leader snapshot
    former_heirs: tuple[Heir, ...] = ()  # standby coordinators of earlier lists, the newest first

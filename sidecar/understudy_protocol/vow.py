"""What a member has promised about offices, as it is stored: it crosses the border between two lives of a sidecar."""

from dataclasses import dataclass
from typing import Optional

from understudy_protocol.membership import Estate, Heir
from understudy_protocol.words import NO_ELECTORATE, NO_OFFICE, ElectorateVersion, Office


@dataclass(frozen=True)
class Vow:
    office: Office = NO_OFFICE  # the newest that was granted, followed or held
    granted_to: str = ""  # pod uid of the heir that got the grant of that office; "" if it was followed or held
    electorate: ElectorateVersion = NO_ELECTORATE  # the newest that was acknowledged
    heirs: tuple[Heir, ...] = ()
    estate: Optional[Estate] = None  # what an heir was given

"""What a member has promised, and what follows from it: the part of it that a restart must not forget.

- An office is granted once. It must be newer than every one that the member has granted or followed, and of a
  candidate whose electorate is not older than what the member has acknowledged.
- A coordinator of an older office than the newest known is not followed.
- What changes here is stored (effect RecordVow) before anything that it allows is sent.
"""

from dataclasses import replace

from understudy_protocol.membership import Candidacy, Estate, Succession
from understudy_protocol.recovery import History
from understudy_protocol.vow import Vow
from understudy_protocol.words import Office

#: A coordinator that was cut off names only members of its side: those of the other side are called, too.
FORMER_HEIRS = 5


class Voter:
    """Each method says whether the vow has changed, and with `grant` and `follow` whether it may be done."""

    def __init__(self, vow: Vow) -> None:
        self.vow = vow

    def grant(self, candidacy: Candidacy) -> bool:
        """Whether the office may be given to who asks for it. The vow is changed then."""
        vow = self.vow
        if candidacy.electorate < vow.electorate:
            return False
        if vow.office == candidacy.office and vow.granted_to == candidacy.pod_uid:
            return True
        if candidacy.office <= vow.office:
            return False
        self.vow = replace(vow, office=candidacy.office, granted_to=candidacy.pod_uid)
        return True

    def follow(self, office: Office) -> bool:
        """Whether a coordinator of this office is the newest that is known."""
        if office < self.vow.office:
            return False
        if office > self.vow.office:
            self.vow = replace(self.vow, office=office, granted_to="")
        return True

    def hold(self, office: Office) -> bool:
        """Take an office that the operator has given: never in an epoch that was heard of before."""
        if office.epoch <= self.vow.office.epoch:
            return False
        self.vow = replace(self.vow, office=office, granted_to="")
        return True

    def acknowledge(self, succession: Succession) -> bool:
        """Whether its version is at least as new as the stored one, and its office as the newest known."""
        version = succession.electorate
        if version < self.vow.electorate or Office(version.epoch, version.term) < self.vow.office:
            return False
        known = dict.fromkeys((*self.vow.heirs, *self.vow.former_heirs))
        former = tuple(heir for heir in known if heir not in succession.heirs)[:FORMER_HEIRS]
        self.vow = replace(self.vow, electorate=version, heirs=succession.heirs, former_heirs=former)
        return True

    @property
    def history(self) -> History | None:
        """Of the newest electorate that it knows: what an older one's heir was told is not worth telling."""
        estate = self.vow.estate
        return None if estate is None or estate.electorate < self.vow.electorate else estate.history

    def inherit(self, estate: Estate) -> bool:
        known = self.vow.estate
        if known is not None and estate.electorate < known.electorate:
            return False
        self.vow = replace(self.vow, estate=estate)
        return True

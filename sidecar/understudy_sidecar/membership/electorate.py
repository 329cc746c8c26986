"""Who votes about the next coordinator, and how that list changes without ever splitting.

- An electorate is a set of pod uids under a version (epoch, term, serial). Office needs the grants of a majority of it.
- It changes only by a proposal of the coordinator in office: members store the new version before they acknowledge it,
  and it counts once majorities of the old and of the new one have. Until then an election needs both.
- A voter grants nothing to a candidate whose electorate is older than what it has acknowledged. So of two candidates
  with different electorates at most one finds a majority.
- The first electorate of an epoch has none before it: the operator's appointment stands for it. Until it counts no
  election is possible, and the operator appoints.

The full list is with the coordinator and its heirs alone; everybody else keeps the version: O(1) a member.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from understudy_protocol.words import NO_ELECTORATE, ElectorateVersion, Office

NOBODY: frozenset[str] = frozenset()


def majority(voters: Collection[str]) -> int:
    """So many of them are needed."""
    return len(voters) // 2 + 1


@dataclass(frozen=True)
class Electorate:
    """former: of the electorate before, until a majority of it is known to have acknowledged this one."""

    version: ElectorateVersion = NO_ELECTORATE
    voters: frozenset[str] = NOBODY
    former: frozenset[str] = NOBODY

    @property
    def exists(self) -> bool:
        return bool(self.voters)


class Tally:
    """How many of an electorate are for something. Counted one by one: at 10,000 voters nobody looks at all of them."""

    def __init__(self, electorate: Electorate, uids: Iterable[str] = ()) -> None:
        self.electorate = electorate
        self._uids: set[str] = set()
        self._voters = self._former = 0
        for uid in uids:
            self.add(uid)

    def add(self, uid: str) -> None:
        if uid not in self._uids:
            self._uids.add(uid)
            self._count(uid, 1)

    def discard(self, uid: str) -> None:
        if uid in self._uids:
            self._uids.remove(uid)
            self._count(uid, -1)

    def carries(self) -> bool:
        """Whether it is a majority, of both lists while both count."""
        voters, former = self.electorate.voters, self.electorate.former
        return self._voters >= majority(voters) and (not former or self._former >= majority(former))

    def __len__(self) -> int:
        return len(self._uids)

    def __iter__(self) -> Iterator[str]:
        return iter(self._uids)

    def _count(self, uid: str, by: int) -> None:
        self._voters += by * (uid in self.electorate.voters)
        self._former += by * (uid in self.electorate.former)


@dataclass
class ElectorateKeeper:
    """The coordinator's side: proposes, counts acknowledgements, and knows which list counts."""

    office: Office
    settled: Electorate = field(default_factory=Electorate)  # the newest that counts
    proposed: Electorate | None = None
    _acks: Tally = field(default_factory=lambda: Tally(Electorate()))
    _serial: int = 0

    @property
    def newest(self) -> Electorate:
        return self.proposed or self.settled

    def wants(self, voters: Iterable[str]) -> bool:
        """Whether these are to be proposed. One that does not count yet may be superseded: the base stays the same."""
        wanted = frozenset(voters)
        if self.proposed is not None:
            return self.proposed.voters != wanted
        return bool(wanted) and (self.settled.voters != wanted or self._of_another_office(self.settled.version))

    def propose(self, voters: Iterable[str]) -> Electorate:
        self._serial += 1
        version = ElectorateVersion(self.office.epoch, self.office.term, self._serial)
        self.proposed = Electorate(version, frozenset(voters), self.settled.voters)
        self._acks = Tally(self.proposed)
        return self.proposed

    def acknowledged(self, uid: str, version: ElectorateVersion) -> bool:
        """Whether the proposal has come to count by this acknowledgement."""
        if self.proposed is None or version != self.proposed.version:
            return False
        self._acks.add(uid)
        if not self._acks.carries():
            return False
        self.settled, self.proposed = Electorate(self.proposed.version, self.proposed.voters), None
        return True

    def _of_another_office(self, version: ElectorateVersion) -> bool:
        return (version.epoch, version.term) != (self.office.epoch, self.office.term)

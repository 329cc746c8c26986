"""Who votes about the next coordinator, and how that list changes without ever splitting.

- An electorate is a set of pod uids under a version (epoch, term, serial). Office needs the grants of a majority of it.
- It changes as Raft's configuration does, by joint consensus: the coordinator proposes another electorate, members
  store its version, and it counts once majorities of the old and of the new one have. Until then it is pending:
  elections and decisions need both majorities, and no other is proposed.
- A coordinator's first proposal repeats the electorate that it was elected with, under a version of its own: as in
  Raft, only acknowledgements of its own office show that an older proposal counts too.
- A voter grants nothing to a candidate whose electorate is older than the version that it has stored, and stores no
  version of an office that is older than the newest that it has granted or followed.
- The first electorate of an epoch has none before it: the operator's appointment stands for it.

docs/contributors/protocol.md, "At most one coordinator", shows why at most one coordinator has a majority.
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
    """former: the voters of the electorate before it, as long as this one is pending."""

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

    def __contains__(self, uid: str) -> bool:
        return uid in self._uids

    def _count(self, uid: str, by: int) -> None:
        self._voters += by * (uid in self.electorate.voters)
        self._former += by * (uid in self.electorate.former)


@dataclass
class ElectorateKeeper:
    """The coordinator's side: proposes one change at a time, and counts its acknowledgements."""

    office: Office
    settled: Electorate = field(
        default_factory=Electorate
    )  # counts; or is the one that this coordinator was elected with
    pending: Electorate | None = None  # proposed in this office, and not yet stored by the majorities
    _acks: Tally = field(default_factory=lambda: Tally(Electorate()))
    _serial: int = 0

    @property
    def newest(self) -> Electorate:
        """The one that elections and decisions need a majority of; of both its lists while it has two."""
        return self.pending or self.settled

    def next_voters(self, voters: Iterable[str]) -> frozenset[str]:
        """Whom to propose now, if these are to vote; empty if nothing is to be proposed, or not yet."""
        wanted = frozenset(voters)
        if self.pending is not None or not wanted:
            return NOBODY
        version = self.settled.version
        if self.settled.exists and (version.epoch, version.term) != (self.office.epoch, self.office.term):
            return self.settled.voters
        return NOBODY if wanted == self.settled.voters else wanted

    def propose(self, voters: Iterable[str]) -> Electorate:
        """voters: of `next_voters`."""
        assert self.pending is None, "one change at a time"
        self._serial += 1
        version, proposed = ElectorateVersion(self.office.epoch, self.office.term, self._serial), frozenset(voters)
        # The electorate of its election may itself have been pending: the list before that one is needed still.
        former = self.settled.former if proposed == self.settled.voters else self.settled.voters
        self.pending = Electorate(version, proposed, former)
        self._acks = Tally(self.pending)
        return self.pending

    def has_acknowledged(self, uid: str) -> bool:
        """Whether this member has stored the pending proposal."""
        return uid in self._acks

    def acknowledged(self, uid: str, version: ElectorateVersion) -> bool:
        """Whether the proposal has come to count by this acknowledgement."""
        if self.pending is None or version != self.pending.version:
            return False
        self._acks.add(uid)
        if not self._acks.carries():
            return False
        self.settled, self.pending = Electorate(self.pending.version, self.pending.voters), None
        return True

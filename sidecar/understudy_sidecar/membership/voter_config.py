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

from understudy_protocol.enums import NO_CONFIG, ConfigVersion, Term

NO_VOTERS: frozenset[str] = frozenset()


def majority(voters: Collection[str]) -> int:
    """So many of them are needed."""
    return len(voters) // 2 + 1


@dataclass(frozen=True)
class VoterConfig:
    """former: the voters of the electorate before it, as long as this one is pending."""

    version: ConfigVersion = NO_CONFIG
    voters: frozenset[str] = NO_VOTERS
    former_voters: frozenset[str] = NO_VOTERS

    @property
    def exists(self) -> bool:
        return bool(self.voters)


class Tally:
    """How many of an electorate are for something. Counted one by one: at 10,000 voters nobody looks at all of them."""

    def __init__(self, voter_config: VoterConfig, uids: Iterable[str] = ()) -> None:
        self.voter_config = voter_config
        self._uids: set[str] = set()
        self._voters = self._former_voters = 0
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

    def has_majority(self) -> bool:
        """Whether it is a majority, of both lists while both count."""
        voters, former = self.voter_config.voters, self.voter_config.former_voters
        return self._voters >= majority(voters) and (not former or self._former_voters >= majority(former))

    def __len__(self) -> int:
        return len(self._uids)

    def __iter__(self) -> Iterator[str]:
        return iter(self._uids)

    def __contains__(self, uid: str) -> bool:
        return uid in self._uids

    def _count(self, uid: str, by: int) -> None:
        self._voters += by * (uid in self.voter_config.voters)
        self._former_voters += by * (uid in self.voter_config.former_voters)


@dataclass
class VoterConfigs:
    """The coordinator's side: proposes one change at a time, and counts its acknowledgements."""

    term: Term
    committed: VoterConfig = field(
        default_factory=VoterConfig
    )  # counts; or is the one that this coordinator was elected with
    pending: VoterConfig | None = None  # proposed in this office, and not yet stored by the majorities
    _acks: Tally = field(default_factory=lambda: Tally(VoterConfig()))
    _serial: int = 0

    @property
    def newest(self) -> VoterConfig:
        """The one that elections and decisions need a majority of; of both its lists while it has two."""
        return self.pending or self.committed

    def next_voters(self, voters: Iterable[str]) -> frozenset[str]:
        """Whom to propose now, if these are to vote; empty if nothing is to be proposed, or not yet."""
        wanted = frozenset(voters)
        if self.pending is not None or not wanted:
            return NO_VOTERS
        version = self.committed.version
        if self.committed.exists and (version.epoch, version.term) != (self.term.epoch, self.term.number):
            return self.committed.voters
        return NO_VOTERS if wanted == self.committed.voters else wanted

    def propose(self, voters: Iterable[str]) -> VoterConfig:
        """voters: of `next_voters`."""
        assert self.pending is None, "one change at a time"
        self._serial += 1
        version, proposed = ConfigVersion(self.term.epoch, self.term.number, self._serial), frozenset(voters)
        # The electorate of its election may itself have been pending: the list before that one is needed still.
        former_voters = self.committed.former_voters if proposed == self.committed.voters else self.committed.voters
        self.pending = VoterConfig(version, proposed, former_voters)
        self._acks = Tally(self.pending)
        return self.pending

    def has_acknowledged(self, uid: str) -> bool:
        """Whether this member has stored the pending proposal."""
        return uid in self._acks

    def acknowledge(self, uid: str, version: ConfigVersion) -> bool:
        """Whether the proposal has come to count by this acknowledgement."""
        if self.pending is None or version != self.pending.version:
            return False
        self._acks.add(uid)
        if not self._acks.has_majority():
            return False
        self.committed, self.pending = VoterConfig(self.pending.version, self.pending.voters), None
        return True

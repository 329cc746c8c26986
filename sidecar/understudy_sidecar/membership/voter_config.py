"""The voter configuration: which members vote for the next coordinator, and how it changes without ever splitting.

- A configuration is a set of pod uids under a version (epoch, term, serial). A candidate needs the votes of a majority.
- It changes by joint consensus, as in Raft: the coordinator proposes another configuration, and members store its
  version. It is committed once majorities of the old and of the new one have stored it. Until then it is pending:
  elections and decisions need both majorities, and no other change is proposed.
- A coordinator's first proposal repeats the configuration that elected it, under a version of its own: as in Raft, only
  acknowledgements of its own term show that an older proposal is committed too.
- A voter denies its vote to a candidate with an older configuration than the version that the voter has stored. It
  stores no version of a term that is older than the newest that it has voted in or followed.
- The first configuration of an epoch has no predecessor: the operator's appointment replaces it.

docs/contributors/protocol.md, "At most one coordinator", shows why at most one coordinator has a majority. Only the
coordinator and its standby coordinators have the full list; all others keep the version: O(1) a member.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from understudy_protocol.enums import NO_CONFIG, ConfigVersion, Term
from understudy_protocol.membership import StandbyCoordinator

NO_VOTERS: frozenset[str] = frozenset()
#: How long after a change of the members the coordinator checks the voter configuration again.
CONFIG_CHANGE_S = 0.5
CONFIG_CHANGE_MEMBERS_PER_SECOND = 1000


def majority(voters: Collection[str]) -> int:
    """The size of a majority."""
    return len(voters) // 2 + 1


@dataclass(frozen=True)
class VoterConfig:
    """old_voters: the voters of the configuration before, as long as this one is pending."""

    version: ConfigVersion = NO_CONFIG
    voters: frozenset[str] = NO_VOTERS
    old_voters: frozenset[str] = NO_VOTERS

    @property
    def exists(self) -> bool:
        return bool(self.voters)


class Tally:
    """The voters of a configuration that have agreed, counted incrementally: an update is O(1), even with 10,000
    voters.
    """

    def __init__(self, voter_config: VoterConfig, uids: Iterable[str] = ()) -> None:
        self.voter_config = voter_config
        self._uids: set[str] = set()
        self._voters = self._old_voters = 0
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
        """Whether these are a majority, of both lists while the configuration is pending."""
        voters, previous = self.voter_config.voters, self.voter_config.old_voters
        return self._voters >= majority(voters) and (not previous or self._old_voters >= majority(previous))

    def __len__(self) -> int:
        return len(self._uids)

    def __iter__(self) -> Iterator[str]:
        return iter(self._uids)

    def __contains__(self, uid: str) -> bool:
        return uid in self._uids

    def _count(self, uid: str, by: int) -> None:
        self._voters += by * (uid in self.voter_config.voters)
        self._old_voters += by * (uid in self.voter_config.old_voters)


@dataclass
class VoterConfigs:
    """The coordinator's side: proposes one change at a time, and counts the acknowledgements."""

    term: Term
    committed: VoterConfig = field(
        default_factory=VoterConfig
    )  # or the one that this coordinator was elected with, which may be pending
    pending: VoterConfig | None = None  # proposed in this term, and not yet stored by the majorities
    _acks: Tally = field(default_factory=lambda: Tally(VoterConfig()))
    _serial: int = 0

    @property
    def newest(self) -> VoterConfig:
        """The configuration for elections and decisions; while it is pending, both its lists need a majority."""
        return self.pending or self.committed

    def next_voters(self, voters: Iterable[str]) -> frozenset[str]:
        """The voters to propose now; empty if there is nothing to propose, or not yet."""
        wanted = frozenset(voters)
        if self.pending is not None or not wanted:
            return NO_VOTERS
        version = self.committed.version
        if self.committed.exists and (version.epoch, version.term) != (self.term.epoch, self.term.number):
            return self.committed.voters
        return NO_VOTERS if wanted == self.committed.voters else wanted

    def propose(self, voters: Iterable[str]) -> VoterConfig:
        """voters: from `next_voters`."""
        assert self.pending is None, "one change at a time"
        self._serial += 1
        version, proposed = ConfigVersion(self.term.epoch, self.term.number, self._serial), frozenset(voters)
        # The configuration of its election may itself have been pending: then the list before that one still counts.
        old_voters = self.committed.old_voters if proposed == self.committed.voters else self.committed.voters
        self.pending = VoterConfig(version, proposed, old_voters)
        self._acks = Tally(self.pending)
        return self.pending

    def has_acknowledged(self, uid: str) -> bool:
        """Whether this member has stored the pending proposal."""
        return uid in self._acks

    def acknowledge(self, uid: str, version: ConfigVersion) -> bool:
        """Whether this acknowledgement commits the proposal."""
        if self.pending is None or version != self.pending.version:
            return False
        self._acks.add(uid)
        if not self._acks.has_majority():
            return False
        self.committed, self.pending = VoterConfig(self.pending.version, self.pending.voters), None
        return True


@dataclass
class ConfigChanges:
    """When the coordinator checks the voter configuration, and what its standby coordinators have got."""

    standbys: tuple[StandbyCoordinator, ...] = ()
    due: float | None = None
    snapshot_is_stale: bool = False
    _snapshots: int = 0

    def on_members_changed(self, members: int, now: float) -> None:
        if self.due is None:
            # Longer in a large job: each proposal goes to thousands of members, and members join by the hundred.
            self.due = now + max(CONFIG_CHANGE_S, members / CONFIG_CHANGE_MEMBERS_PER_SECOND)

    def send_snapshot_later(self, now: float) -> None:
        """A part of the leader snapshot has changed: send it with the next check of the voter configuration."""
        self.snapshot_is_stale = True
        if self.due is None:
            self.due = now + CONFIG_CHANGE_S

    def take_due(self, now: float) -> bool:
        """Whether a check is due now."""
        if self.due is None or now < self.due:
            return False
        self.due = None
        return True

    def postpone(self, now: float) -> None:
        self.due = now + CONFIG_CHANGE_S

    def set_standbys(self, standbys: tuple[StandbyCoordinator, ...]) -> None:
        """If no member is able, keep the previous ones: a coordinator that steps down calls them, too."""
        self.standbys = standbys or self.standbys

    def on_snapshot(self) -> None:
        self.snapshot_is_stale = False

    def next_snapshot(self) -> int:
        """The number of the next snapshot."""
        self._snapshots += 1
        return self._snapshots

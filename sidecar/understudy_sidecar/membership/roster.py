"""The roster: one record per member, and the holder of each group rank.

Facts only; other modules decide. All lookups that happen per message are O(1).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from understudy_protocol.enums import ConfigVersion, RoundToken, WorkersState
from understudy_protocol.membership import Assign, Join, RankHolder, WorkerFailed
from understudy_protocol.snapshots import KeptSteps, SavedSteps
from understudy_sidecar.membership.voter_config import Tally, VoterConfig


@dataclass
class MemberRecord:
    """The coordinator's knowledge of one connected (or just disconnected) member."""

    uid: str = field(init=False)  # of its pod; fields, not properties, because each snapshot reads them of all members
    name: str = field(init=False)
    node: str = field(init=False)
    join: Join
    link: int | None
    joined_at: float
    last_heard: float  # its Join, or its newest message about the end of a worker; others may have been delayed
    workers: WorkersState
    master_port: int
    store_port: int | None
    group_rank: int | None = None
    has_returned: bool = False  # it has no rank, and the one that it had last was vacant when it joined
    failure: WorkerFailed | None = None  # of a claimed round, reported before the round was adopted
    saved: SavedSteps | None = field(init=False)  # its snapshots for the round of its Join
    kept: tuple[KeptSteps, ...] | None = field(init=False)  # the copies that it kept then; None: not known yet
    has_stopped: bool = field(init=False)  # as its Join has reported, and no step was made since
    copy_stride: int = 1  # that it needs
    config_version: ConfigVersion = field(init=False)  # the newest that it has acknowledged
    assign: Assign | None = None  # of the running round; sent again to a member that reconnects without it
    stepped: RoundToken = field(init=False)  # the newest round in which its workers have made a step
    leaving_until: float | None = None
    starts_fresh: str = ""  # why its workers start as new processes instead of forks
    answered: int = 0  # the number of the newest heartbeat that it has answered
    unanswered: list[int] = field(default_factory=list)  # numbers of regular heartbeats

    def __post_init__(self) -> None:
        self.uid, self.name, self.node = self.join.pod_uid, self.join.pod_name, self.join.node
        self.stepped, self.saved, self.kept = self.join.stepped, self.join.saved, self.join.kept
        self.config_version, self.has_stopped = self.join.config_version, self.join.has_stopped

    def was_connected_after(self, at: float, heartbeat: int) -> bool:
        """Whether it certainly was connected after a fault. heartbeat: the newest that was sent before the fault."""
        return self.last_heard > at or self.answered > heartbeat

    def record_answer(self, heartbeat: int) -> None:
        """Only an answer shows that the member responds: another message may be delayed."""
        self.answered = max(self.answered, heartbeat)
        self.unanswered = [number for number in self.unanswered if number > heartbeat]

    def record_connection(self, heartbeat: int) -> None:
        """A new session shows that it responds too, like an answer to the newest heartbeat."""
        self.answered, self.unanswered = heartbeat, []


@dataclass
class Roster:
    """The members by pod uid, and the holders of the group ranks 0, 1, … (None: vacant)."""

    declared_ranks: int  # ranks of the whole job; a round of an elastic one may have fewer
    members: dict[str, MemberRecord] = field(default_factory=dict)
    holders: list[str | None] = field(default_factory=list)
    finished: set[int] = field(default_factory=set)  # group ranks whose workers all exited 0 in the running round
    suspects: dict[str, float] = field(default_factory=dict)  # uid -> since when its connection is silent; oldest first
    leaving: dict[str, float] = field(default_factory=dict)  # uid -> the end of its grace period
    leaving_due: float = math.inf  # when the first grace period ends, or earlier
    measuring: set[str] = field(default_factory=set)  # actives that made the last step before the running round
    unacked: set[str] = field(default_factory=set)  # actives that have not acknowledged the running round
    starting: set[str] = field(default_factory=set)  # actives whose workers are not known to run yet
    domains: dict[int, str] = field(default_factory=dict)  # group rank -> topology domain of its last holder
    last_holders: dict[int, RankHolder] = field(default_factory=dict)  # group rank -> its last holder; may be lost
    removals: int = 0  # members that were removed
    connected: set[str] = field(default_factory=set)
    connected_voters: Tally = field(default_factory=lambda: Tally(VoterConfig()))  # of the newest voter configuration
    _links: dict[int, MemberRecord] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.holders = [None] * self.declared_ranks

    def by_link(self, link: int) -> MemberRecord | None:
        return self._links.get(link)

    def add(self, member: MemberRecord) -> None:
        self.members[member.uid] = member
        self._connect(member)

    def reconnect(self, member: MemberRecord, link: int) -> None:
        """The member has returned on another connection."""
        self.disconnect(member)
        member.link = link
        self._connect(member)

    def _connect(self, member: MemberRecord) -> None:
        assert member.link is not None
        self._links[member.link] = member
        self.connected.add(member.uid)
        self.connected_voters.add(member.uid)
        self.suspects.pop(member.uid, None)

    def disconnect(self, member: MemberRecord) -> None:
        if member.link is not None:
            del self._links[member.link]
            self.connected.discard(member.uid)
            self.connected_voters.discard(member.uid)
            member.link = None

    def set_voter_config(self, voter_config: VoterConfig) -> None:
        self.connected_voters = Tally(voter_config, self.connected)

    def remove(self, member: MemberRecord) -> None:
        """Remove a lost member: its rank is vacant."""
        self.disconnect(member)
        self.removals += 1
        del self.members[member.uid]
        for pending in (self.suspects, self.leaving):
            pending.pop(member.uid, None)
        self.unacked.discard(member.uid)
        self.starting.discard(member.uid)
        self.measuring.discard(member.uid)
        if member.group_rank is not None:
            self.holders[member.group_rank] = None

    def suspect(self, member: MemberRecord, now: float) -> None:
        """The member's connection is silent, or was closed although its workers may still run."""
        self.suspects.pop(member.uid, None)
        self.suspects[member.uid] = now

    def restart_suspicions(self, now: float) -> None:
        """Ignore the silence up to now."""
        self.suspects = dict.fromkeys(self.suspects, now)

    def set_leaving(self, member: MemberRecord, until: float) -> None:
        """The member gets no rank any more, and ends by this time."""
        self.leaving[member.uid] = until
        self.leaving_due = min(self.leaving_due, until)

    def end_grace_periods(self, now: float) -> list[MemberRecord]:
        """The members whose grace periods have ended. Checks the leaving members only when one is due."""
        if now < self.leaving_due:
            return []
        self.leaving_due = min((until for until in self.leaving.values() if now < until), default=math.inf)
        return [self.members[uid] for uid, until in self.leaving.items() if now >= until]

    def keep(self, member: MemberRecord) -> None:
        """The member does not leave after all."""
        self.leaving.pop(member.uid, None)

    def begin_round(self, active: Iterable[MemberRecord]) -> None:
        """These members have got their assignments."""
        self.unacked = {member.uid for member in active}
        self.starting = set(self.unacked)
        self.finished.clear()

    def set_measuring(self, uids: Iterable[str]) -> None:
        """These actives can measure the pause before the round that begins."""
        self.measuring = set(uids)

    def limit_measuring(self, stepped: RoundToken) -> None:
        """The last step before the running round was made in this round."""
        self.measuring = {uid for uid in self.measuring if self.members[uid].stepped == stepped}

    def on_acked(self, uid: str) -> bool:
        """Whether all members have acknowledged their assignments now."""
        self.unacked.discard(uid)
        return not self.unacked

    def expect_start(self, member: MemberRecord) -> None:
        """The member's workers are still starting in the round that continues."""
        self.starting.add(member.uid)

    def on_started(self, uid: str) -> bool:
        """The member's workers have started, or failed. Whether no other member has workers that are starting."""
        self.starting.discard(uid)
        return not self.starting

    def on_finished(self, member: MemberRecord) -> None:
        self.starting.discard(member.uid)
        if member.group_rank is not None:
            self.finished.add(member.group_rank)

    def set_domain(self, member: MemberRecord, domain: str) -> None:
        """The operator reports the topology domain of an active's node."""
        if member.group_rank is not None:
            self.domains[member.group_rank] = domain or member.join.domain

    def links(self) -> tuple[int, ...]:
        return tuple(self._links)

    def active_members(self) -> list[MemberRecord]:
        """The members that have a rank, by rank."""
        return [self.members[uid] for uid in self.holders if uid is not None]

    def waiting_members(self) -> list[MemberRecord]:
        """The connected members without a rank that may get one, in order of arrival."""
        idle = [
            m
            for m in self.members.values()
            if m.group_rank is None and m.link is not None and m.uid not in self.leaving
        ]
        return sorted(idle, key=lambda m: (m.joined_at, m.uid))

    def vacant_ranks(self) -> list[int]:
        return [rank for rank, uid in enumerate(self.holders) if uid is None]

    def assign_rank(self, member: MemberRecord, group_rank: int, domain: str = "") -> None:
        self.holders[group_rank] = member.uid
        self.last_holders[group_rank] = RankHolder(group_rank, member.uid, member.name, member.node)
        member.group_rank = group_rank
        if domain:
            self.domains[group_rank] = domain

    def resize(self, size: int) -> None:
        """Set the number of ranks; members above it must have lower ranks already (see `compact`)."""
        self.holders = (self.holders + [None] * size)[:size]
        self.last_holders = {rank: holder for rank, holder in self.last_holders.items() if rank < size}

    def compact(self, size: int) -> None:
        """Shrink to `size` ranks: holders of higher ranks take vacant lower ones; all others keep theirs."""
        gaps = [rank for rank in self.vacant_ranks() if rank < size]
        for rank in range(size, len(self.holders)):
            uid = self.holders[rank]
            if uid is not None:
                self.holders[rank] = None
                self.assign_rank(self.members[uid], gaps.pop(0))
        self.resize(size)

    def all_finished(self) -> bool:
        return len(self.finished) == len(self.holders)

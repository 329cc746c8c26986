"""Who is there: one record a member, and which member holds which group rank.

Facts only; what follows from them is decided in coordinator.py and placement.py.
"""

from dataclasses import dataclass, field

from understudy_protocol.membership import Assign, Join
from understudy_protocol.words import WorkersState


@dataclass
class Member:
    """What the coordinator knows of one connected (or just disconnected) member."""

    join: Join
    link: int | None
    joined_at: float
    last_heard: float
    workers: WorkersState
    master_port: int
    group_rank: int | None = None
    assign: Assign | None = None  # of the running round; sent again to a member that reconnects without it
    acked: bool = True
    close_acked: bool = False
    suspect_since: float | None = None
    leaving_until: float | None = None
    unanswered: int = 0

    @property
    def uid(self) -> str:
        return self.join.pod_uid

    @property
    def name(self) -> str:
        return self.join.pod_name


@dataclass
class Roster:
    """The members by pod uid, and the holders of the group ranks 0 … actives-1 (None: vacant)."""

    actives: int
    members: dict[str, Member] = field(default_factory=dict)
    holders: dict[int, str | None] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)  # group ranks whose workers all exited 0 in the running round

    def __post_init__(self) -> None:
        self.holders = dict.fromkeys(range(self.actives), None)

    def by_link(self, link: int) -> Member | None:
        return next((member for member in self.members.values() if member.link == link), None)

    def active(self) -> list[Member]:
        """The members that hold a rank, by rank."""
        return [self.members[uid] for _, uid in sorted(self.holders.items()) if uid is not None]

    def waiting(self) -> list[Member]:
        """The members that hold none and could be given one, the earliest first."""
        idle = (
            m for m in self.members.values() if m.group_rank is None and m.link is not None and m.leaving_until is None
        )
        return sorted(idle, key=lambda m: (m.joined_at, m.uid))

    def vacant(self) -> list[int]:
        return [rank for rank, uid in sorted(self.holders.items()) if uid is None]

    def seat(self, member: Member, group_rank: int) -> None:
        self.holders[group_rank] = member.uid
        member.group_rank = group_rank

    def remove(self, uid: str) -> Member:
        member = self.members.pop(uid)
        if member.group_rank is not None:
            self.holders[member.group_rank] = None
        return member

    def all_finished(self) -> bool:
        return len(self.finished) == self.actives

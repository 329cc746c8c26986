"""The members that were lost or evicted, for the operator, and how often each was lost. Decides nothing.

Rules: the operator gets the newest MAX_LOST. A member that was lost and has returned is the last choice for ranks for a
while: it may be lost again soon.
"""

from dataclasses import dataclass, field

from understudy_protocol.observer import Lost
from understudy_protocol.pauses import growing_pause_s

MAX_LOST = 1000
#: A member that was lost and has returned is the last choice for ranks for this long; doubles with each loss.
LOST_RECENTLY_S = 10.0
MAX_LOST_RECENTLY_S = 600.0


@dataclass
class Losses:
    by_uid: dict[str, Lost] = field(default_factory=dict)
    counts: dict[str, tuple[int, float]] = field(default_factory=dict)  # by uid: number and time of the last

    def report(self, lost: Lost) -> None:
        """Report a member that is no member any more."""
        self.by_uid[lost.pod_uid] = lost
        _limit(self.by_uid)

    def count(self, uid: str, now: float) -> None:
        """The member was lost, and may return."""
        self.counts[uid] = (self.counts.get(uid, (0, 0.0))[0] + 1, now)
        _limit(self.counts)

    def on_return(self, uid: str) -> None:
        self.by_uid.pop(uid, None)

    def was_lost_recently(self, uid: str, now: float) -> bool:
        """Whether this member returned so soon after a loss that any other member is the better choice."""
        losses, at = self.counts.get(uid, (0, 0.0))
        return losses > 0 and now < at + growing_pause_s(LOST_RECENTLY_S, MAX_LOST_RECENTLY_S, losses)


def _limit(by_uid: dict[str, Lost] | dict[str, tuple[int, float]]) -> None:
    while len(by_uid) > MAX_LOST:
        del by_uid[next(iter(by_uid))]

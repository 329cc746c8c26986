"""Who is silent, and since when silence counts as a loss.

- A connection that the kernel gave up on (TCP keepalive, TCP_USER_TIMEOUT) makes its member a suspect. A suspect is
  lost when the training stands still too (a stall, or a fault anywhere), or after `silent_after_s`; until then the
  training may well be fine on another network.
- When the training stalls, every active is asked at once; one that does not answer within `answer_s` is lost. This
  finds frozen machines too, whose kernels still acknowledge what no process reads.
- A member that leaves `HEARTBEATS` regular heartbeats unanswered is lost (a hung sidecar), training or not.
- An active that does not acknowledge its assignment within `answer_s` is lost.

Regular heartbeats go to one slice of the members after the other: thousands of answers never come at one moment.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from understudy_sidecar.membership.roster import Member, Roster
from understudy_sidecar.membership.stall import StepWatch

HEARTBEATS = 3
#: One more second between the heartbeats of a member for so many members, up to LONGEST_HEARTBEAT_S.
MEMBERS_A_SECOND = 1000
LONGEST_HEARTBEAT_S = 10.0
SLICE = 500


@dataclass(frozen=True)
class Patience:
    """All times in seconds. heartbeat_s is what a small job has; see `heartbeat_s_of`."""

    answer_s: float = 3.0
    silent_after_s: float = 10.0
    heartbeat_s: float = 5.0
    probe_again_s: float = 5.0


@dataclass(frozen=True)
class Silent:
    member: Member
    reason: str


@dataclass(frozen=True)
class _Probe:
    heartbeat: int  # its number
    until: float
    judged: bool = False


@dataclass
class SilenceWatch:
    patience: Patience
    heartbeat_at: float = 0.0
    ack_until: float | None = None
    probe: _Probe | None = None
    lease_s: float = 0.0  # after which members without a coordinator end their workers; 0: never
    _to_come: list[str] = field(default_factory=list)  # uids of this turn of heartbeats that are not asked yet

    def heartbeat_s_of(self, members: int) -> float:
        """How long a member of so many waits for the next heartbeat. At least three fit into its lease."""
        wanted_s = max(self.patience.heartbeat_s, min(LONGEST_HEARTBEAT_S, members / MEMBERS_A_SECOND))
        return min(wanted_s, self.lease_s / HEARTBEATS) if self.lease_s else wanted_s

    def answer_s_of(self, members: int) -> float:
        """How long so many may take to acknowledge: the last of thousands is told seconds after the first."""
        return self.patience.answer_s + members / MEMBERS_A_SECOND

    def new_round(self, members: int, now: float) -> None:
        self.ack_until = now + self.answer_s_of(members)
        self.probe = None

    def all_acked(self) -> None:
        self.ack_until = None

    def forgive(self, roster: Roster, now: float) -> None:
        """Nobody's silence up to now counts."""
        if self.ack_until is not None or roster.unacked:
            self.ack_until = now + self.patience.answer_s
        if self.probe is not None and not self.probe.judged:
            self.probe = replace(self.probe, until=now + self.patience.answer_s)
        roster.suspects = dict.fromkeys(roster.suspects, now)
        for member in roster.members.values():
            member.unanswered = []

    def lost(self, roster: Roster, steps: StepWatch, standing: bool, now: float) -> list[Silent]:
        """The members whose silence counts as a loss now. standing: no round runs, for another reason."""
        found = [*self._unacknowledged(roster, now)]
        if roster.suspects:
            found += self._suspects(roster, standing or self._stalled(steps, now), now)
        found += self._unanswered(roster, now)
        return list({silent.member.uid: silent for silent in found}.values())

    def to_ask(self, roster: Roster, steps: StepWatch, now: float, number: int) -> tuple[list[Member], list[Silent]]:
        """The members to send the heartbeat of that number to now, and those that have left too many unanswered.

        A slice of all at the regular time; all actives when the training stalls.
        """
        if now >= self.heartbeat_at:
            return self._regular(roster, now, number)
        if self._probe_due(steps, now):
            self.probe = _Probe(number, now + self.patience.answer_s)
            return [m for m in roster.active() if m.link is not None], []
        return [], []

    def deadline(self, roster: Roster, steps: StepWatch) -> float:
        times = [self.heartbeat_at]
        if roster.suspects:
            times.append(min(roster.suspects.values()) + self.patience.silent_after_s)
        if self.ack_until is not None:
            times.append(self.ack_until)
        if self.probe is not None and not self.probe.judged:
            times.append(self.probe.until)
        elif (stalls_at := steps.stalls_at()) is not None:
            times.append(max(stalls_at, self.probe.until + self.patience.probe_again_s) if self.probe else stalls_at)
        return min(times)

    def _regular(self, roster: Roster, now: float, number: int) -> tuple[list[Member], list[Silent]]:
        if not self._to_come:
            self._to_come = sorted(roster.linked)
        slices = max(1, -(-len(roster.linked) // SLICE))
        self.heartbeat_at = now + self.heartbeat_s_of(len(roster.linked)) / slices
        uids, self._to_come = self._to_come[:SLICE], self._to_come[SLICE:]
        asked = [roster.members[uid] for uid in uids if uid in roster.linked]
        for member in asked:
            member.unanswered.append(number)
        silent = f"it did not answer {HEARTBEATS} heartbeats"
        return asked, [Silent(member, silent) for member in asked if len(member.unanswered) > HEARTBEATS]

    def _stalled(self, steps: StepWatch, now: float) -> bool:
        stalls_at = steps.stalls_at()
        return stalls_at is not None and now >= stalls_at

    def _probe_due(self, steps: StepWatch, now: float) -> bool:
        if not self._stalled(steps, now):
            self.probe = None
            return False
        return self.probe is None or (self.probe.judged and now >= self.probe.until + self.patience.probe_again_s)

    def _suspects(self, roster: Roster, standing: bool, now: float) -> Iterator[Silent]:
        for uid, since in roster.suspects.items():
            member = roster.members[uid]
            if standing and member.group_rank is not None:
                yield Silent(member, "its connection went silent and the training makes no progress")
            elif now >= since + self.patience.silent_after_s:
                yield Silent(member, f"its connection has been silent for {self.patience.silent_after_s:g} s")

    def _unacknowledged(self, roster: Roster, now: float) -> Iterable[Silent]:
        if self.ack_until is None or now < self.ack_until:
            return
        self.ack_until = None
        for uid in sorted(roster.unacked):
            within_s = self.answer_s_of(len(roster.holders))
            reason = f"it did not acknowledge its assignment within {within_s:.3g} s"
            yield Silent(roster.members[uid], reason)

    def _unanswered(self, roster: Roster, now: float) -> Iterable[Silent]:
        if self.probe is None or self.probe.judged or now < self.probe.until:
            return
        probe = self.probe
        self.probe = replace(probe, judged=True)
        for member in roster.active():
            if member.answered < probe.heartbeat:
                yield Silent(member, f"the training stalled and it did not answer within {self.patience.answer_s:g} s")

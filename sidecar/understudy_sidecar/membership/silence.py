"""Who is silent, and since when silence counts as a loss.

- A connection that the kernel gave up on (TCP keepalive, TCP_USER_TIMEOUT) makes its member a suspect. A suspect is
  lost when the training stands still too (a stall, or a fault anywhere), or after `silent_after_s`; until then the
  training may well be fine on another network.
- When the training stalls, every active is asked at once; one that does not answer within `answer_s` is lost. This
  finds frozen machines too, whose kernels still acknowledge what no process reads.
- A member that leaves `HEARTBEATS` regular heartbeats unanswered is lost (a hung sidecar), training or not.
- An active that does not acknowledge its assignment within `answer_s` is lost.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from understudy_sidecar.membership.roster import Member, Roster
from understudy_sidecar.membership.stall import StepWatch

HEARTBEATS = 3


@dataclass(frozen=True)
class Patience:
    """All times in seconds."""

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
    sent_at: float
    until: float
    judged: bool = False


@dataclass
class SilenceWatch:
    patience: Patience
    heartbeat_at: float = 0.0
    ack_until: float | None = None
    probe: _Probe | None = None

    def new_round(self, now: float) -> None:
        self.ack_until = now + self.patience.answer_s
        self.probe = None

    def all_acked(self) -> None:
        self.ack_until = None

    def lost(self, roster: Roster, steps: StepWatch, standing: bool, now: float) -> list[Silent]:
        """The members whose silence counts as a loss now. standing: no round runs, for another reason."""
        found = [*self._unacknowledged(roster, now), *self._unresponsive(roster)]
        found += self._suspects(roster, standing or self._stalled(steps, now), now)
        found += self._unanswered(roster, now)
        return list({silent.member.uid: silent for silent in found}.values())

    def to_ask(self, roster: Roster, steps: StepWatch, now: float) -> list[Member]:
        """The members to send a heartbeat to now: all at the regular time, all actives when the training stalls."""
        linked = [m for m in roster.members.values() if m.link is not None]
        if now >= self.heartbeat_at:
            self.heartbeat_at = now + self.patience.heartbeat_s
            for member in linked:
                member.unanswered += 1
            return linked
        if self._probe_due(steps, now):
            self.probe = _Probe(now, now + self.patience.answer_s)
            return [m for m in linked if m.group_rank is not None]
        return []

    def deadline(self, roster: Roster, steps: StepWatch) -> float:
        times = [self.heartbeat_at]
        times += [m.suspect_since + self.patience.silent_after_s for m in roster.members.values() if m.suspect_since]
        if self.ack_until is not None:
            times.append(self.ack_until)
        if self.probe is not None and not self.probe.judged:
            times.append(self.probe.until)
        elif (stalls_at := steps.stalls_at()) is not None:
            times.append(max(stalls_at, self.probe.until + self.patience.probe_again_s) if self.probe else stalls_at)
        return min(times)

    def _stalled(self, steps: StepWatch, now: float) -> bool:
        stalls_at = steps.stalls_at()
        return stalls_at is not None and now >= stalls_at

    def _probe_due(self, steps: StepWatch, now: float) -> bool:
        if not self._stalled(steps, now):
            self.probe = None
            return False
        return self.probe is None or (self.probe.judged and now >= self.probe.until + self.patience.probe_again_s)

    def _suspects(self, roster: Roster, standing: bool, now: float) -> Iterable[Silent]:
        for member in roster.members.values():
            if member.suspect_since is None:
                continue
            if standing and member.group_rank is not None:
                yield Silent(member, "its connection went silent and the training stands still")
            elif now >= member.suspect_since + self.patience.silent_after_s:
                yield Silent(member, f"its connection has been silent for {self.patience.silent_after_s:g} s")

    def _unresponsive(self, roster: Roster) -> Iterable[Silent]:
        for member in roster.members.values():
            if member.unanswered > HEARTBEATS:
                yield Silent(member, f"it left {HEARTBEATS} heartbeats unanswered")

    def _unacknowledged(self, roster: Roster, now: float) -> Iterable[Silent]:
        if self.ack_until is None or now < self.ack_until:
            return
        self.ack_until = None
        for member in roster.active():
            if not member.acked:
                yield Silent(member, f"it did not acknowledge its assignment within {self.patience.answer_s:g} s")

    def _unanswered(self, roster: Roster, now: float) -> Iterable[Silent]:
        if self.probe is None or self.probe.judged or now < self.probe.until:
            return
        probe = self.probe
        self.probe = _Probe(probe.sent_at, probe.until, judged=True)
        for member in roster.active():
            if member.last_heard < probe.sent_at:
                yield Silent(member, f"the training stalled and it did not answer within {self.patience.answer_s:g} s")

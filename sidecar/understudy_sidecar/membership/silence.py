"""Silent members, and when their silence counts as a loss.

- A connection that the kernel ended (TCP keepalive, TCP_USER_TIMEOUT) makes its member a suspect. A suspect is lost
  when the training also stops (a stall, or any fault), or after `silent_after_s`; until then the training may still run
  over another network.
- When a step is late, and when the training stalls, the coordinator pings every active at once. If a machine
  acknowledges neither this packet nor earlier ones, its member is lost about a second after the last packet from the
  machine (tcp.py). In a stall, a member that does not answer within `answer_s` is lost too: this also finds frozen
  processes, whose kernels still acknowledge data. But only the member with group rank 0 reports each step. If it is the
  silent one, the others may still make steps, for example because only its sidecar restarts. Their answers say so, and
  then the stall has no effect. Pings for late steps are at least `probe_again_s` and one heartbeat
  interval apart, because in some trainings many steps are late.
- A member that leaves `HEARTBEATS` regular heartbeats unanswered is lost (a hung sidecar), even while the training
  runs.
- An active that does not acknowledge its assignment within `answer_s` is lost. If its machine acknowledges no packet
  either, it is lost after about a second.

Regular heartbeats go to one slice of the members after the other, so that thousands of answers never come at once.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from understudy_sidecar.membership.roster import MemberRecord, Roster
from understudy_sidecar.membership.stall import StepWatch

HEARTBEATS = 3
#: The heartbeat interval grows by one second per this many members, up to MAX_HEARTBEAT_S.
MEMBERS_PER_SECOND = 1000
MAX_HEARTBEAT_S = 10.0
#: A member of a small job that has not acknowledged its assignment within this time is late.
LATE_ACK_S = 0.5
SLICE = 500


_UNREACHABLE = "and its machine acknowledges no packet"


@dataclass(frozen=True)
class SilenceTimeouts:
    """All times in seconds. heartbeat_s: of a small job; see `heartbeat_s_of`."""

    answer_s: float = 3.0
    silent_after_s: float = 10.0
    heartbeat_s: float = 5.0
    probe_again_s: float = 5.0


@dataclass(frozen=True)
class SilentMember:
    member: MemberRecord
    reason: str


@dataclass(frozen=True)
class _Probe:
    heartbeat: int  # its number
    sent_at: float
    until: float
    is_early: bool  # the step was late, and the training did not stall yet
    is_done: bool = False


@dataclass
class SilenceWatch:
    timeouts: SilenceTimeouts
    heartbeat_at: float = 0.0
    ack_until: float | None = None
    ack_is_late_at: float | None = None  # when the machines of members that have not acknowledged are looked at
    probe: _Probe | None = None
    early_again_at: float = 0.0  # no probe for a late step before
    lease_s: float = 0.0  # after which disconnected members end their workers; 0: never
    _heartbeat_queue: list[str] = field(default_factory=list)  # uids that get a heartbeat in this turn; last first

    def heartbeat_s_of(self, members: int) -> float:
        """The heartbeat interval of a job of this size. At least three intervals fit into the lease."""
        wanted_s = max(self.timeouts.heartbeat_s, min(MAX_HEARTBEAT_S, members / MEMBERS_PER_SECOND))
        return min(wanted_s, self.lease_s / HEARTBEATS) if self.lease_s else wanted_s

    def answer_s_of(self, members: int) -> float:
        """The time for members to answer: the last of thousands gets the message seconds after the first."""
        return self.timeouts.answer_s + members / MEMBERS_PER_SECOND

    def new_round(self, members: int, now: float) -> None:
        self.ack_until = now + self.answer_s_of(members)
        self.ack_is_late_at = now + LATE_ACK_S + members / MEMBERS_PER_SECOND
        self.probe = None

    def all_acked(self) -> None:
        self.ack_until = self.ack_is_late_at = None

    def restart_timeouts(self, roster: Roster, now: float) -> None:
        """Ignore the silence of all members up to now."""
        if self.ack_until is not None or roster.unacked:
            self.ack_until = now + self.answer_s_of(len(roster.holders))
        if self.probe is not None and not self.probe.is_done:
            self.probe = replace(self.probe, until=now + self.timeouts.answer_s)
        roster.restart_suspicions(now)
        for member in roster.members.values():
            member.unanswered = []

    def find_lost(self, roster: Roster, steps: StepWatch, is_stopped: bool, now: float) -> list[SilentMember]:
        """The members whose silence counts as a loss now. is_stopped: no round runs."""
        found = [*self._unacknowledged(roster, now)]
        if roster.suspects:
            found += self._lost_suspects(roster, is_stopped or steps.is_stalled(now), now)
        found += self._unanswered(roster, now)
        return list({silent.member.uid: silent for silent in found}.values())

    def members_to_probe(
        self, roster: Roster, steps: StepWatch, now: float, number: int
    ) -> tuple[list[MemberRecord], list[SilentMember]]:
        """The members that get the next heartbeat now, and those that have left too many unanswered.

        number: of that heartbeat. It goes to a slice of all members at the regular time, or to all actives as a probe.
        """
        if now >= self.heartbeat_at:
            return self._next_heartbeats(roster, now, number)
        if self._is_probe_due(steps, now):
            is_early = not steps.is_stalled(now)
            self.probe = _Probe(number, now, now + self.timeouts.answer_s, is_early)
            if is_early:
                heartbeat_s = self.heartbeat_s_of(len(roster.connected))
                self.early_again_at = now + max(self.timeouts.probe_again_s, heartbeat_s)
            return [m for m in roster.active_members() if m.link is not None], []
        return [], []

    def late_to_acknowledge(self, roster: Roster, now: float) -> list[MemberRecord]:
        """The actives without an acknowledgment of their assignment, once in each round."""
        if self.ack_is_late_at is None or now < self.ack_is_late_at:
            return []
        self.ack_is_late_at = None
        return [roster.members[uid] for uid in sorted(roster.unacked)]

    def is_probed(self, number: int) -> bool:
        """Whether this heartbeat went to all actives, because a step is late or the training stalls."""
        return self.probe is not None and self.probe.heartbeat == number

    def find_unreachable(
        self, roster: Roster, steps: StepWatch, links: frozenset[int], now: float
    ) -> list[SilentMember]:
        """The actives with these links that also owe an answer: to an assignment, or to the probe if the step is still
        late. Their machines acknowledge no packet.
        """
        probe = self.probe
        waits_for_answer = probe is not None and not probe.is_done and steps.is_late(now)
        late = "the training stalled" if steps.is_stalled(now) else "a step was late"
        found = []
        for member in [x for x in roster.active_members() if x.link in links]:
            if member.uid in roster.unacked:
                found.append(SilentMember(member, f"it did not acknowledge its assignment, {_UNREACHABLE}"))
            elif waits_for_answer and probe is not None and member.answered < probe.heartbeat:
                found.append(SilentMember(member, f"{late}, {_UNREACHABLE}"))
        return found

    def on_stepped(self, number: int, stepped_s: float, steps: StepWatch) -> None:
        """A member has answered this heartbeat, and had made its last step this many seconds before. If that was after
        the time at which the next step was late, the training goes on: then no member is lost because it leaves this
        probe unanswered.

        The time of the step is counted from the sending of the probe, because an answer can take long.
        """
        probe, late_at = self.probe, steps.late_at()
        if probe is not None and probe.heartbeat == number and not probe.is_early and late_at is not None:
            self.probe = replace(probe, is_done=probe.is_done or probe.sent_at - stepped_s >= late_at)

    def deadline(self, roster: Roster, steps: StepWatch) -> float:
        times = [self.heartbeat_at]
        if roster.suspects:
            times.append(next(iter(roster.suspects.values())) + self.timeouts.silent_after_s)
        times += [at for at in (self.ack_until, self.ack_is_late_at) if at is not None]
        late_at, stalls_at, probe = steps.late_at(), steps.stalls_at(), self.probe
        if late_at is None or stalls_at is None:
            return min(times)
        if probe is None:
            times.append(min(stalls_at, max(late_at, self.early_again_at)))
        elif probe.is_early:
            times.append(stalls_at)
        else:
            times.append(probe.until + (self.timeouts.probe_again_s if probe.is_done else 0.0))
        return min(times)

    def _next_heartbeats(
        self, roster: Roster, now: float, number: int
    ) -> tuple[list[MemberRecord], list[SilentMember]]:
        if not self._heartbeat_queue:
            self._heartbeat_queue = sorted(roster.connected, reverse=True)
        slices = max(1, -(-len(roster.connected) // SLICE))
        self.heartbeat_at = now + self.heartbeat_s_of(len(roster.connected)) / slices
        uids = self._heartbeat_queue[: -SLICE - 1 : -1]
        del self._heartbeat_queue[-SLICE:]
        probed = [roster.members[uid] for uid in uids if uid in roster.connected]
        for member in probed:
            member.unanswered.append(number)
        silent = f"it did not answer {HEARTBEATS} heartbeats"
        return probed, [SilentMember(member, silent) for member in probed if len(member.unanswered) > HEARTBEATS]

    def _is_probe_due(self, steps: StepWatch, now: float) -> bool:
        if not steps.is_late(now):
            self.probe = None
            return False
        if not steps.is_stalled(now):
            return self.probe is None and now >= self.early_again_at
        if self.probe is None or self.probe.is_early:
            return True
        return self.probe.is_done and now >= self.probe.until + self.timeouts.probe_again_s

    def _lost_suspects(self, roster: Roster, is_stopped: bool, now: float) -> Iterator[SilentMember]:
        for uid, since in roster.suspects.items():
            member = roster.members[uid]
            if is_stopped and member.group_rank is not None:
                yield SilentMember(member, "its connection went silent and the training makes no progress")
            elif now >= since + self.timeouts.silent_after_s:
                yield SilentMember(member, f"its connection has been silent for {self.timeouts.silent_after_s:g} s")
            elif not is_stopped:
                return  # all others are suspects since later

    def _unacknowledged(self, roster: Roster, now: float) -> Iterable[SilentMember]:
        if self.ack_until is None or now < self.ack_until:
            return
        self.ack_until = None
        for uid in sorted(roster.unacked):
            within_s = self.answer_s_of(len(roster.holders))
            reason = f"it did not acknowledge its assignment within {within_s:.3g} s"
            yield SilentMember(roster.members[uid], reason)

    def _unanswered(self, roster: Roster, now: float) -> Iterable[SilentMember]:
        if self.probe is None or self.probe.is_early or self.probe.is_done or now < self.probe.until:
            return
        probe = self.probe
        self.probe = replace(probe, is_done=True)
        for member in roster.active_members():
            if member.answered < probe.heartbeat:
                yield SilentMember(
                    member, f"the training stalled and it did not answer within {self.timeouts.answer_s:g} s"
                )

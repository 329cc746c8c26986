"""Messages to observers (the operator, usually), and their times: Snapshots of the coordinator, or its address. Pure.

Rules: at most five a second. At 10,000 members, where a snapshot takes a tenth of a second, they take at most
MAX_CPU_SHARE of the time. While more than MANY_UNACKED members have not acknowledged their assignment, no snapshot is
sent for up to ASSIGNMENT_S: the assignments come first. If only the progress has changed, only that is sent, at most
twice a second. Each message of an observer is answered with the next message, whether or not there is news. Two
messages are sent at once, because this process may end a moment later: the close, and the first snapshot with the
voters of this term, without which the operator does not know whether an election is possible.
"""

from collections.abc import Callable

from understudy_protocol.enums import NO_TERM, Term
from understudy_protocol.observer import Refused, Stepping, StepProgress
from understudy_sidecar.membership.candidate import MemberInfo
from understudy_sidecar.membership.config_change import MANY_UNACKED
from understudy_sidecar.membership.coordinator import Coordinator
from understudy_sidecar.membership.events import Broadcast

INTERVAL_S = 0.2
PROGRESS_S = 0.5
MAX_CPU_SHARE = 0.05
ASSIGNMENT_S = 1.0


class Observation:
    """coordinator: of this sidecar, if it is the leader. member_info: the knowledge of its member.

    cpu_clock: the CPU time of this thread in seconds.
    """

    def __init__(
        self,
        coordinator: Callable[[], Coordinator | None],
        member_info: Callable[[], MemberInfo],
        cpu_clock: Callable[[], float],
    ) -> None:
        self._coordinator, self._member_info, self._cpu_clock = coordinator, member_info, cpu_clock
        self._links: set[int] = set()
        self._unanswered: set[int] = set()  # links whose message has no answer yet
        self._not_before = 0.0
        self._sent_at = 0.0  # the last message
        self._took_s = 0.0  # the CPU time that it took
        self._sent_version = NO_TERM, 0  # of the newest snapshot
        self._sent_progress: StepProgress | None = None
        self._sent_refusal: Refused | None = None
        self._sent_end = False
        self._sent_voters_of: Term | None = None  # the newest term whose voters a snapshot has named

    def __len__(self) -> int:
        return len(self._links)

    def add(self, link: int) -> None:
        self._links.add(link)

    def remove(self, link: int) -> None:
        self._links.discard(link)
        self._unanswered.discard(link)

    def answer(self, link: int) -> None:
        """This observer has sent a message: answer it, whether or not there is news."""
        if link in self._links:
            self._unanswered.add(link)

    def snapshot_took(self, seconds: float) -> None:
        """The last snapshot took this CPU time, in addition to earlier reports: delay the next one in proportion."""
        self._took_s += seconds
        self._not_before = max(self._not_before, self._sent_at + self._took_s / MAX_CPU_SHARE)

    def deadline(self) -> float | None:
        """When the next message is due; None if there is none."""
        return self._allowed_at() if self._unanswered or (self._links and self._has_news()) else None

    def due_messages(self, now: float) -> list[Broadcast]:
        """The messages to send now."""
        if not self._links:
            return []
        is_end = not self._sent_end and self._has_ended()
        is_urgent = is_end or self._has_new_voters()
        due = None if is_urgent else self.deadline()
        if not is_urgent and (due is None or now < due):
            return []
        self._sent_end = self._sent_end or is_end
        self._not_before = now + INTERVAL_S
        self._sent_at, self._took_s, begun = now, 0.0, self._cpu_clock()
        message = self._message() if is_urgent or self._has_news() else None
        messages = [] if message is None else [Broadcast(tuple(sorted(self._links)), message)]
        if self._unanswered and (message is None or isinstance(message, Stepping)):  # it may have no state yet
            messages.append(Broadcast(tuple(sorted(self._unanswered)), self._state_message()))
        self._unanswered.clear()
        self.snapshot_took(self._cpu_clock() - begun)
        return messages

    def _allowed_at(self) -> float:
        """When the next message may be sent."""
        coordinator = self._coordinator()
        if coordinator is None:
            return self._not_before
        if len(coordinator.state.roster.unacked) > MANY_UNACKED:
            return max(self._not_before, coordinator.state.round.formed_at + ASSIGNMENT_S)
        if not self._unanswered and (coordinator.state.term, coordinator.state.version) == self._sent_version:
            return max(self._not_before, self._sent_at + PROGRESS_S)
        return self._not_before

    def _has_ended(self) -> bool:
        coordinator = self._coordinator()
        return coordinator is not None and coordinator.state.ending.close is not None

    def _has_new_voters(self) -> bool:
        """Whether no snapshot has named voters of this term."""
        coordinator = self._coordinator()
        return coordinator is not None and coordinator.has_voters and coordinator.term != self._sent_voters_of

    def _has_news(self) -> bool:
        coordinator = self._coordinator()
        if coordinator is None:
            return self._refusal() != self._sent_refusal
        state, (term, version) = coordinator.state, self._sent_version
        return state.version != version or state.term != term or state.progress != self._sent_progress

    def _message(self) -> object:
        coordinator = self._coordinator()
        if coordinator is None:
            self._sent_version = NO_TERM, 0
            self._sent_refusal = self._refusal()
            return self._sent_refusal
        state = coordinator.state
        self._sent_refusal = None
        self._sent_progress = state.progress
        version = state.term, state.version
        if version == self._sent_version and state.progress is not None:
            return Stepping(state.progress)
        self._sent_version = version
        if coordinator.has_voters:
            self._sent_voters_of = coordinator.term
        return coordinator.snapshot()

    def _state_message(self) -> object:
        coordinator = self._coordinator()
        return self._refusal() if coordinator is None else coordinator.snapshot()

    def _refusal(self) -> Refused:
        member_info = self._member_info()
        coordinator = member_info.coordinator
        known = (
            member_info.hard_state.config_version.epoch,
            member_info.replacement_reason,
            member_info.lacks_launcher,
        )
        if coordinator is None:
            return Refused("this sidecar is not the coordinator, and knows no coordinator", "", "", *known)
        return Refused("this sidecar is not the coordinator", coordinator.pod_uid, coordinator.ip, *known)

"""Faults of workers within the budget's window: facts for the ladder, which a coordinator passes to the next.

Rules: a counted fault has the time of its recovery. It is removed if a lost member turns out to be the cause. The
history of a previous coordinator is added to this one's; only the newest history counts.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from understudy_protocol.enums import NO_TERM, Term
from understudy_protocol.recovery import CountedFault, DrilledRound, History
from understudy_sidecar.membership.ladder import BudgetLimits

#: Faults in a leader snapshot: standby coordinators resend them in their Joins, which must stay small.
MAX_SENT = 100
MAX_EVICTIONS = 20


@dataclass
class FaultHistory:
    limits: BudgetLimits
    evicted: dict[str, str] = field(default_factory=dict)  # pod uid -> why: a pod that joins again gets Evicted again
    drilled: DrilledRound | None = None  # the newest
    _of_previous_round: tuple[int, float] | None = None  # see `on_previous_round_failed`
    _all: list[CountedFault] = field(default_factory=list)  # by time
    _sent_in_terms: set[Term] = field(default_factory=set)  # terms in which a snapshot had these faults
    _newest: tuple[Term, int] = (NO_TERM, 0)  # of the restored history

    def in_window(self, now: float) -> list[CountedFault]:
        """The faults within the window, the oldest first."""
        self._all = [fault for fault in self._all if now - fault.at < self.limits.window_s]
        return self._all

    def add(self, fault: CountedFault) -> None:
        self._all.append(fault)

    def take_back(self, at: float) -> None:
        """The recovery that began at `at` turned out to have another cause."""
        self._all = [fault for fault in self._all if fault.at != at]

    def blame(self, at: float, pod_uid: str, rank: int | None) -> None:
        """Another pod and rank turned out to be the cause of the recovery that began at `at`."""
        self._all = [replace(fault, pod_uid=pod_uid, rank=rank) if fault.at == at else fault for fault in self._all]

    def is_counted(self, at: float) -> bool:
        """Whether the fault of the recovery that began at `at` was counted."""
        return any(fault.at == at for fault in self._all)

    def has_evicted(self, at: float) -> bool:
        """Whether a member was evicted for the fault of the recovery that began at `at`."""
        return any(fault.at == at and fault.caused_eviction for fault in self._all)

    def on_previous_round_failed(self, round_number: int, at: float) -> None:
        """A new coordinator counts a failure in the previous one's round, in the recovery that began at `at`. The
        previous coordinator may have counted it too, and its history may come later.
        """
        self._of_previous_round = (round_number, at)

    def mark_repeated(self, fault: CountedFault) -> None:
        self._all[self._all.index(fault)] = replace(fault, is_repeated=True)

    def restarts_left(self, now: float) -> int:
        """The restarts that the budget still allows."""
        return max(0, self.limits.restarts - sum(fault.is_charged for fault in self.in_window(now)))

    def drill(self, drilled: DrilledRound) -> None:
        self.drilled = drilled

    def is_drilled(self, round_number: int) -> bool:
        return self.drilled is not None and self.drilled.round == round_number

    def is_of_drill(self, round_number: int, at: float) -> bool:
        """Whether a fault of a worker in this round, detected at that time, counts as the drill's."""
        return self.drilled is not None and self.drilled.round == round_number and at <= self.drilled.until

    def record_eviction(self, uid: str, reason: str) -> None:
        self.evicted[uid] = reason
        while len(self.evicted) > MAX_EVICTIONS:
            self.evicted.pop(next(iter(self.evicted)))

    # From one term to the next ----------------------------------------------------------------------------------------

    def newest(self, now: float) -> tuple[CountedFault, ...]:
        return tuple(self.in_window(now)[-MAX_SENT:])

    def on_sent(self, term: Term) -> None:
        """A snapshot of this term has these faults."""
        self._sent_in_terms.add(term)

    def restore(self, history: History) -> bool:
        """Add a history; False if a restored one is newer, or if this coordinator has sent it itself."""
        if history.term in self._sent_in_terms or (history.term, history.number) <= self._newest:
            return False
        self._newest = (history.term, history.number)
        self._add(history.counted_faults)
        self._count_previous_round_once(history)
        if history.drilled is not None and (self.drilled is None or self.drilled.round < history.drilled.round):
            self.drilled = history.drilled
        for uid, reason in history.evicted.items():
            if uid not in self.evicted:
                self.record_eviction(uid, reason)
        return True

    def _count_previous_round_once(self, history: History) -> None:
        if self._of_previous_round is None:
            return
        round_number, at = self._of_previous_round
        if any(
            x.round == round_number + 1 and x.detected_at != at and self.is_counted(x.detected_at) for x in history.open
        ):
            self.take_back(at)

    def _add(self, counted_faults: Iterable[CountedFault]) -> None:
        merged = {fault.at: fault for fault in (*self._all, *counted_faults)}
        self._all = [merged[at] for at in sorted(merged)]

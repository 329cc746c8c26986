"""What workers have done within the budget's window: facts for the ladder, which a coordinator leaves to the next.

Rules: an offence has the time of the recovery that it is about. What turns out to have been a lost member's doing is
taken back. What a former coordinator knew is added to what this one knows; the newest that comes counts.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from understudy_protocol.enums import NO_TERM, Term
from understudy_protocol.recovery import History, Offence
from understudy_sidecar.membership.ladder import BudgetLimits

#: So many go to heirs, who bring them in their Joins: a Join has to stay small.
MAX_SENT = 100
MAX_EVICTIONS = 20


@dataclass
class Offences:
    limits: BudgetLimits
    evicted: dict[str, str] = field(default_factory=dict)  # pod uid -> why: a pod that comes back is told again
    _all: list[Offence] = field(default_factory=list)  # by time
    sent_in_terms: set[Term] = field(default_factory=set)  # offices in which heirs were told what is in here
    _newest: tuple[Term, int] = (NO_TERM, 0)  # of what was inherited

    def in_window(self, now: float) -> list[Offence]:
        """Those that count at this time, the oldest first."""
        self._all = [offence for offence in self._all if now - offence.at < self.limits.window_s]
        return self._all

    def add(self, offence: Offence) -> None:
        self._all.append(offence)

    def take_back(self, at: float) -> None:
        """The recovery that began then turned out to be about something else."""
        self._all = [offence for offence in self._all if offence.at != at]

    def is_counted(self, at: float) -> bool:
        """Whether the fault of the recovery that began then was counted."""
        return any(offence.at == at for offence in self._all)

    def has_evicted(self, at: float) -> bool:
        """Whether a member was given up for the fault of the recovery that began then."""
        return any(offence.at == at and offence.caused_eviction for offence in self._all)

    def mark_repeated(self, offence: Offence) -> None:
        self._all[self._all.index(offence)] = replace(offence, is_repeated=True)

    def record_eviction(self, uid: str, reason: str) -> None:
        self.evicted[uid] = reason
        while len(self.evicted) > MAX_EVICTIONS:
            self.evicted.pop(next(iter(self.evicted)))

    # From one office to the next -------------------------------------------------------------------------------------

    def newest(self, now: float) -> tuple[Offence, ...]:
        return tuple(self.in_window(now)[-MAX_SENT:])

    def restore(self, history: History) -> bool:
        """Whether it is newer than what was inherited before. What this coordinator has told itself is older."""
        if history.term in self.sent_in_terms or (history.term, history.number) <= self._newest:
            return False
        self._newest = (history.term, history.number)
        self._add(history.offences)
        for uid, reason in history.evicted.items():
            if uid not in self.evicted:
                self.record_eviction(uid, reason)
        return True

    def restore_charges(self, charges: Iterable[float]) -> None:
        """From a coordinator that knew no more than these."""
        self._add(Offence(at, "", None) for at in charges)

    def _add(self, offences: Iterable[Offence]) -> None:
        merged = {offence.at: offence for offence in (*self._all, *offences)}
        self._all = [merged[at] for at in sorted(merged)]

"""The book of recoveries: what broke, who was the cause, how it was mended, and when training stepped again.

Rules: the first fault of a round is its cause, and what follows from it within the round is no entry of its own. A
member that proves to have been lost before or at the same time revises the cause (its peers' workers only failed
because it was gone), and takes the charge off the in-place budget: no innocent pod pays. A fault that comes while
another recovery still lasts is an entry of its own; the next step ends them all.
"""

from collections import Counter, deque
from dataclasses import dataclass, field, replace

from understudy_protocol.observer import Cause, Recovery
from understudy_protocol.words import Fault, Strategy

KEPT = 10
OF_A_WORKER = (Fault.PROCESS, Fault.HANG)


@dataclass
class RecoveryBook:
    """max_in_place restarts are free within window_s seconds; the next one is one too many."""

    max_in_place: int
    window_s: float
    counts: Counter[str] = field(default_factory=Counter)
    open: list[Recovery] = field(default_factory=list)
    _done: deque[Recovery] = field(default_factory=lambda: deque(maxlen=KEPT))
    charges: list[float] = field(default_factory=list)  # when in-place restarts were charged, within the window

    def begin(self, fault: Fault, cause: Cause, next_round: int, now: float) -> None:
        self.open.append(Recovery(next_round, fault, None, cause, now, None))

    def revise(self, fault: Fault, cause: Cause) -> None:
        """The newest open entry blames a worker, and the true cause was a lost member."""
        self.open[-1] = replace(self.open[-1], fault=fault, cause=cause, strategy=None)
        if self.charges:
            self.charges.pop()

    def blames_worker(self) -> Recovery | None:
        """The newest open entry, if it is about a worker."""
        return self.open[-1] if self.open and self.open[-1].fault in OF_A_WORKER else None

    def charge(self, now: float) -> bool:
        """Take one in-place restart off the budget; False when there was none left."""
        self.charges = [at for at in self.charges if now - at < self.window_s]
        if len(self.charges) >= self.max_in_place:
            return False
        self.charges.append(now)
        return True

    def formed(self, round_number: int, strategy: Strategy) -> None:
        """The next round has been assigned: it mends what is not mended yet."""
        self.open = [
            replace(entry, round=round_number, strategy=strategy) if entry.strategy is None else entry
            for entry in self.open
        ]

    def stepped(self, now: float) -> list[Recovery]:
        """The running round has stepped: what was open is done."""
        done = [replace(entry, resumed_at=now) for entry in self.open]
        self.counts.update(entry.strategy.value for entry in done if entry.strategy is not None)
        self._done.extend(done)
        self.open = []
        return done

    def newest(self) -> tuple[Recovery, ...]:
        """The newest ten, oldest first, the open ones included."""
        return tuple([*self._done, *self.open][-KEPT:])

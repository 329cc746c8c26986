"""How long the next round waits after a worker has failed: not at all, unless rounds in a row fail at their start.

Rules: a round has done something once it has stepped, or, where the script never reports a step, once it has run for a
minute. The failure of such a round is mended at once. One that fails before that is followed by the next after FIRST_S,
and each further one after twice as long, up to the job's limit. If the loss of a member turns out to be the cause, the
next round does not wait; but when FREE_LOSSES rounds in a row have lost a member before they had done anything, each
further one waits like that too: every round kills healthy workers. How many have failed in a row goes from one
coordinator to the next. Whatever ended them, of the rounds of one coordinator BURST may follow each other at once, and
after that one each ROUND_S. Pure: the caller brings the time.
"""

from dataclasses import dataclass

FIRST_S = 1.0
FREE_LOSSES = 3
#: Whatever ends the rounds: so many may follow each other at once, and then one in so many seconds.
BURST = 10
ROUND_S = 3.0


@dataclass
class Backoff:
    longest_s: float  # 0: nothing ever waits
    failures: int = 0  # of rounds in a row that had done nothing
    losses: int = 0  # rounds in a row that had done nothing when they lost a member
    until: float | None = None  # when the next round may be formed; None: now
    _rate_at: float = 0.0  # ROUND_S for each round of the burst; in the past if none counts any more
    _has_progress: bool = True  # the round that runs has done something; one of another coordinator counts as such
    _reports_steps: bool = False  # the script reports its steps
    _has_lost: bool = False  # the newest round counts among the losses

    def restore(self, failures: int) -> None:
        """A former coordinator's: as far as it knew, nothing has been done since."""
        self.failures, self._has_progress = failures, failures == 0

    def on_round(self, now: float) -> None:
        self._rate_at = max(self._rate_at, now) + ROUND_S
        self.until, self._has_progress, self._has_lost = None, False, False

    def on_step(self) -> None:
        self.failures, self.losses, self._has_progress, self._reports_steps = 0, 0, True, True

    def on_long_run(self) -> None:
        """For so long that a script that reports nothing is taken to be at work."""
        if not self._reports_steps:
            self.failures, self.losses, self._has_progress = 0, 0, True

    def on_failure(self, now: float) -> None:
        """A worker has, and ended the round that ran."""
        if not self._has_progress and self.longest_s > 0:
            self.failures += 1
            self.until = now + self.pause_s

    def on_loss(self, now: float) -> None:
        """A member was lost: what its peers' workers did is no failure of their own."""
        if self.until is not None and not self._has_lost:
            self.failures, self.until = self.failures - 1, None
        if not self._has_progress and not self._has_lost:
            self._has_lost = True
            self.losses += 1
            if self.losses > FREE_LOSSES and self.longest_s > 0:
                self.until = now + self.pause_s

    def is_waiting(self, now: float) -> bool:
        return now < self.ends_at

    @property
    def ends_at(self) -> float:
        """When the next round may be formed; in the past if at once."""
        return max(self.until or 0.0, self._rate_at - (BURST - 1) * ROUND_S)

    @property
    def pause_s(self) -> float:
        doublings = min((self.losses - FREE_LOSSES if self._has_lost else self.failures) - 1, 30)
        return min(FIRST_S * 2.0**doublings, self.longest_s)

    @property
    def reason(self) -> str:
        if self.until is None or self.until < self.ends_at:
            return f"a pause of up to {ROUND_S:g} s, because the last {BURST} rounds ended within {BURST * ROUND_S:g} s"
        if self._has_lost:
            return f"a pause of {self.pause_s:g} s, because {self.losses} rounds in a row lost a pod at the start"
        rounds = "one round" if self.failures == 1 else f"{self.failures} rounds in a row"
        return f"a pause of {self.pause_s:g} s, because {rounds} failed at the start"

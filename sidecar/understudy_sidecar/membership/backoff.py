"""The pause before the next round after a worker has failed: none, unless rounds in a row fail at their start.

Rules: a round has progress once it has stepped or, if the script never reports a step, once it has run for a minute. If
a round with progress fails, the next one follows at once. If it fails earlier, the next one waits for FIRST_S, and each
further one for twice as long, up to the job's limit. If the cause turns out to be the loss of a member, the next round
does not wait. But if more than FREE_LOSSES rounds in a row lose a member before they have progress, further rounds wait
too, because every round kills healthy workers. The number of failures in a row passes from one coordinator to the next.
In addition, one coordinator forms at most BURST rounds at once, and after that one per ROUND_S. Pure: the caller passes
the time.
"""

from dataclasses import dataclass

from understudy_protocol.pauses import growing_pause_s

FIRST_S = 1.0
FREE_LOSSES = 3
#: A rate limit for all rounds, whatever ends them: BURST at once, and then one per ROUND_S.
BURST = 10
ROUND_S = 3.0


@dataclass
class Backoff:
    longest_s: float  # 0: no round ever waits
    failures: int = 0  # rounds in a row that failed without progress
    losses: int = 0  # rounds in a row that lost a member before they had progress
    until: float | None = None  # when the next round may be formed; None: at once
    _rate_at: float = 0.0  # ROUND_S for each round of the burst; in the past if no round counts any more
    _has_progress: bool = True  # of the running round; a round of another coordinator counts as having progress
    _reports_steps: bool = False  # the script reports its steps
    _has_lost: bool = False  # the newest round is counted in `losses`

    def restore(self, failures: int) -> None:
        """Take the count from the previous coordinator, which had seen no progress since these failures."""
        self.failures, self._has_progress = failures, failures == 0

    def on_round(self, now: float) -> None:
        self._rate_at = max(self._rate_at, now) + ROUND_S
        self.until, self._has_progress, self._has_lost = None, False, False

    def on_step(self) -> None:
        self.failures, self.losses, self._has_progress, self._reports_steps = 0, 0, True, True

    def on_long_run(self) -> None:
        """A script that reports no steps has run for long enough to count as progress."""
        if not self._reports_steps:
            self.failures, self.losses, self._has_progress = 0, 0, True

    def on_failure(self, now: float) -> None:
        """A worker has failed, and the running round is over."""
        if not self._has_progress and self.longest_s > 0:
            self.failures += 1
            self.until = now + self.pause_s

    def on_loss(self, now: float) -> None:
        """A member was lost: the failures of its peers' workers do not count."""
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
        in_row = self.losses - FREE_LOSSES if self._has_lost else self.failures
        return growing_pause_s(FIRST_S, self.longest_s, in_row)

    @property
    def reason(self) -> str:
        if self.until is None or self.until < self.ends_at:
            return f"a pause of up to {ROUND_S:g} s, because the last {BURST} rounds ended within {BURST * ROUND_S:g} s"
        if self._has_lost:
            return f"a pause of {self.pause_s:g} s, because {self.losses} rounds in a row lost a pod at the start"
        rounds = "one round" if self.failures == 1 else f"{self.failures} rounds in a row"
        return f"a pause of {self.pause_s:g} s, because {rounds} failed at the start"

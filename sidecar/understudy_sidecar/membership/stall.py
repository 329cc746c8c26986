"""Whether the training has stalled, by the steps that workers report.

A round stalls if it has stepped and then reports no step for three times its median step (at least one second), plus
the half second between reports. A stall alone proves nothing (a save, an evaluation): it makes the coordinator ping all
members. A round whose script never reports a step cannot stall; heartbeats detect its lost members.
"""

from dataclasses import dataclass

REPORT_EVERY_S = 0.5
MIN_STALL_S = 1.0
MEDIANS = 3


@dataclass
class StepWatch:
    last_step_at: float | None = None
    median_step_s: float = 0.0

    def new_round(self) -> None:
        self.last_step_at = None

    def on_step(self, median_step_s: float, now: float) -> None:
        self.last_step_at = now
        self.median_step_s = median_step_s or self.median_step_s

    def stalls_at(self) -> float | None:
        """When the training counts as stalled unless a step is reported before; None while it cannot stall."""
        if self.last_step_at is None:
            return None
        return self.last_step_at + max(MEDIANS * self.median_step_s, MIN_STALL_S) + REPORT_EVERY_S

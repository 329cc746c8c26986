"""The steps that workers report, and the reports that they hang: facts. silence.py and hangs.py decide.

A step is late if the round has stepped and then reports no step for twice its median step (at least half a second),
plus the time between reports. A round stalls after three times its median step (at least one second), plus the same
time. Both alone prove nothing (a save, an evaluation): they make the coordinator ping all members. In a round whose
script never reports a step, no step is late; heartbeats detect its lost members.
"""

from dataclasses import dataclass, field

from understudy_protocol.membership import Hung

REPORT_EVERY_S = 0.25
MIN_LATE_S, LATE_MEDIANS = 0.5, 2
MIN_STALL_S, STALL_MEDIANS = 1.0, 3


@dataclass
class StepWatch:
    last_step_at: float | None = None
    median_step_s: float = 0.0

    def new_round(self) -> None:
        self.last_step_at = None

    def on_step(self, median_step_s: float, now: float) -> None:
        self.last_step_at = now
        self.median_step_s = median_step_s or self.median_step_s

    def late_at(self) -> float | None:
        """When the next step is late unless it is reported before; None while it cannot be late."""
        return self._after(LATE_MEDIANS, MIN_LATE_S)

    def stalls_at(self) -> float | None:
        """When the training counts as stalled unless a step is reported before; None while it cannot stall."""
        return self._after(STALL_MEDIANS, MIN_STALL_S)

    def is_late(self, now: float) -> bool:
        return (at := self.late_at()) is not None and now >= at

    def is_stalled(self, now: float) -> bool:
        return (at := self.stalls_at()) is not None and now >= at

    def _after(self, medians: int, least_s: float) -> float | None:
        if self.last_step_at is None:
            return None
        return self.last_step_at + max(medians * self.median_step_s, least_s) + REPORT_EVERY_S


@dataclass
class HangDetection:
    """The reports of members whose workers hang, and when the first step of a round is due.

    before_first_step: the coordinator has requested the stacks of a round that has made no step.
    """

    start_expires: float | None = None  # when a round without a step counts as hung; None: never
    until: float | None = None  # more reports may follow until then; None: there are none
    before_first_step: bool = False
    reports: dict[str, Hung] = field(default_factory=dict)  # by uid

    def expect_step(self, timeout_s: float, now: float) -> None:
        """A round begins, or continues under a new coordinator. timeout_s: for its first step; 0: no limit."""
        self.start_expires = now + timeout_s if timeout_s > 0 else None
        self.forget()

    @property
    def deadline(self) -> float | None:
        return self.start_expires if self.until is None else self.until

    def end_round(self) -> None:
        self.start_expires = None
        self.forget()

    def forget(self) -> None:
        self.until, self.before_first_step, self.reports = None, False, {}

    def on_step(self, uid: str) -> None:
        self.start_expires = None
        if self.before_first_step:
            self.forget()
        self.reports.pop(uid, None)

    def gather(self, until: float) -> None:
        self.until = until

    def on_hung(self, uid: str, hung: Hung) -> None:
        self.reports[uid] = hung

    def end_start_limit(self) -> None:
        """A member knows of a step."""
        self.start_expires = None

    def postpone_start_limit(self, until: float) -> None:
        self.start_expires = until

    def request_stacks(self, until: float) -> None:
        self.start_expires, self.until, self.before_first_step, self.reports = None, until, True, {}

"""The fault of a worker, or the last step of its ladder, that waits for a decision: facts. escalation.py decides."""

from dataclasses import dataclass, field

from understudy_protocol.observer import Cause
from understudy_sidecar.membership.first_failure import FirstFailure
from understudy_sidecar.membership.ladder import LadderDecision, LadderStep


@dataclass
class PendingStep:
    """A member's eviction, or the end of the job: once all other actives have answered, none of them was lost first."""

    uid: str
    cause: Cause
    decision: LadderDecision
    at: float  # when its recovery began
    failed_at: float  # when its worker failed (first_failure.py)
    heartbeat: int
    until: float
    unanswered: set[str] = field(default_factory=set)  # uids of actives without an answer to it or a later one
    earlier_failure: str = ""  # name of a member whose worker failed earlier, by its own report

    @property
    def action(self) -> str:
        """The action of the step, as a part of a sentence."""
        return f"pod {self.cause.pod} is replaced" if self.decision.step is LadderStep.EVICT else "the job fails"


@dataclass(frozen=True)
class PendingFault:
    """A worker's fault that waits to be counted: for the other failures of its round, and for a majority."""

    failures: FirstFailure
    at: float  # when its recovery began
    keep_reason: str  # why its pod cannot be evicted


@dataclass
class PendingDecisions:
    fault: PendingFault | None = None
    step: PendingStep | None = None

    def wait_for_fault(self, fault: PendingFault) -> None:
        self.fault = fault

    def take_fault(self) -> PendingFault | None:
        fault, self.fault = self.fault, None
        return fault

    def wait_for_answers(self, step: PendingStep) -> None:
        self.step = step

    def end_step(self) -> None:
        self.step = None

    def drop(self) -> None:
        """Another member was lost, or was leaving, before the worker failed."""
        self.fault = self.step = None

    def on_answer(self, uid: str, heartbeat: int | None) -> bool:
        """The member has answered this heartbeat, or has rejoined (None). Whether all have answered now."""
        if self.step is None or (heartbeat is not None and heartbeat < self.step.heartbeat):
            return False
        self.step.unanswered.discard(uid)
        return not self.step.unanswered

    def on_lost(self, uid: str) -> bool:
        """Whether this member still had to answer before the step."""
        has_to_answer = self.step is not None and uid in self.step.unanswered
        if self.step is not None:
            self.step.unanswered.discard(uid)
        return has_to_answer

    def on_failure(self, uid: str, name: str, at: float | None) -> bool:
        """A worker of this member failed at this time; None: unknown.

        Whether the worker that has reached the step may have failed later.
        """
        if self.step is None or uid == self.step.uid or (at is not None and at >= self.step.failed_at):
            return False
        self.step.earlier_failure = name
        return True

    def postpone_step(self, until: float) -> None:
        if self.step is not None:
            self.step.until = until

    def end_wait_for_answers(self) -> None:
        if self.step is not None:
            self.step.unanswered.clear()

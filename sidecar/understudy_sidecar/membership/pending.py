"""The fault of a worker, or the last step of its ladder, that waits for a decision: facts. escalation.py decides.

Also the newest fault that was decided, because an exception that is reported later may be its cause.
"""

from dataclasses import dataclass, field, replace

from understudy_protocol.enums import NO_ROUND, RoundToken
from understudy_protocol.observer import Cause
from understudy_sidecar.membership.first_failure import FailureReport, FirstFailure
from understudy_sidecar.membership.ladder import LadderDecision, LadderStep


@dataclass
class PendingStep:
    """A member's eviction, or the end of the job: once all other actives have answered, none of them was lost first."""

    uid: str
    cause: Cause
    decision: LadderDecision
    at: float  # when its recovery began
    failures: FirstFailure  # of the round; that of its worker is the first
    heartbeat: int
    until: float
    keep_reason: str = ""  # see PendingFault
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


@dataclass(frozen=True)
class DecidedFault:
    """A worker's fault for which all workers restart in place."""

    failures: FirstFailure
    at: float  # when its recovery began
    token: RoundToken  # of the round that failed
    size: int
    formed_at: float


@dataclass
class PendingDecisions:
    fault: PendingFault | None = None
    step: PendingStep | None = None
    decided: DecidedFault | None = None
    raised: FirstFailure | None = None  # the exceptions of the workers of this round that have not ended:
    raised_in: RoundToken = NO_ROUND
    heartbeat: int = 0  # number of the newest one that was sent before the newest fault of a worker

    def on_raised(self, token: RoundToken, report: FailureReport) -> None:
        """A worker of the running round has raised an exception: the round ends when a worker ends."""
        if self.raised is None or self.raised_in != token:
            self.raised, self.raised_in = FirstFailure(report), token
        else:
            self.raised.add(report)

    def failures_with(self, token: RoundToken, report: FailureReport) -> FirstFailure:
        """The failures of this round: a worker has ended, and others may have raised an exception before."""
        raised, self.raised = self.raised, None
        if raised is None or self.raised_in != token:
            return FirstFailure(report)
        raised.add(report)
        return raised

    def begin(self, heartbeat: int) -> None:
        """A worker's fault begins after this heartbeat."""
        self.heartbeat = heartbeat

    def decide(self, decided: DecidedFault | None) -> None:
        self.decided = decided

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
        if self.step is None or uid == self.step.uid or (at is not None and at >= self.step.failures.first.at):
            return False
        self.step.earlier_failure = name
        return True

    def keep_pod(self, failed_uid: str, reason: str) -> None:
        """A worker of this member failed at an unknown time, so another pod is not evicted for the pending fault."""
        if self.fault is not None and self.fault.failures.first.pod_uid != failed_uid:
            self.fault = replace(self.fault, keep_reason=self.fault.keep_reason or reason)

    def postpone_step(self, until: float) -> None:
        if self.step is not None:
            self.step.until = until

    def end_wait_for_answers(self) -> None:
        if self.step is not None:
            self.step.unanswered.clear()

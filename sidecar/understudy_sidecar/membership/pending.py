"""The fault of a worker, or the eviction of its pod, that waits for a decision: facts. escalation.py decides."""

from dataclasses import dataclass, field

from understudy_protocol.observer import Cause
from understudy_sidecar.membership.first_failure import FirstFailure


@dataclass
class PendingEviction:
    """A member that will be evicted once all other actives have answered: then none of them was lost first."""

    uid: str
    cause: Cause
    reason: str
    charged: bool
    at: float  # when its recovery began
    failed_at: float  # when its worker failed (first_failure.py)
    heartbeat: int
    until: float
    unanswered: set[str] = field(default_factory=set)  # uids of actives that have answered neither it nor a later one
    earlier_failure: str = ""  # name of a member whose worker failed earlier, by its own report


@dataclass(frozen=True)
class PendingFault:
    """A worker's fault that waits to be counted: for the other failures of its round, and for a majority."""

    failures: FirstFailure
    at: float  # when its recovery began
    keep_reason: str  # why its pod cannot be evicted


@dataclass
class PendingDecisions:
    fault: PendingFault | None = None
    eviction: PendingEviction | None = None

    def wait_for_fault(self, fault: PendingFault) -> None:
        self.fault = fault

    def take_fault(self) -> PendingFault | None:
        fault, self.fault = self.fault, None
        return fault

    def wait_for_answers(self, eviction: PendingEviction) -> None:
        self.eviction = eviction

    def end_eviction(self) -> None:
        self.eviction = None

    def drop(self) -> None:
        """Another member was lost, or was leaving, before the worker failed."""
        self.fault = self.eviction = None

    def on_answer(self, uid: str, heartbeat: int | None) -> bool:
        """The member has answered this heartbeat, or has rejoined (None). Whether all have answered now."""
        if self.eviction is None or (heartbeat is not None and heartbeat < self.eviction.heartbeat):
            return False
        self.eviction.unanswered.discard(uid)
        return not self.eviction.unanswered

    def on_lost(self, uid: str) -> bool:
        """Whether this member still had to answer before the eviction."""
        has_to_answer = self.eviction is not None and uid in self.eviction.unanswered
        if self.eviction is not None:
            self.eviction.unanswered.discard(uid)
        return has_to_answer

    def on_failure(self, uid: str, name: str, at: float | None) -> bool:
        """A worker of this member failed at this time; None: unknown.

        Whether the worker of the pod to evict may have failed later.
        """
        if self.eviction is None or uid == self.eviction.uid or (at is not None and at >= self.eviction.failed_at):
            return False
        self.eviction.earlier_failure = name
        return True

    def postpone_eviction(self, until: float) -> None:
        if self.eviction is not None:
            self.eviction.until = until

    def end_wait_for_answers(self) -> None:
        if self.eviction is not None:
            self.eviction.unanswered.clear()

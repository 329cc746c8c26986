"""The weight update as a list of steps, each with the undo that is due once the step may have begun.

    CLOSE         owes SETTLE                 LEAVE_GROUP   settles LEAVE_GROUP
    STOP          owes RESUME_GENERATION      RESUME_KV     settles RESUME_KV
    RELEASE_KV    owes RESUME_KV              FLUSH_CACHE   settles FLUSH_CACHE
    BUILD_GROUP   owes LEAVE_GROUP            RESUME        settles RESUME_GENERATION
    TRANSFER      owes FLUSH_CACHE            OPEN          settles SETTLE
    FINALIZE

Rules: an undo is owed from before its step starts, so a half-done step is undone too. An undo must therefore be
idempotent, and harmless if its step never happened. It is settled when the step with the same effect is done on all
replicas. Undos are tried in the order of UNDO_ORDER, even if others fail. From the start of TRANSFER to the end of
FINALIZE the weights are neither the old nor the new ones; at any other time they are whole, whatever else has failed.
No I/O here.
"""

from dataclasses import dataclass, replace
from enum import Enum


class Step(Enum):
    """In the order of execution. Errors and notes contain the values."""

    CLOSE = "close admission"
    STOP = "stop generation"
    RELEASE_KV = "release the KV cache"
    BUILD_GROUP = "build the group"
    TRANSFER = "transfer the weights"
    FINALIZE = "finalize"
    LEAVE_GROUP = "leave the group"
    RESUME_KV = "resume the KV cache"
    FLUSH_CACHE = "flush the prefix cache"
    RESUME = "resume generation"
    OPEN = "open admission"


class Undo(Enum):
    LEAVE_GROUP = "leave the group"
    RESUME_KV = "resume the KV cache"
    FLUSH_CACHE = "flush the prefix cache"
    RESUME_GENERATION = "resume generation"
    SETTLE = "settle admission"  # open it if the weights are whole and all else is undone, else mark them


class ReplicaWeights(Enum):
    """The weights that every replica has now."""

    OLD = "old"
    MIXED = "mixed"  # some of a replica's tensors may be old, some new
    NEW = "new"


STEPS = tuple(Step)
UNDO_ORDER = tuple(Undo)
OWES = {
    Step.CLOSE: Undo.SETTLE,
    Step.STOP: Undo.RESUME_GENERATION,
    Step.RELEASE_KV: Undo.RESUME_KV,
    Step.BUILD_GROUP: Undo.LEAVE_GROUP,
    Step.TRANSFER: Undo.FLUSH_CACHE,
}
SETTLES = {
    Step.LEAVE_GROUP: Undo.LEAVE_GROUP,
    Step.RESUME_KV: Undo.RESUME_KV,
    Step.FLUSH_CACHE: Undo.FLUSH_CACHE,
    Step.RESUME: Undo.RESUME_GENERATION,
    Step.OPEN: Undo.SETTLE,
}


class OutOfOrder(Exception):
    """A step was begun that is not the next one."""


@dataclass(frozen=True)
class UpdateProgress:
    """The progress of an update: how many steps have begun, and whether the last of these is done."""

    begun: int = 0
    done: int = 0  # begun, or begun - 1

    @property
    def step(self) -> Step:
        """The last step that has begun."""
        return STEPS[max(self.begun - 1, 0)]

    def begin(self, step: Step) -> "UpdateProgress":
        if self.begun != self.done or self.begun >= len(STEPS) or STEPS[self.begun] is not step:
            state = "is not done" if self.begun != self.done else "was the last one"
            raise OutOfOrder(f"{step.value!r} cannot begin: {self.step.value!r} {state}")
        return replace(self, begun=self.begun + 1)

    def end(self) -> "UpdateProgress":
        return replace(self, done=self.begun)

    def has_begun(self, step: Step) -> bool:
        return STEPS.index(step) < self.begun

    def is_done(self, step: Step) -> bool:
        return STEPS.index(step) < self.done

    @property
    def owed(self) -> tuple[Undo, ...]:
        """The undos that are due now, in the order in which they are tried."""
        due = {undo for step, undo in OWES.items() if self.has_begun(step)}
        due -= {undo for step, undo in SETTLES.items() if self.is_done(step)}
        return tuple(undo for undo in UNDO_ORDER if undo in due)

    @property
    def replica_weights(self) -> ReplicaWeights:
        if not self.has_begun(Step.TRANSFER):
            return ReplicaWeights.OLD
        return ReplicaWeights.NEW if self.is_done(Step.FINALIZE) else ReplicaWeights.MIXED

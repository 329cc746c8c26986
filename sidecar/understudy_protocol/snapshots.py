"""Snapshots of the training in the memory of its pods: which a pod has, and which one a round restores.

Parts of messages of several kinds. A field with a default may be missing.
"""

from dataclasses import dataclass
from typing import Optional

from understudy_protocol.enums import RoundToken

#: The operator rejects numbers of 19 digits, and a browser rounds larger numbers than this one.
MAX_STEP = (1 << 53) - 1


@dataclass(frozen=True, order=True)
class SavedStep:
    """The name of a snapshot: two rounds may save the same step with different content, so the round is part of it.

    The order is that of the training: a later round continues from what it has restored.
    """

    token: RoundToken  # of the round that saved it
    step: int

    def leads_to(self, restored: "Optional[SavedStep]") -> bool:
        """Whether the round that saved the restored snapshot has saved this one before, or it is the restored one.
        Snapshots of earlier rounds do not count: that round may have restored an older one.
        """
        return restored is not None and self.token == restored.token and self.step <= restored.step


@dataclass(frozen=True, order=True)
class MadeStep:
    """A step that the training has made. The order is that of the training."""

    token: RoundToken  # of the round that made it
    step: int


@dataclass(frozen=True)
class SnapshotAge:
    """The newest snapshot that all ranks of a pod have saved, or that was copied from all of them."""

    step: int
    age_s: float  # since it was saved


@dataclass(frozen=True)
class RestoreChoice:
    """The coordinator's decision for a round."""

    saved: Optional[SavedStep]  # None: each rank restores the script's own checkpoint
    reason: str = ""  # why none is restored
    from_copies: bool = False  # at least one pod has fetched it from another one
    #: Without a snapshot in memory: only snapshots on storage that are older than this step count; None: all.
    before_step: Optional[int] = None


@dataclass(frozen=True)
class SavedSteps:
    """The snapshots of a pod before the workers of a round have run. The launcher reads them when no older worker is
    left, so none of them can be overwritten before the round has restored one.
    """

    whole: tuple[SavedStep, ...]  # the steps for which each rank of the pod has the part of its rank in this round
    #: That workers of the pod have reported before this round; None: none, or its number is counted.
    newest_made: Optional[MadeStep] = None
    choice: Optional[RestoreChoice] = None  # None: the launcher has not received it yet


@dataclass(frozen=True)
class KeptSteps:
    """The copies that a pod keeps of the snapshots of another one."""

    group_rank: int  # of the other pod
    whole: tuple[SavedStep, ...]  # the steps with a copy for each rank of that pod; oldest first


@dataclass(frozen=True)
class FetchedStep:
    """A snapshot in a pod's own memory that was fetched from another pod, for each of its ranks."""

    token: RoundToken  # of the round that it was fetched for
    saved: SavedStep


@dataclass(frozen=True)
class CopyHolder:
    """A pod that keeps copies."""

    pod_uid: str
    ip: str  # its address (addresses.py)


@dataclass(frozen=True)
class CopyOwner:
    """A pod whose snapshots are copied to another one."""

    group_rank: int
    pod_uid: str


@dataclass(frozen=True)
class CopyPlan:
    """The part of one pod in the copies of a round."""

    world_size: int
    holders: tuple[CopyHolder, ...] = ()  # that keep copies of its snapshots; empty for a pod without ranks
    owners: tuple[CopyOwner, ...] = ()  # of the copies that it keeps
    stride: int = 1  # it copies the saves 1, 1 + stride, 1 + 2 x stride, … of the round

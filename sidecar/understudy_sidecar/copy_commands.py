"""Messages between a sidecar and its process for copies, one in each packet of a unix socket.

A Receive and a Serve come together with a socket, and a Files with the files (SCM_RIGHTS).
"""

from dataclasses import dataclass

from understudy_protocol.enums import NO_ROUND, RoundToken
from understudy_protocol.snapshots import CopyHolder, CopyPlan, FetchedStep, KeptSteps, SavedStep

NO_RANKS = NO_STEP = -1


@dataclass(frozen=True)
class Setup:
    """The first message. key: of the membership, hexadecimal."""

    key: str
    job_uid: str
    pod_uid: str
    nproc: int


@dataclass(frozen=True)
class Files:
    """The launcher's memory: the file of each local rank, then those for copies. They replace all earlier files."""

    own: int
    kept: int


@dataclass(frozen=True)
class NoFiles:
    """The launcher has no memory for snapshots, and will have none."""


@dataclass(frozen=True)
class RoundCopyPlan:
    """Answered by Planned. group_rank: of this pod; NO_RANKS if it has none."""

    token: RoundToken
    group_rank: int
    plan: CopyPlan


@dataclass(frozen=True)
class Fetch:
    """Answered by Fetched, once there is memory for it."""

    token: RoundToken
    group_rank: int
    saved: SavedStep
    holders: tuple[CopyHolder, ...]


@dataclass(frozen=True)
class Receive:
    """Another pod's connection for copies of its snapshots. greeting: to send first, hexadecimal."""

    token: RoundToken
    group_rank: int
    pod_uid: str
    greeting: str


@dataclass(frozen=True)
class Serve:
    """Another pod's connection for a copy that this pod keeps."""

    group_rank: int
    saved: SavedStep
    world_size: int
    greeting: str


@dataclass(frozen=True)
class Flush:
    """No worker of this round saves any more. Answered by Flushed when its snapshots are copied, or cannot be."""

    token: RoundToken


@dataclass(frozen=True)
class Ready:
    """The first message: the process has started."""


@dataclass(frozen=True)
class Planned:
    """overwritten: the pod's own snapshots that fetches have replaced. fetched: the fetched snapshots in its memory
    now.
    """

    token: RoundToken
    kept: tuple[KeptSteps, ...]
    overwritten: tuple[SavedStep, ...]
    fetched: tuple[FetchedStep, ...]


@dataclass(frozen=True)
class Overwrites:
    """A fetch is about to overwrite this snapshot of the pod's own."""

    saved: SavedStep


@dataclass(frozen=True)
class Fetched:
    """Not sent if another Fetch or a newer RoundCopyPlan has ended this one. overwritten: as in Planned."""

    token: RoundToken
    saved: SavedStep
    error: str
    overwritten: tuple[SavedStep, ...]


@dataclass(frozen=True)
class Flushed:
    token: RoundToken


@dataclass(frozen=True)
class CopyCounts:
    """Of this process, since its start. skipped: snapshots that were replaced before a copy of them could begin.

    step: the newest one that was copied from all ranks of this pod, or NO_STEP. at: when the last of these copies was
    sent, in Unix seconds.
    """

    copied: int
    skipped: int
    failed: int
    copied_bytes: int
    step: int = NO_STEP
    at: float = 0.0


@dataclass(frozen=True)
class Copied:
    """The newest snapshot that was copied from all ranks of this pod to the holders of the plan; of NO_ROUND: there is
    none. saved_at: in Unix seconds, by the clock of this pod.
    """

    saved: SavedStep
    saved_at: float


NO_COPY = Copied(SavedStep(NO_ROUND, NO_STEP), 0.0)


@dataclass(frozen=True)
class StrideNeeded:
    """See copy_stride.py."""

    stride: int


@dataclass(frozen=True)
class LogLine:
    """A line for the log."""

    text: str


TO_PROCESS = (Setup, Files, NoFiles, RoundCopyPlan, Fetch, Flush, Receive, Serve)
TO_SIDECAR = (Ready, Planned, Overwrites, Fetched, Flushed, CopyCounts, Copied, StrideNeeded, LogLine)

"""Messages between a pod's sidecar and its launcher: JSON lines over the unix socket in the shared emptyDir.

Launcher -> sidecar: LauncherHello first, then NextPort, WorkersStarted, WorkerExited, WorkersFinished, Stepped,
Terminating. Sidecar -> launcher: StartWorkers, StopWorkers, ExitLauncher.
"""

from dataclasses import dataclass
from typing import Optional

from understudy_protocol.words import RoundToken, WorkersState


@dataclass(frozen=True)
class LauncherHello:
    """Sent on every connect, so that a restarted sidecar learns what runs."""

    pid: int
    token: RoundToken  # of the newest StartWorkers, or NO_ROUND
    group_rank: Optional[int]
    workers: WorkersState
    master_port: int


@dataclass(frozen=True)
class NextPort:
    master_port: int


@dataclass(frozen=True)
class WorkersStarted:
    token: RoundToken


@dataclass(frozen=True)
class WorkerExited:
    """A worker failed: it exited with another code than 0, or a signal ended it."""

    token: RoundToken
    local_rank: int
    exit_code: Optional[int]
    signal: Optional[str]
    message: str
    at: float


@dataclass(frozen=True)
class WorkersFinished:
    token: RoundToken


@dataclass(frozen=True)
class Stepped:
    token: RoundToken
    step: int
    total: Optional[int]
    median_step_s: float
    at: float


@dataclass(frozen=True)
class Terminating:
    """The launcher got SIGTERM and passed it to its workers."""

    grace_s: float


@dataclass(frozen=True)
class StartWorkers:
    """Kill what runs, then start nprocPerNode workers of this round."""

    token: RoundToken
    group_rank: int
    group_world_size: int
    rank_offset: int
    world_size: int
    master_addr: str
    master_port: int


@dataclass(frozen=True)
class StopWorkers:
    """Kill what runs, and wait for the next StartWorkers."""

    reason: str


@dataclass(frozen=True)
class ExitLauncher:
    code: int
    reason: str

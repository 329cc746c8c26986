"""Messages between a member's sidecar and the coordinator, over one WebSocket (after the handshake).

Member -> coordinator: Join, then Port, Ack, Started, WorkerFailed, Finished, Progress, Leaving, Gone, HeartbeatAck,
CloseAck. Coordinator -> member: Welcome, Assign, Standby, Heartbeat, Close.
Times are Unix seconds; ranks are global unless called local.
"""

from dataclasses import dataclass
from typing import Optional

from understudy_protocol.words import CloseReason, RoundToken, WorkersState


@dataclass(frozen=True)
class Join:
    """Who the member is, and what it last knew: a coordinator that is new in office rebuilds its state from these."""

    pod_uid: str
    pod_name: str
    node: str
    ip: str
    index: Optional[int]  # completion index of an active-candidate; None for a spare
    token: RoundToken  # the newest round that it was assigned to, or heard of
    group_rank: Optional[int]  # its place in that round, None while it waits
    workers: WorkersState
    master_port: int  # a free port of this pod, for the store of a round in which it holds rank 0


@dataclass(frozen=True)
class Welcome:
    token: RoundToken


@dataclass(frozen=True)
class Port:
    """The port for the next round's store has changed (the old one went to the workers of this round)."""

    master_port: int


@dataclass(frozen=True)
class Assign:
    """A place in a round. The member kills what runs, acknowledges, and starts its workers."""

    token: RoundToken
    group_rank: int
    group_world_size: int
    rank_offset: int  # global rank of local rank 0
    world_size: int
    master_addr: str
    master_port: int
    reason: str


@dataclass(frozen=True)
class Standby:
    """The member holds no rank: it waits as a spare, and ends the workers that it may still have."""

    token: RoundToken


@dataclass(frozen=True)
class Ack:
    token: RoundToken


@dataclass(frozen=True)
class Started:
    """All workers of the member are spawned."""

    token: RoundToken


@dataclass(frozen=True)
class WorkerFailed:
    token: RoundToken
    local_rank: int
    exit_code: Optional[int]  # None if a signal ended it
    signal: Optional[str]  # e.g. SIGKILL
    message: str
    at: float


@dataclass(frozen=True)
class Finished:
    """All workers of the member exited 0."""

    token: RoundToken


@dataclass(frozen=True)
class Progress:
    """A completed step. Sent for the first step of a round, then at most twice a second."""

    token: RoundToken
    step: int
    total: Optional[int]
    median_step_s: float  # over the newest steps of this round; 0 while unknown
    at: float


@dataclass(frozen=True)
class Leaving:
    """The pod was asked to end: its workers may still save, for at most grace_s."""

    reason: str
    grace_s: float


@dataclass(frozen=True)
class Gone:
    """The launcher has ended: nothing of this pod trains any more."""

    reason: str


@dataclass(frozen=True)
class Heartbeat:
    number: int
    token: RoundToken


@dataclass(frozen=True)
class HeartbeatAck:
    number: int


@dataclass(frozen=True)
class Close:
    reason: CloseReason
    message: str


@dataclass(frozen=True)
class CloseAck:
    pass

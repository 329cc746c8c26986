"""Messages between two members about copies of snapshots, after a handshake in the role PEER.

The caller sends one message, and the called sidecar answers with PeerAnswer. Then the connection carries records in one
direction, and no more messages (understudy_sidecar/copy_records.py has the format).
"""

from dataclasses import dataclass

from understudy_protocol.enums import RoundToken
from understudy_protocol.snapshots import SavedStep


@dataclass(frozen=True)
class SendCopies:
    """The caller sends copies of its snapshots, one record for each, as long as the round runs."""

    token: RoundToken
    group_rank: int  # of the caller


@dataclass(frozen=True)
class RequestCopy:
    """The caller requests the copy of a snapshot: one record for each rank of the pod, by local rank."""

    group_rank: int
    saved: SavedStep
    world_size: int


@dataclass(frozen=True)
class PeerAnswer:
    """Records follow, in the direction that the message has named, unless there is an error."""

    error: str = ""


FROM_CALLER = (SendCopies, RequestCopy)

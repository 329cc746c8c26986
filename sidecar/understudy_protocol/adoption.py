"""Messages between the operator and a pool's spare that a job has claimed, after the proof of the pool's key.

One Adopt a connection, and one answer. What it holds is an order (order.py), sealed under the pool's key for this pod
and this connection: see `context`. A spare keeps the first one, and says from then on whose it is, whoever asks.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Adopt:
    """The job that has claimed this spare, and what it is to run: an order, sealed."""

    sealed: str


@dataclass(frozen=True)
class Adopted:
    """The spare is this job's: its order is stored."""

    job_uid: str


@dataclass(frozen=True)
class NotAdopted:
    """The order cannot be read: it is of another pod, or of another version."""

    reason: str


TO_SPARE = (Adopt,)
TO_OPERATOR = (Adopted, NotAdopted)


def context(pool_uid: str, pod_uid: str, caller_nonce: str, server_nonce: str) -> Sequence[str]:
    """What an order is sealed for: the nonces are those of the connection's handshake."""
    return ("adopt", pool_uid, pod_uid, caller_nonce, server_nonce)
